"""Holding a run whose attempts a scheduler starts, and letting it go: in the scheduler's own queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view.find import find_run, require_own
from holdfast.agent.view.observe import observe_run
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.queue import JobState

from .change import ChangedJob, QueueChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.view.run_view import RunView

NO_REASON = "a scheduler keeps no reason: its own queue shows only that it is held"


def find_scheduled(words: Sequence[str]) -> tuple[RunView, ...]:
    """The runs of this account that these words name, where a scheduler starts all of them; else none.

    Raises:
        HoldfastError: one is another account's, or several runs are called so.
    """
    found = []
    for word in words:
        try:
            run = find_run(word)
        except NoSuchRun:
            return ()
        view = observe_run(run.run_dir)
        if not view.scheduler:
            return ()
        require_own(run)
        found.append(view)
    return tuple(found)


def hold_scheduled(views: Sequence[RunView], *, reason: str) -> QueueChange:
    """Have the scheduler start none of these runs before somebody lets them go.

    Raises:
        UsageError: there is a reason, or one of them does not wait.
        PlaceError: the scheduler does not answer; the same command goes on.
        HoldfastError: it refuses.
    """
    if reason:
        raise UsageError(NO_REASON, hint="leave --reason out")
    jobs = _order(views, held=True)
    names = " ".join(view.run_id for view in views)
    return QueueChange("held", jobs=jobs, notes=(f"go on: holdfast queue resume {names}",))


def release_scheduled(views: Sequence[RunView]) -> QueueChange:
    """Have it start them again when their turn comes. Raises as `hold_scheduled`."""
    jobs = _order(views, held=False)
    return QueueChange(f"{'goes' if len(jobs) == 1 else 'go'} on", jobs=jobs)


def _order(views: Sequence[RunView], *, held: bool) -> tuple[ChangedJob, ...]:
    jobs = []
    for view in views:
        native = open_scheduler(view.scheduler).hold(view.run_dir, held=held)
        note = f"job {native} of {view.scheduler}"
        jobs.append(ChangedJob(0, view.run_id, JobState.HELD if held else JobState.QUEUED, note))
    return tuple(jobs)
