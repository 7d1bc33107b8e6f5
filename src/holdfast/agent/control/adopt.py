"""Giving a run whose supervisor is gone a new one; and ending one whose place is gone, on a person's word.

The run's lock is held from the look until the new supervisor is at work: of two who adopt at once one starts it, and
nobody calls off meanwhile what is being taken up.

From another box nothing proves that a run has ended: its host may only be unreachable. So nobody settles it by itself,
and it stays as it was last seen, until somebody who knows says so: the pod was deleted, the rental given back. Whose
word it was, when and why is kept in ``gone.json`` and in the events, and stands in the outcome's evidence. What
contradicts the word is looked at first: a lock that is held, and files that are still written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.view import observe
from holdfast.agent.view.follow import RunFollower
from holdfast.agent.view.run_view import Presence, RunReach
from holdfast.core.recorded_environment import RECORDED, restore_recorded
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.record import record
from holdfast.model.run import Ended, Finalizing, PlaceGone

from .act import require_actionable, supervise, wait_over
from .run_lock import hold_run_lock
from .scheduled.stop import refuse_elsewhere
from .settle import SETTLE_WAIT_S, end_by_successor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.view.run_view import RunView

ADOPT_WAIT_S = 10.0
"""How long a new supervisor has to take a run up."""

SILENT_S = 120.0
"""So long nothing of the attempt may have been written: a supervisor that lives writes more often."""
LONGEST_REASON = 500


@record
class Adopted:
    """A run that was given a supervisor; `supervised` is False when it was over before one was seen at work."""

    run_id: str
    attempt: int
    condition: str
    note: str
    supervised: bool
    supervisor_pid: int | None


def adopt_run(run_dir: str, *, environ: Mapping[str, str], gone: str | None = None) -> Adopted:
    """As `adopt`, or with `gone` as `declare_gone`, which say what they raise; answers for people and programs."""
    view = adopt(run_dir, environ=environ) if gone is None else declare_gone(run_dir, gone)
    supervisor = None if view.state is None else view.state.supervisor
    pid = None if supervisor is None else supervisor.pid
    return Adopted(view.run_id, view.attempt, view.condition, view.note, view.supervised, pid)


def adopt(run_dir: str, *, environ: Mapping[str, str]) -> RunView:
    """Give a run whose supervisor is gone a new one; answers the look that sees it at work.

    `environ` is what the job is made from if it had not begun; holdfast's own settings are those recorded with the run.

    Raises:
        UsageError: it has ended, or is supervised.
        StorageError: no supervisor took it up in `ADOPT_WAIT_S`.
    """
    with hold_run_lock(run_dir, what="adopt"):
        view = observe.observe_run(run_dir)
        refuse_elsewhere(view)
        require_actionable(view)
        if view.over:
            raise UsageError(f"{view.run_id} has ended ({view.condition})", hint=f"holdfast restart {view.run_id}")
        if view.supervised:
            who = "" if view.supervisor_process is None else f" (pid {view.supervisor_process.pid})"
            raise UsageError(
                f"{view.run_id} has a supervisor{who}; one is enough",
                hint=f"holdfast attach {view.run_id}",
            )
        rest = {name: value for name, value in environ.items() if name not in RECORDED}
        known = {**rest, **restore_recorded(view.record, environ)}
        supervise(view, known)
        _wait_adopted(run_dir, view.attempt, taken_up=True)
    # Without the lock: the new supervisor needs it to begin the attempt that follows by itself.
    return _wait_adopted(run_dir, view.attempt)


def _is_ending(view: RunView) -> bool:
    """Whether its job is gone, so that what is seen now is about to change."""
    state = None if view.state is None else view.state.state
    return isinstance(state, (Finalizing, Ended)) or view.job is Presence.GONE


def _wait_adopted(run_dir: str, attempt: int, *, taken_up: bool = False) -> RunView:
    """The look that sees it at work, or over; with `taken_up` the first that sees its supervisor.

    Raises:
        StorageError: there is none within `ADOPT_WAIT_S`.
    """
    deadline = clock.monotonic_s() + ADOPT_WAIT_S
    with RunFollower(run_dir, attempt) as follow:
        while True:
            view = follow.look()
            if view.over or (view.supervised and (taken_up or not _is_ending(view))):
                return view
            left_s = deadline - clock.monotonic_s()
            if left_s <= 0 and view.supervised:
                # Its job has ended, and to write that takes a while.
                return view
            if left_s <= 0:
                raise StorageError(
                    f"no supervisor took {view.run_id} up within {ADOPT_WAIT_S:.0f} s",
                    hint=f"see {wire.attempt_dir(run_dir, attempt)}/{wire.SUPERVISOR_LOG}",
                )
            follow.rest(left_s)


def declare_gone(run_dir: str, reason: str) -> RunView:
    """Have a run ended whose place is gone, because the caller says so; the look at what it is then.

    Raises:
        UsageError: it has ended, or it can be judged from here, or it was written a moment ago.
        ResourceBusy: somebody holds its lock.
        NotPermitted: it belongs to another account.
        StorageError: it cannot be read or written.
    """
    words = " ".join(reason.split())[:LONGEST_REASON]
    if not words:
        raise UsageError("--gone wants a reason", hint='for instance --gone "the pod was deleted"')
    with hold_run_lock(run_dir, what="adopt"):
        view = observe.observe_run(run_dir)
        _refuse(view)
        assert view.state is not None
        gone = PlaceGone(describe_caller(), clock.utc_now(), words, view.state.box)
        try:
            files.commit(f"{view.attempt_dir}/{wire.GONE}", wire.to_bytes(gone))
        except OSError as error:
            raise StorageError(f"{view.attempt_dir}: {error.strerror}", hint="see whether the disk is full") from error
        end_by_successor(view)
        return wait_over(run_dir, view.attempt, wait_s=SETTLE_WAIT_S)


def _refuse(view: RunView) -> None:
    """Raise what speaks against it."""
    if view.over:
        raise UsageError(f"{view.run_id} has ended ({view.condition})", hint=f"holdfast restart {view.run_id}")
    if view.reach is RunReach.UNREADABLE or view.state is None:
        raise StorageError(f"{view.run_id} cannot be read", hint=f"holdfast show {view.run_id} tells what can be")
    if view.reach is RunReach.HERE:
        raise UsageError(
            f"{view.run_id} can be judged from here: {view.condition}",
            hint=f"holdfast adopt {view.run_id}, or holdfast stop {view.run_id}",
        )
    if os.stat(view.run_dir).st_uid != os.geteuid():
        raise NotPermitted(f"{view.run_dir} belongs to another account", hint="ask its owner")
    if files.is_locked(f"{view.run_dir}/{wire.SUPERVISOR_LOCK}"):
        raise ResourceBusy(
            f"{view.run_id} has a supervisor: somebody holds its lock, so that place is not gone",
            hint=f"holdfast stop {view.run_id} where it runs",
        )
    age_s = _find_silence(view)
    if age_s < SILENT_S:
        raise UsageError(
            f"{view.run_id} was written {age_s:.0f} s ago: its place may live",
            hint=f"say it again when nothing was written for {SILENT_S:.0f} s",
        )


def _find_silence(view: RunView) -> float:
    """Seconds since anything of the attempt was written, by the clock of its file system."""
    try:
        newest = max(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(view.attempt_dir))
        mark = f"{view.run_dir}/{wire.RUN_LOCK}"
        os.utime(mark)
        return os.stat(mark).st_mtime - newest
    except OSError as error:
        raise StorageError(
            f"{error.filename or view.run_dir}: {error.strerror}", hint="see whether it answers"
        ) from error
