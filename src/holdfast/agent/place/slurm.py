"""The entry ``slurm``: what a desk asks of a place where Slurm starts the runs (docs/slurm.md).

| words | answer |
|---|---|
| ``submit --root DIR``, an `Order` on standard input | the run as one job of Slurm: ``{"run": RunRef}`` |
| ``check --root DIR [strict]``, an `Order` on standard input | what preflight says: ``{"report": PreflightReport}`` |
| ``facts`` | `SlurmFacts` |

An order may come any number of times and be cut off at any instant: it is one run, and one job. What Slurm refuses
leaves neither. Sweeps have an entry of their own (`sweep_arrays`), which loads much that one run needs not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.create import take_back_run
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.control.scheduled.after import find_awaited, list_awaited_jobs
from holdfast.agent.scheduler.slurm.check import examine
from holdfast.agent.scheduler.slurm.facts import read_facts
from holdfast.agent.scheduler.slurm.files import read_record
from holdfast.agent.scheduler.slurm.submit import find_job, prepare, submit
from holdfast.agent.view.runs.roots import choose_root
from holdfast.agent.view.source_change import read_origin
from holdfast.core.slurm.contradictions import refuse_contradictions
from holdfast.core.slurm.options import check_options
from holdfast.host.files import files
from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import PreflightFailed, UsageError
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM

from .answer import answer, read_input
from .submit import create_or_find, lay_out_order, read_order, refuse_absent_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.model.finding import PreflightReport
    from holdfast.model.order import Order, RunRef
    from holdfast.model.slurm import SlurmRecord

SUBMIT_PATIENCE_S = 5.0
"""For an entry that was killed: what it was just about to start has its lock until it is another program."""


def main(words: list[str]) -> int:
    """Be the entry ``slurm``."""
    return answer(lambda: _answer(words))


def _answer(words: list[str]) -> object:
    if words == ["facts"]:
        return read_facts()
    if words[:2] == ["check", "--root"] and words[3:] in ([], ["strict"]) and len(words) > 2:
        return {"report": check_order(read_order(read_input("the order")), words[2], strict=len(words) > 3)}
    if words[:1] == ["submit"] and words[1:2] == ["--root"] and len(words) == 3:
        ref = take_order(read_order(read_input("the order")), words[2])
        return {"run": ref, "started": None, "problem": None}
    raise UsageError(f"slurm does not take the words {words!r}")


def check_order(order: Order, root: str, *, strict: bool) -> PreflightReport:
    """What can be said of an order before it is handed in; nothing of it stays.

    Raises:
        HoldfastError: it would be refused, or Slurm does not answer.
    """
    options = check_options(order.native)
    refuse_contradictions(order.job, {**options, **check_options(order.job.slurm)})
    root = os.path.abspath(root)
    make_own_directory(root, "the runs directory", "let `root` of the place name another one")
    refuse_absent_tree(order, root)
    built = files.name_temporary(f"{root}/{order.run_id}")
    os.mkdir(built, 0o700)
    try:
        job = lay_out_order(order, root, built, os.environ)
        return examine(built, order.run_id, job, options, os.environ, strict=strict)
    finally:
        files.remove_tree(built)


def take_order(order: Order, root: str) -> RunRef:
    """The run of an order, made or found, as one job of Slurm.

    Raises:
        Taken: the run id is another job's.
        PlaceError: Slurm does not answer; the same order goes on with the run.
        HoldfastError: it was refused; there is no run.
    """
    if order.scheduler != SLURM:
        raise UsageError(f"an order for {order.scheduler or 'no scheduler'}, at a place of kind slurm")
    options = check_options(order.native)
    refuse_contradictions(order.job, {**options, **check_options(order.job.slurm)})
    root = os.path.abspath(os.path.expanduser(root))
    if order.after and not os.path.lexists(f"{root}/{order.run_id}"):
        order = replace(order, after=find_awaited(order.after, root))
    ref = create_or_find(order, root, os.environ)
    run_dir = ref.run_dir
    with hold_run_lock(run_dir, what="submit", patience_s=SUBMIT_PATIENCE_S):
        record = read_record(run_dir)
        if record is not None and record.job_id is None:
            # A call before this one was cut off: Slurm may have the job, whatever is to be said of the order by now.
            record = find_job(run_dir, record)
        if record is None:
            record = _hand_in(run_dir, order, options, root)
    choose_root(os.path.dirname(run_dir))
    return replace(ref, native_id=record.job_id)


def _hand_in(run_dir: str, order: Order, options: Mapping[str, str], root: str) -> SlurmRecord:
    """Have Slurm take the job of a run of which it has none; what it refuses leaves no run. Raises as `take_order`."""
    try:
        jobs = list_awaited_jobs(tuple(read_origin(run_dir).get("after") or ()), root, SLURM)
        return submit(run_dir, prepare(run_dir, order.job, options, order.env_from, jobs), os.environ, fresh=True)
    except (PreflightFailed, UsageError):
        known = read_record(run_dir)
        if known is None or known.job_id is None:
            take_back_run(run_dir)
        raise
