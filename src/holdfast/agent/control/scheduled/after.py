"""What a run of a scheduler waits for before its own job may begin: the jobs of other runs of the same place."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view.find import find_run, require_own
from holdfast.agent.view.live.attempt import describe_doubt
from holdfast.agent.view.observe import observe_run
from holdfast.model.errors import PreflightFailed, UsageError
from holdfast.model.run import Outcome
from holdfast.model.scheduler import Phase


def find_awaited(names: Sequence[str], root: str) -> tuple[str, ...]:
    """The ids of the runs that these names mean.

    A success in doubt is refused here alone: what waits already was let go by the scheduler, which sees exit codes.

    Raises:
        PreflightFailed: one ended with 0 in doubt, which proves nothing.
        NoSuchRun, NotPermitted, UsageError: one means no run here, somebody else's, or several.
    """
    found = [find_run(name, root=root) for name in names]
    for one in found:
        require_own(one)
        if doubt := describe_doubt(observe_run(one.run_dir)):
            hint = f"holdfast restart {one.run_id}, then say it again (or, as it is: leave it out of --after)"
            raise PreflightFailed(f"--after {one.run_id}: it ended with 0 in doubt: {doubt}", hint=hint)
    return tuple(dict.fromkeys(one.run_id for one in found))


def list_awaited_jobs(run_ids: Sequence[str], root: str, scheduler: str) -> tuple[str, ...]:
    """What `scheduler` calls the jobs of these runs; a run that is proven done is waited for no more.

    Raises:
        PlaceError: the scheduler does not answer.
        PreflightFailed: one has ended otherwise, so what waits for it would never begin.
        UsageError: one is no run of this scheduler.
    """
    views = [observe_run(f"{root}/{run_id}") for run_id in run_ids if os.path.isdir(f"{root}/{run_id}")]
    gone = sorted(set(run_ids) - {view.run_id for view in views})
    if gone:
        raise PreflightFailed(f"--after {', '.join(gone)}: it was removed", hint="whether it was done nobody knows")
    views = [view for view in views if view.end is None or view.end.outcome is not Outcome.SUCCEEDED]
    for view in views:
        if view.scheduler != scheduler:
            raise UsageError(f"--after {view.run_id}: it is no run of {scheduler}", hint="wait for it: holdfast wait")
    words = open_scheduler(scheduler).look([view.run_dir for view in views]) if views else {}
    found = []
    for view in views:
        word = words.get(view.run_dir)
        if word is None or not word.native_id:
            raise PreflightFailed(
                f"--after {view.run_id}: it has no job of {scheduler}", hint=f"holdfast show {view.run_id}"
            )
        if word.phase is Phase.OVER:
            ended = f"{view.condition}; {word.evidence}" if view.over else word.evidence
            hint = f"holdfast restart {view.run_id}, then say it again"
            raise PreflightFailed(f"--after {view.run_id}: it has ended, and was not proven done: {ended}", hint=hint)
        found.append(word.native_id)
    return tuple(found)
