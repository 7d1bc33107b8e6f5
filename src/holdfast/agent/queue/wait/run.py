"""Waiting for one run, with every attempt that holdfast begins of it by itself. Nothing of the run is touched.

A run of which nobody is left is not waited for: nobody who only waits writes its end, so it might never come.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.view.follow import UNSTARTED_S, RunFollower, is_untaken
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.run_view import RunReach, build_unbegun_error, is_unstarted
from holdfast.agent.view.scheduled import SchedulerEar, apply_word, judge_end
from holdfast.core.run.outcome import EXIT_LOST
from holdfast.host.clock import monotonic_s
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, StorageError
from holdfast.model.identity import WaitStatus

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView

LOOK_AGAIN_S = 5.0
"""The longest time without a look, for what no event tells: a new attempt, a decision about one."""
EXIT_UNKNOWN = 69
"""It has ended, and how is not known: that is no success."""


def wait_for_run(run_dir: str, *, deadline: float | None) -> tuple[RunView, int | None]:
    """Sleep until a run is over; the last look, and its exit code, or None when the time was up first.

    One of which nobody is left is not waited for (`code_of_gone`, `describe_gone`); of a scheduler's run that decides.

    Raises:
        NoSuchRun: it has no attempt, and gets none.
        StorageError: nobody supervises it, or it cannot be looked at.
    """
    unstarted_since: float | None = None
    ear = SchedulerEar()
    with RunFollower(run_dir) as follow:
        while True:
            view = follow.look()
            heard = ear.listen(view)
            if view.over and heard.over and not is_followed(run_dir, view.attempt):
                return view, EXIT_UNKNOWN if view.exit_code is None else view.exit_code
            if heard.over and heard.word is not None and not view.over:
                return apply_word(view, heard.word), judge_end(view, heard.word)[1]
            if follow.is_gone() and not view.scheduler:
                # One of a scheduler may be begun again: that says so, above.
                return view, code_of_gone(view)
            _require_readable(view)
            if view.attempt == 0 and not view.scheduler:
                raise build_unbegun_error(view)
            unstarted_since = (unstarted_since or monotonic_s()) if view.state is None or is_untaken(view) else None
            if unstarted_since is not None and monotonic_s() - unstarted_since > UNSTARTED_S:
                verb = "show" if view.state is None else "adopt"
                raise StorageError(f"nobody supervises {view.run_id}", hint=f"holdfast {verb} {view.run_id}")
            limit_s = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - monotonic_s())
            if limit_s <= 0:
                return view if heard.word is None else apply_word(view, heard.word), None
            follow.rest(limit_s)


def code_of_gone(view: RunView) -> int:
    """Of a run that nobody is left of: the code that its end will have, as far as what was left behind proves it.

    An end that is decided has its code. A job that certainly never began counts as stopped. The status that a keeper
    left is the job's end; a 0 is no success where results were promised that nobody has looked at, or where the job or
    a person asked for something else. All else is lost.
    """
    if view.end is not None:
        return view.end.exit_code
    if is_unstarted(view):
        return EXIT_STOPPED
    try:
        code = wire.decode(WaitStatus, view.status).exit_code
    except wire.WireError:
        return EXIT_LOST
    return code if code or _promised_nothing(view) else EXIT_LOST


def _promised_nothing(view: RunView) -> bool:
    job = view.spec
    asked = view.desired is not None or os.path.lexists(f"{view.attempt_dir}/{wire.STOP}")
    return bool(job) and not asked and not any(job.get(name) for name in ("artifacts", "data", "expected_s"))


def describe_gone(view: RunView) -> str:
    """Of a run that nobody is left of: what was seen, and the command that has its end written."""
    return f"{view.run_id} is {view.condition}: {view.note}; its end is not on record: holdfast reconcile writes it"


def _require_readable(view: RunView) -> None:
    if not os.path.isdir(view.run_dir):
        raise StorageError(f"{view.run_dir} has gone", hint="somebody removed the run")
    if view.reach is RunReach.UNREADABLE:
        raise StorageError(f"{view.run_dir} cannot be read", hint="see its owner and permissions")
