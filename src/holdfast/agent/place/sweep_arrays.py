"""The entry ``slurm-sweep``: a sweep that a desk ordered where Slurm starts the runs: its jobs are tasks of arrays.

Words: ``--root DIR``, a `QueueOrder` on standard input. Answers an `Enqueued`.

The name is the sweep's identity, as in a queue: the same order, or an edited one, adds what is new and leaves the rest
as it is. An order may come any number of times, from any desk, and be cut off at any instant.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.login_environment import choose_environ
from holdfast.agent.queue.arrays.sweep import find_last_array, hold_sweep
from holdfast.agent.queue.arrays.take import add_jobs, hand_over, release_untaken
from holdfast.agent.view.runs.roots import choose_root
from holdfast.agent.view.runs.sweeps import ArraySweep, HandIn, read_sweep
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.core.slurm.options import check_options
from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import Taken, UsageError
from holdfast.model.ids import is_name
from holdfast.model.queue import JobState
from holdfast.model.queue_order import Submitted, TakenJob
from holdfast.model.runs_root import sweeps_dir
from holdfast.model.slurm import SLURM

from .answer import answer, read_input
from .enqueue import MOST_ORDER_BYTES, Enqueued, prepare, read_order

if TYPE_CHECKING:
    from holdfast.agent.queue.arrays.take import ArrayJob
    from holdfast.model.queue_order import QueueOrder


def main(words: list[str]) -> int:
    """Be the entry ``slurm-sweep``."""
    return answer(lambda: _answer(words))


def _answer(words: list[str]) -> Enqueued:
    if len(words) != 2 or words[0] != "--root":
        raise UsageError(f"slurm-sweep does not take the words {words!r}")
    return take_sweep(read_order(read_input("the order", MOST_ORDER_BYTES)), words[1])


def take_sweep(order: QueueOrder, root: str) -> Enqueued:
    """The jobs of an order in arrays of Slurm, taken or found.

    Raises:
        Taken: the id of the order is that of another one.
        PlaceError: Slurm does not answer; the same order goes on.
        HoldfastError: it was refused; what Slurm has already, if anything, is said.
    """
    submission, ordered = order.submission, order.submission.ordered
    assert ordered is not None
    name = submission.group
    if order.scheduler != SLURM or not is_name(name):
        raise UsageError(f"an order of {name[:60]!r} for {order.scheduler or 'no scheduler'}, at a place of kind slurm")
    native = check_options(order.native)
    root = os.path.abspath(os.path.expanduser(root))
    make_own_directory(root, "the runs directory", "the place's root is to be another one")
    directory = f"{sweeps_dir(root, os.geteuid())}/{name}"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    notes: list[str] = []
    with hold_sweep(directory):
        before = read_sweep(directory)
        sweep = release_untaken(directory, before or ArraySweep(name, arrays=find_last_array(directory)))
        known, fresh = len(submission.jobs), not _is_taken(sweep, order)
        if fresh:
            wishes = SubmitOptions(group=name, named=order.named, shared=order.shared)
            environ = choose_environ(order.env_from, os.environ)
            prepared = prepare(order, wishes, root, environ, notes, kept=directory)
            added = add_jobs(root, sweep, HandIn(prepared, native, order.env_from))
            sweep, known = added.sweep, added.known
            if added.otherwise:
                words = f"{added.otherwise} were handed in before with other options of Slurm, and keep them so far"
                notes.append(f"{words}; the new ones hold from their next attempt on: holdfast sweep retry {name}")
        sweep, made = hand_over(root, directory, sweep)
    # So that people who type there find its runs.
    choose_root(root)
    return Enqueued(ordered.order_id, fresh, _describe(sweep, order, known, made, notes), len(sweep.jobs))


def _is_taken(sweep: ArraySweep, order: QueueOrder) -> bool:
    """Whether this very order was taken before.

    Raises:
        Taken: its id is that of another one.
    """
    asked = order.submission.ordered
    for one in sweep.orders:
        known = one.submission.ordered
        if known is not None and asked is not None and known.order_id == asked.order_id:
            if known.sha256 != asked.sha256:
                raise Taken(f"the order {asked.order_id} was taken already, with other jobs", hint="use another id")
            return True
    return False


def _describe(sweep: ArraySweep, order: QueueOrder, known: int, made: list[ArrayJob], notes: list[str]) -> Submitted:
    asked = {job.name for job in order.submission.jobs}
    given = [job.given for job in sweep.jobs if job.given.name in asked]
    jobs = [
        TakenJob(number, f"{sweep.name}/{job.name}", JobState.QUEUED, job.sha256, "", "")
        for number, job in enumerate(given, 1)
    ]
    said = [f"Slurm has {array.words}" for array in made]
    dropped = len(sweep.jobs) - len(given)
    said += [f"{dropped} of the sweep are not in this hand-in, and are left as they are"] if dropped else []
    return Submitted(sweep.name, tuple(jobs), known, worker=True, notes=(*notes, *said), stops=())
