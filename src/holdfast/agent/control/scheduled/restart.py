"""Handing a run whose attempts a scheduler starts in again, once its job is over and its end is on record.

In this order, all under the run's lock: the next attempt is made, with what is changed of the job; then the scheduler
gets a job that begins it. Whoever is killed in between leaves an attempt that nobody has taken up, and whose job is
over or not there: the next restart goes on with it, and what it changes comes on top. So the same command goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view import observe
from holdfast.agent.view.run_view import is_never_taken
from holdfast.core.job.changes import join_changes
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StillAlive, StorageError, UsageError
from holdfast.model.origin import JobChange
from holdfast.model.record import replace
from holdfast.model.scheduler import Phase, SchedulerReport

from .stop import CANCEL_WAIT_S, follow_scheduled, write_end

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView


def await_over(run_dir: str, wait_s: float | None) -> None:
    """Wait while a job is ending, and have an end written that only its scheduler saw.

    Raises:
        ResourceBusy, StorageError: that cannot be written.
    """

    def is_enough(view: RunView, phase: Phase) -> bool:
        return phase not in (Phase.OVER, Phase.ENDING) or (phase is Phase.OVER and (view.over or is_never_taken(view)))

    follow_scheduled(run_dir, is_enough, deadline_s=clock.monotonic_s() + (CANCEL_WAIT_S if wait_s is None else wait_s))


def look_at(run_dir: str) -> tuple[RunView, SchedulerReport]:
    """A run, and what its scheduler says of its job.

    Raises:
        PlaceError: the scheduler does not answer.
        StorageError: nothing says which job it is.
    """
    view = observe.observe_run(run_dir)
    word = open_scheduler(view.scheduler).look([run_dir]).get(run_dir)
    if word is None:
        raise StorageError(f"{view.run_id}: which job it is cannot be read", hint=f"holdfast show {view.run_id}")
    return view, word


def is_handed_in(view: RunView, word: SchedulerReport) -> bool:
    """Whether an attempt that a restart has made stands in the scheduler's queue, or is just begun."""
    return view.attempt > 1 and is_never_taken(view) and word.phase in (Phase.WAITING, Phase.RUNNING)


def refuse_open(view: RunView, word: SchedulerReport) -> None:
    """Refuse a run that is not over.

    Raises:
        UsageError: its job waits, runs, or may do so.
        StillAlive: its job is over, and the end of its attempt could not be written.
    """
    if word.phase is Phase.OVER or (word.phase is Phase.UNKNOWN and not word.native_id):
        if view.over or is_never_taken(view):
            return
        hint = f"holdfast show {view.run_id}, and say it again when it has ended"
        raise StillAlive(f"{view.run_id} was not restarted: it is {view.condition}; {word.evidence}", hint=hint)
    if word.phase is Phase.WAITING and view.over:
        hint = f"holdfast wait {view.run_id}; to begin it otherwise: holdfast stop {view.run_id}, then restart"
        raise UsageError(f"{view.run_id} is begun again by itself as its next attempt: {word.evidence}", hint=hint)
    hint = f"holdfast stop {view.run_id} first; then restart goes on from what it has saved"
    raise UsageError(f"{view.run_id} is not over: {word.evidence}", hint=hint)


def find_untaken(view: RunView, word: SchedulerReport) -> bool:
    """Whether the newest attempt is one that a killed restart has left: nobody has taken it up, and no job is for it.

    One that somebody wants stopped, or that was never begun and is over, has its end written.

    Raises:
        StorageError: that cannot be written, or the run was never handed in.
    """
    if not is_never_taken(view):
        return False
    if view.desired is not None or (view.attempt == 1 and word.native_id):
        if not write_end(view, word).over:
            raise StorageError(f"{view.run_id}: the end of attempt {view.attempt} is not written", hint="see df")
        return False
    if view.attempt == 1:
        again = "the `holdfast run` that it was ordered by goes on with it"
        hint = "hand the job in as another run" if word.phase is Phase.OVER else again
        raise StorageError(f"{view.run_id} has not begun: {word.evidence}", hint=hint)
    return True


def read_change(view: RunView) -> JobChange | None:
    """What was changed of the job for the newest attempt; None: nothing.

    Raises:
        StorageError: it cannot be read.
    """
    path = f"{view.attempt_dir}/{wire.JOB}"
    try:
        return wire.from_bytes(JobChange, files.read_bytes(path), path)
    except FileNotFoundError:
        return None
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path}: {error}", hint="it says what was changed of the job") from error


def take_back(run_dir: str, attempt: int) -> None:
    """Remove an attempt that nobody has taken up, and that no job is for; the caller holds the run's lock.

    Raises:
        StorageError: it cannot be removed.
    """
    path = wire.attempt_dir(run_dir, attempt)
    try:
        files.take_away(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df") from error


def join(first: JobChange | None, then: JobChange | None) -> JobChange | None:
    """Two changes of a job in a row as one."""
    if first is None or then is None:
        return first or then
    return replace(then, changed=join_changes(first.changed, then.changed), job_file=then.job_file or first.job_file)
