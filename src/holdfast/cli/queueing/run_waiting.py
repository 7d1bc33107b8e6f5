"""Waiting for one run, with every attempt that holdfast begins of it by itself. Nothing of the run is touched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent import acting, observe
from holdfast.agent.changes import Changes
from holdfast.agent.observe import Reach
from holdfast.agent.retrying import may_be_followed
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import EXIT_TIMED_OUT, StorageError
from holdfast.model.run import Created

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView

LOOK_AGAIN_S = 5.0
"""The longest time without a look, for what no event tells: a new attempt, a decision about one."""
UNSTARTED_S = 20.0
"""How long a run may stay without any supervisor before it is not waited for any more."""
EXIT_UNKNOWN = 69
"""It has ended, and how is not known: that is no success."""


def wait_for_run(run_dir: str, *, deadline: float | None) -> tuple[RunView, int]:
    """Sleep until a run is over; the last look, and its exit code, or 124 when the time was up first.

    Raises:
        StorageError: nobody supervises it, or it cannot be looked at.
    """
    unstarted_since: float | None = None
    while True:
        view = observe.observe(run_dir)
        if view.vanished:
            view = acting.settle_and_look(run_dir)
        if view.over and not may_be_followed(view):
            return view, EXIT_UNKNOWN if view.exit_code is None else view.exit_code
        _require_readable(view)
        unstarted_since = (unstarted_since or monotonic_s()) if _is_unstarted(view) else None
        if unstarted_since is not None and monotonic_s() - unstarted_since > UNSTARTED_S:
            raise StorageError(f"nobody supervises {view.run_id}", hint=f"holdfast adopt {view.run_id}")
        limit_s = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - monotonic_s())
        if limit_s <= 0:
            return view, EXIT_TIMED_OUT
        with Changes(view.attempt_dir, local=view.reach is Reach.HERE) as changes:
            acting.watch_processes(changes, view)
            if observe.observe(run_dir).state == view.state:
                changes.wait(limit_s)


def _is_unstarted(view: RunView) -> bool:
    return view.state is None or (isinstance(view.state.state, Created) and view.state.supervisor is None)


def _require_readable(view: RunView) -> None:
    if not os.path.isdir(view.run_dir):
        raise StorageError(f"{view.run_dir} has gone", hint="somebody removed the run")
    if view.reach is Reach.UNREADABLE:
        raise StorageError(f"{view.run_dir} cannot be read", hint="see its owner and permissions")
