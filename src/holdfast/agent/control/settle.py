"""Having a run of which nobody is left finished, by a new supervisor.

Whoever only looks calls nothing of this: only verbs that act have a vanished run settled, and that with the environment
recorded with the run, never with the caller's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.kept_environment import read_kept
from holdfast.agent.requests import write_request
from holdfast.agent.view import observe
from holdfast.agent.view.retries import read_retry
from holdfast.agent.view.run_view import is_unstarted
from holdfast.host import clock
from holdfast.model.errors import ResourceBusy
from holdfast.model.run import RequestKind, RunRequest

from .act import generation_of, supervise, wait_over
from .run_lock import can_lock, hold_run_lock
from .scheduled.stop import settle_over

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView

SETTLE_WAIT_S = 10.0
"""How long a run is waited for whose end a new supervisor writes."""


def settle_run(view: RunView, *, follow_on: bool = False) -> bool:
    """Have a run that vanished finished by a new supervisor; False when that could not be begun.

    What was lost and what was proven is the supervisor's to judge. Only its start is waited for. A run whose job had
    not started yet is called off: the environment of its job is not on record. With `follow_on` an attempt that was to
    follow by itself is begun, where its environment is kept in memory (`find_due`). One whose directory takes no locks
    is left to a person (`holdfast adopt`).
    """
    if not os.access(view.run_dir, os.W_OK) or os.stat(view.run_dir).st_uid != os.geteuid():
        return False
    if not can_lock(view.run_dir):
        # Then it could be settled twice, or beside somebody who takes it up: that is for a person to say.
        return False
    try:
        with hold_run_lock(view.run_dir, what="settle"):
            if not observe.observe_run(view.run_dir).vanished:
                # Somebody else was quicker, and whoever adopted it wants it to run: it is not called off.
                return False
            environ = find_due(view) if follow_on else None
            if environ is not None:
                supervise(view, environ)
            else:
                end_by_successor(view)
    except ResourceBusy:
        # Somebody takes it up or begins it again just now: perhaps the very restart that we are part of, whose stop
        # gives it a supervisor without us.
        return False
    return True


def end_by_successor(view: RunView) -> None:
    """Have a new supervisor write the end of a run of which nobody is left."""
    if is_unstarted(view) and view.desired is None:
        reason = f"its supervisor died before the job started; holdfast restart {view.run_id} starts it"
        write_request(
            view.run_dir, RunRequest(RequestKind.STOP, "holdfast", clock.utc_now(), reason, generation_of(view))
        )
    supervise(view)


def find_due(view: RunView) -> dict[str, str] | None:
    """The environment of an attempt that was to follow by itself, and that nobody wants stopped; None: it is not due.

    Without its environment it is not due either: nobody could begin it.
    """
    decided = read_retry(view.run_dir, view.attempt - 1).get("retry")
    return read_kept(view.run_id) if decided and is_unstarted(view) and view.desired is None else None


def settle_vanished(run_dir: str) -> RunView:
    """For a verb that acts: have a run that vanished finished first; the look at what it is then."""
    view = observe.observe_run(run_dir)
    if view.scheduler and not view.over:
        return settle_over(run_dir)
    if not view.vanished or not settle_run(view):
        return view
    return wait_over(run_dir, view.attempt, wait_s=SETTLE_WAIT_S)
