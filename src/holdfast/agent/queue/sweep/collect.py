"""``holdfast results collect``: the proven results of many runs gathered below one directory, and counted (VRFY-14).

Each run has a directory of its own there, with a roster. What is there already is proven, not copied again, so the
same command gives the same, however often it was killed. A run counts only when it is proven done and every file
of it was read back; what is missing is named, and nothing at all is a failure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.results.child import read_roster
from holdfast.agent.control.results.copy import copy_unchanged, read_umask
from holdfast.agent.control.results.order import DEFAULT_PATHS, build_order
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.queue.open import list_notices, look_at_queue
from holdfast.agent.queue.proof import is_accepted
from holdfast.agent.queue.wait.names import resolve
from holdfast.agent.view.live.attempt import describe_doubt
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.runs.sweeps import read_sweep
from holdfast.host.files import files
from holdfast.host.files.copies import proven
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NotCopied, StorageError
from holdfast.model.job import JobSpec
from holdfast.model.queue import JobState
from holdfast.model.record import record, replace
from holdfast.model.run import CopyState, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.results import ResultsRecord

COLLECTED = "holdfast-collected.json"
COMPLETE, INCOMPLETE = "complete", "incomplete"
EXIT_INCOMPLETE = 1


@record
class Expected:
    """One run that is expected: its name below the directory, its run directory (None: it has no run), why not done."""

    name: str
    run_dir: str | None
    open: str = ""


@record
class CollectedRun:
    """How one run stands: of `expected` files that it has, `landed` are proven in `directory`.

    `mended` are files that had gone bad in the copy, and were copied again.
    """

    name: str
    run_id: str
    status: str
    expected: int
    landed: int
    bytes: int
    why: str
    directory: str
    mended: tuple[str, ...] = ()


@record
class Collected:
    """What a gathering came to. `complete` of the runs are; exit code 73 where nothing landed, 1 where not all did."""

    directory: str
    runs: tuple[CollectedRun, ...]
    complete: int
    files: int
    bytes: int
    notes: tuple[str, ...]
    exit_code: int


def find_expected(names: Sequence[str], find_run: Callable[[str], str]) -> tuple[list[Expected], list[str]]:
    """What the names mean: jobs of a group or sweep, and runs; and sentences about the queue.

    Raises:
        NoSuchRun: a name means nothing.
    """
    with look_at_queue() as queue:
        wanted = resolve(queue, names, find_run)
        jobs = [] if wanted.roster is None else [job for job in queue.jobs() if wanted.roster.holds(job)]
        notes = list_notices(queue)
    expected = [Expected(job.label, job.run_dir, "" if job.state is JobState.DONE else job.state.value) for job in jobs]
    for found in wanted.sweeps:
        sweep, group = read_sweep(found.directory), os.path.basename(found.directory)
        of_sweep = () if sweep is None else sweep.jobs
        expected += [Expected(f"{group}/{job.given.name}", f"{found.root}/{job.run_id}") for job in of_sweep]
    expected += [Expected(os.path.basename(run_dir), run_dir) for run_dir in wanted.runs]
    return list({one.name: one for one in expected}.values()), notes


def collect(
    names: Sequence[str], to: str, find_run: Callable[[str], str], show: Callable[[str, ResultsRecord], None]
) -> Collected:
    """Gather what the names mean below `to`; `show` hears of each run how far it is.

    Raises:
        NoSuchRun: a name means nothing.
        StorageError: the directory cannot be made, or what was gathered cannot be written there.
    """
    expected, notes = find_expected(names, find_run)
    try:
        proven.make_target(to)
    except proven.CopyError as error:
        raise StorageError(str(error), hint="the directory above it must be there: is it mounted?") from error
    done = tuple(_collect_one(one, to, lambda at, name=one.name: show(name, at)) for one in expected)  # type: ignore[misc]
    complete = [one for one in done if one.status == COMPLETE]
    landed = sum(one.landed for one in complete)
    code = 0 if len(complete) == len(done) else EXIT_INCOMPLETE
    found = Collected(
        directory=to,
        runs=done,
        complete=len(complete),
        files=landed,
        bytes=sum(one.bytes for one in complete),
        notes=tuple(notes),
        exit_code=code if landed else NotCopied.exit_code,
    )
    try:
        files.commit(f"{to}/{COLLECTED}", wire.to_bytes(replace(found, notes=())), mode=0o666 & ~read_umask())
    except OSError as error:
        raise StorageError(f"{to}/{COLLECTED}: {error.strerror}", hint="see df; what was copied is there") from error
    return found


def _collect_one(one: Expected, to: str, show: Callable[[ResultsRecord], None]) -> CollectedRun:
    target = f"{to}/{one.name}"
    if one.run_dir is None or not os.path.isdir(one.run_dir):
        return _prove_earlier(one, target)
    try:
        with hold_run_lock(one.run_dir, what="collect"):
            return _copy(one, observe_run(one.run_dir), to, target, show)
    except (HoldfastError, OSError) as error:
        run_id = os.path.basename(one.run_dir)
        return CollectedRun(one.name, run_id, INCOMPLETE, 0, 0, 0, str(error), target)


def _copy(one: Expected, view: RunView, to: str, target: str, show: Callable[[ResultsRecord], None]) -> CollectedRun:
    try:
        spec = wire.decode(JobSpec, view.spec, wire.RUN)
        why = _find_objection(one, view)
        if why:
            there, _ = proven.survey(view.run_dir, spec.results.paths or DEFAULT_PATHS, optional=True)
            return CollectedRun(one.name, view.run_id, INCOMPLETE, len(there), 0, 0, why, target)
        above = os.path.dirname(target)
        if above != to:
            proven.refuse_foreign(above)
            proven.make_target(above)
            proven.refuse_foreign(above)
        proven.refuse_foreign(target)
        before = read_roster(target)
    except (proven.CopyError, wire.WireError) as error:
        why = _find_objection(one, view) or str(error)
        return CollectedRun(one.name, view.run_id, INCOMPLETE, 0, 0, 0, why, target)
    order = build_order(
        view.run_dir, view.attempt, spec, to=to, by=describe_caller(), training=view.note, umask=read_umask()
    )
    known = () if before is None else tuple(file.path for file in before.files)
    done = copy_unchanged(view, replace(order, begun=replace(order.begun, to=target)), known, show)
    status = COMPLETE if done.state is CopyState.COPIED else INCOMPLETE
    numbers = (done.files_total, done.files_done, done.bytes_done)
    return CollectedRun(one.name, view.run_id, status, *numbers, done.problem, target, done.mended)


def _prove_earlier(one: Expected, target: str) -> CollectedRun:
    """A job without its run: what was gathered of it before still counts, if it is what it was."""
    run_id = "" if one.run_dir is None else os.path.basename(one.run_dir)
    try:
        proven.refuse_foreign(os.path.dirname(target))
        proven.refuse_foreign(target)
        before = read_roster(target)
    except proven.CopyError as error:
        return CollectedRun(one.name, run_id, INCOMPLETE, 0, 0, 0, str(error), target)
    if before is None or (run_id and before.run_id != run_id):
        why = f"has no run: it is {one.open or 'not begun'}" if not run_id else "its run directory is not there"
        return CollectedRun(one.name, run_id, INCOMPLETE, 0, 0, 0, why, target)
    wrong = proven.prove_all(before.files, target)
    landed = len(before.files) - len(wrong)
    status = INCOMPLETE if wrong else COMPLETE
    size = sum(file.bytes for file in before.files)
    return CollectedRun(one.name, before.run_id, status, len(before.files), landed, size, "; ".join(wrong[:3]), target)


def _find_objection(one: Expected, view: RunView) -> str:
    """Why a run is not proven done; empty when it is."""
    if one.open:
        return f"{one.open}: {view.note}" if view.note else one.open
    if view.condition != Outcome.SUCCEEDED.value:
        return f"{view.condition}: {view.note}" if view.note else view.condition
    doubt = "" if is_accepted(view.run_dir, view.attempt) else describe_doubt(view)
    return f"in doubt: {doubt}" if doubt else ""
