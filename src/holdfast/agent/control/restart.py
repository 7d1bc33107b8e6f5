"""Starting a run again: stopped, proven empty, then the same command as its next attempt.

The run's lock is held from the look to the start: two people who restart at once do not get two trees.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent import launch
from holdfast.agent.scheduler.base import open_scheduler
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.source_change import find_file_changes_within
from holdfast.host.files.job_change import find_newest_step, has_checkpoint
from holdfast.host.process import processes
from holdfast.model.errors import HoldfastError, PreflightFailed, StillAlive, UsageError
from holdfast.model.record import record
from holdfast.model.run import RequestKind

from .act import describe_survivors
from .create import amend_attempt, next_attempt
from .job.change import read_recorded_job
from .job.code import LOOK_WITHIN_S, find_code_changes, names_other_files, renew_code
from .run_lock import hold_run_lock
from .scheduled import restart as scheduled
from .scheduled.after import list_awaited_jobs
from .stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.view.run_view import RunView
    from holdfast.model.origin import JobChange, KeyChange

RESTART = "restart"
"""The reason of the stop that a restart begins with."""


@record
class Restarted:
    """A run that was started again, as which attempt; what of its job was changed for it, and which files had changed.

    `files_changed` are words about files that are not what the attempt before had; `recorded`: it runs what was
    recorded nevertheless. `checkpoint`: there is something that it can go on from; `checkpoint_step` is the step of the
    newest checkpoint of the training library, None where there is none of it. `native_id` is the name that the
    run's scheduler has for the job which begins the attempt; None without one. `has_copies`: all that had changed can
    be run from its copy instead. `code_moved` says in words that the repository is not in the state that the attempt
    before was begun in; empty: it is, or that was not recorded. `code_unknown` says what of its state could not be
    told.
    """

    run_id: str
    run_dir: str
    attempt: int
    changed: tuple[KeyChange, ...] = ()
    files_changed: tuple[str, ...] = ()
    recorded: bool = False
    checkpoint: bool = False
    native_id: str | None = None
    has_copies: bool = False
    checkpoint_step: int | None = None
    code_moved: str = ""
    code_unknown: str = ""


def restart_run(
    run_dir: str,
    *,
    environ: Mapping[str, str],
    by: str,
    wait_s: float | None,
    tell: Callable[[RunView], None],
    change: Callable[[], JobChange | None] = lambda: None,
    recorded: bool = False,
) -> Restarted:
    """Stop, verify that nothing is left, start the same command as the next attempt (PROC-27).

    `change` is asked once nothing is left, and says what is changed of the job for this attempt and all after it.
    A script, configuration or lock file that was changed since is run as it is now; `recorded`: as it was recorded.
    A run of a scheduler is not stopped: it is handed in again when it is over.

    Raises:
        StillAlive: the run is not over, or something of it is left: nothing was started.
        StorageError: nothing can be written; the message says so where the run is over by then.
        PlaceError: its scheduler does not answer; the same call goes on.
        ResourceBusy: another restart is under way.
        UsageError: what was recorded cannot be run instead of what was changed.
    """
    if observe_run(run_dir).scheduler:
        return _hand_in_again(run_dir, environ, wait_s=wait_s, change=change, recorded=recorded)
    with hold_run_lock(run_dir, what="restart"):
        before = read_recorded_job(run_dir).spec
        # Refused before anything is stopped: what cannot be compared now could not be compared afterwards.
        if recorded:
            find_code_changes(run_dir, recorded=True)
        else:
            find_file_changes_within(run_dir, LOOK_WITHIN_S)
        view = stop(run_dir, RequestKind.STOP, by=by, reason=RESTART, wait_s=wait_s, tell=tell)
        if not view.over:
            left = "; ".join(describe_survivors(view)) or f"it is still {view.condition}"
            goes_on = f"it goes on stopping; once it has: holdfast restart {view.run_id}; or now: holdfast stop --now"
            raise StillAlive(f"{view.run_id} was not restarted: {left}", hint=f"{goes_on} {view.run_id}")
        members = processes.find_marked(view.run_id)
        if members:
            pids = ", ".join(str(member.pid) for member in members)
            raise StillAlive(
                f"{view.run_id} was not restarted: processes of it live: {pids}", hint="look at them with ps"
            )
        try:
            wanted = change()
            job = before if wanted is None else wanted.job
            renewed = renew_code(run_dir, job, environ, anew=names_other_files(before, job), recorded=recorded)
            attempt = next_attempt(run_dir, RESTART, code=renewed.code, change=wanted)
            launch.start_supervisor(run_dir, attempt, environ=environ, reason=RESTART)
        except HoldfastError as error:
            words = f"{view.run_id} is over now, and was not started again: {error}"
            raise type(error)(words, hint=error.hint) from error
        return Restarted(
            view.run_id,
            run_dir,
            attempt,
            () if wanted is None else wanted.changed,
            tuple(change.words for change in renewed.changes),
            recorded,
            has_checkpoint(run_dir, view.spec),
            has_copies=all(change.pinned for change in renewed.changes),
            checkpoint_step=find_newest_step(run_dir, view.spec),
            code_moved=renewed.moved,
            code_unknown=renewed.unknown,
        )


def describe_begin(view: RunView) -> str:
    """Where another attempt would begin, as `describe_resume` says it."""
    found = has_checkpoint(view.run_dir, view.spec)
    return describe_resume(find_newest_step(view.run_dir, view.spec), found=found)


def describe_resume(step: int | None, *, found: bool) -> str:
    """From which checkpoint an attempt goes on, to follow its number; `step` None: it is not known of which step it is.

    A job may keep checkpoints of its own, where nobody but itself knows of them.
    """
    if not found:
        return "; no checkpoint is known here: the command begins as it does by itself"
    return ", from its last checkpoint" if step is None else f", from its checkpoint of step {step}"


def _hand_in_again(
    run_dir: str,
    environ: Mapping[str, str],
    *,
    wait_s: float | None,
    change: Callable[[], JobChange | None],
    recorded: bool,
) -> Restarted:
    """As `restart_run`, of a run whose attempts a scheduler starts."""
    scheduled.await_over(run_dir, wait_s)
    with hold_run_lock(run_dir, what="restart"):
        view, word = scheduled.look_at(run_dir)
        wanted = change()
        if scheduled.is_handed_in(view, word) and (wanted is None or not wanted.changed):
            found = has_checkpoint(run_dir, view.spec)
            step = find_newest_step(run_dir, view.spec)
            return Restarted(
                view.run_id, run_dir, view.attempt, checkpoint=found, native_id=word.native_id, checkpoint_step=step
            )
        scheduled.refuse_open(view, word)
        awaited = tuple(view.record.get("after") or ())
        after = list_awaited_jobs(awaited, os.path.dirname(run_dir), view.scheduler)
        left = scheduled.find_untaken(view, word)
        wanted = scheduled.join(scheduled.read_change(view) if left else None, wanted)
        before = read_recorded_job(run_dir).spec
        job = before if wanted is None else wanted.job
        renewed = renew_code(run_dir, job, environ, anew=names_other_files(before, job), recorded=recorded)
        if left:
            attempt = view.attempt
            amend_attempt(run_dir, attempt, code=renewed.code, change=wanted)
        else:
            attempt = next_attempt(run_dir, RESTART, code=renewed.code, change=wanted)
        try:
            native_id = open_scheduler(view.scheduler).begin_again(run_dir, job, after)
        except (PreflightFailed, UsageError):
            scheduled.take_back(run_dir, attempt)
            raise
        return Restarted(
            view.run_id,
            run_dir,
            attempt,
            () if wanted is None else wanted.changed,
            tuple(found.words for found in renewed.changes),
            recorded,
            has_checkpoint(run_dir, view.spec),
            native_id,
            has_copies=all(found.pinned for found in renewed.changes),
            checkpoint_step=find_newest_step(run_dir, view.spec),
            code_moved=renewed.moved,
            code_unknown=renewed.unknown,
        )
