"""Stopping and settling a run whose attempts a scheduler starts.

Its supervisor, where there is one, is asked as any other is: by the wish in the run directory, which it sees wherever
it stands. Only a job that waits is taken out of the scheduler's queue. An end that only the scheduler saw is written
here, by a supervisor of this machine, with the scheduler's word as its evidence; never while the scheduler does not
say that the job is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.act import generation_of, supervise, wait_over
from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.requests import write_request
from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view import observe
from holdfast.agent.view.follow import RunFollower
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.run_view import RunReach, is_never_taken
from holdfast.agent.view.scheduled import LOOK_EVERY_S, OverWords, apply_word, ask, is_open, may_be_queued
from holdfast.core.run.outcome import WITNESSED
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, Unsupported
from holdfast.model.record import replace
from holdfast.model.run import PlaceGone, RequestKind, RunRequest
from holdfast.model.scheduler import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.scheduler import SchedulerReport

CANCEL_WAIT_S = 30.0
"""How long a job that waits may take to be out of the queue."""
SETTLE_WAIT_S = 10.0
STOP_MARGIN_S = 15.0
LOOK_S = 1.0


def refuse_elsewhere(view: RunView) -> None:
    """Refuse to supervise an attempt here that only the run's scheduler may begin.

    Raises:
        Unsupported: it is a run of a scheduler.
    """
    if view.scheduler:
        raise Unsupported(
            f"{view.run_id} cannot be adopted: {view.scheduler} starts its supervisor, and no other may take its place",
            hint=f"holdfast stop {view.run_id} ends it, and holdfast restart {view.run_id} starts it again",
        )


def stop_scheduled(
    run_dir: str, request: RequestKind, *, reason: str, wait_s: float | None, tell: Callable[[RunView], None]
) -> tuple[RunView, str]:
    """Stop a run of a scheduler and wait until it is over, or until time is up; the last look.

    And the scheduler's name for a job that would have begun an ended run again, and was taken out of its queue.
    One whose job is suspended hears nothing: it is not waited for, and only a stop without grace ends it so.

    Raises:
        PlaceError: the scheduler does not answer: what is wanted is on record, and the same command goes on.
        NotPermitted, StorageError: it cannot be asked.
    """
    view = observe.observe_run(run_dir)
    if not may_be_queued(view):
        return view, ""
    words, _ = ask([view])
    word = words.get(view.run_dir)
    phase = Phase.UNKNOWN if word is None else word.phase
    if view.over and phase is not Phase.WAITING and (phase is Phase.OVER or not is_open(view)):
        return view, ""
    untaken = is_never_taken(view)
    if not (untaken and phase is Phase.OVER):
        # An end that came before anybody wanted one stays what it was.
        write_request(run_dir, RunRequest(request, describe_caller(), clock.utc_now(), reason, generation_of(view)))
    limit_s = grace_of(view) + STOP_MARGIN_S if wait_s is None else wait_s
    deadline_s = clock.monotonic_s() + limit_s
    suspended = phase is Phase.SUSPENDED and not untaken
    if suspended and request is RequestKind.STOP and word is not None:
        return apply_word(view, word), ""
    if untaken or view.over or suspended:
        open_scheduler(view.scheduler).cancel([run_dir], words if word is not None else None)
        deadline_s = max(deadline_s, clock.monotonic_s() + CANCEL_WAIT_S)

    def is_enough(view: RunView, phase: Phase) -> bool:
        # Where nobody says where its job is: its end is on record, and nobody begins it again against what is wanted.
        return view.over and phase in (Phase.OVER, Phase.ENDING, Phase.UNKNOWN)

    withdrawn = word.native_id if view.over and word is not None else ""
    # A job that runs and was left to its supervisor stands where it stood a moment ago.
    heard = word if phase is Phase.RUNNING and not (untaken or view.over) else None
    return follow_scheduled(run_dir, is_enough, deadline_s=deadline_s, tell=tell, heard=heard), withdrawn


def settle_over(run_dir: str) -> RunView:
    """Have the end of a run written whose job is over and left none; the look at it then.

    Nothing is done where its scheduler says something else of it, or does not answer.

    Raises:
        ResourceBusy, StorageError: as of `settle_scheduled`.
    """
    deadline_s = clock.monotonic_s() + CANCEL_WAIT_S
    return follow_scheduled(
        run_dir, lambda view, phase: view.over or phase not in (Phase.OVER, Phase.ENDING), deadline_s=deadline_s
    )


def follow_scheduled(
    run_dir: str,
    is_enough: Callable[[RunView, Phase], bool],
    *,
    deadline_s: float,
    tell: Callable[[RunView], None] = lambda _: None,
    heard: SchedulerReport | None = None,
) -> RunView:
    """Look at a run, and ask its scheduler, until that is enough, or until time is up; the last look.

    The scheduler is asked seldom while the job runs and its supervisor has not written the end: one squeue is work for
    a controller that many share. `heard` is what it has said just now. An end that only the scheduler saw is written,
    once it has said often enough that the job is over.

    Raises:
        ResourceBusy, StorageError: as of `settle_scheduled`.
    """
    overs, silent, was_over = OverWords(), "", False
    next_s = 0.0 if heard is None else clock.monotonic_s() + LOOK_EVERY_S
    with RunFollower(run_dir) as follow:
        while True:
            view = follow.look()
            tell(view)
            late = clock.monotonic_s() >= deadline_s
            if late or clock.monotonic_s() >= next_s or view.over is not was_over:
                was_over = view.over
                words, silent = ask([view])
                word = words.get(view.run_dir)
                phase = Phase.UNKNOWN if word is None else word.phase
                if is_enough(view, phase):
                    return view
                # Its records may be there and not be seen yet, on a network file system.
                if overs.hear(view, word) and word is not None:
                    return settle_scheduled(view, word)
                next_s = clock.monotonic_s() + (LOOK_EVERY_S if phase is Phase.RUNNING and not view.over else LOOK_S)
            if late:
                return replace(view, note=f"{view.note}; {silent}") if silent else view
            follow.rest(LOOK_S)


def settle_scheduled(view: RunView, word: SchedulerReport) -> RunView:
    """Write the end of a run whose scheduler says that its job is over, where it left none; the look at it then.

    Raises:
        ResourceBusy: somebody is at it.
        StorageError: it cannot be written.
    """
    with hold_run_lock(view.run_dir, what="settle"):
        view = observe.observe_run(view.run_dir)
        if view.over or word.phase is not Phase.OVER or view.state is None:
            return view
        return write_end(view, word)


def write_end(view: RunView, word: SchedulerReport) -> RunView:
    """Have a supervisor of this machine write the end of an attempt; the caller holds the run's lock.

    Raises:
        StorageError: it cannot be written.
    """
    assert view.state is not None
    untaken = is_never_taken(view)
    # Whoever takes an attempt up that was to be stopped before it began finds that by itself.
    if (untaken and view.desired is None) or (not untaken and view.reach is not RunReach.HERE):
        cause = word.cause if word.cause in WITNESSED else None
        gone = PlaceGone(view.scheduler, clock.utc_now(), word.evidence, view.state.box, cause)
        try:
            files.commit(f"{view.attempt_dir}/{wire.GONE}", wire.to_bytes(gone))
        except OSError as error:
            raise StorageError(f"{view.attempt_dir}: {error.strerror}", hint="see whether the disk is full") from error
    supervise(view)
    return wait_over(view.run_dir, view.attempt, wait_s=SETTLE_WAIT_S)
