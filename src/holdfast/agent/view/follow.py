"""Follows a run: observes it again as soon as something has changed.

The attempts that holdfast begins by itself after a failed one are followed, too. Writes nothing, starts nothing and
settles nothing: a run of which nobody is left is shown as such (`RunView.vanished`), and `is_gone` says when that is
no moment between two supervisors any more.
"""

from __future__ import annotations

from holdfast.host import clock
from holdfast.host.process.processes import is_alive
from holdfast.model import wire

from . import observe, run_view
from .changes import POLL_S, ChangeWatch
from .retries import is_followed
from .run_view import RunReach, RunView

GONE_S = 2.0
"""How long nobody may be left before it counts: somebody may be giving the run a new supervisor just now."""
UNSTARTED_S = 20.0
"""How long a run may stay without any supervisor (`is_untaken`) before it is not waited for any more."""


class RunFollower:
    """Looks at a run, with sleeps between; use as a context manager."""

    def __init__(self, run_dir: str, attempt: int | None = None) -> None:
        """From `attempt` on to those that follow it by themselves; None: whichever is the newest."""
        self._run_dir, self._attempt, self._newest = run_dir, attempt or 0, attempt is None
        self._changes: ChangeWatch | None = None
        self._watched = -1
        self._view: RunView | None = None
        self._gone_since: float | None = None

    def __enter__(self) -> RunFollower:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give every descriptor back."""
        if self._changes is not None:
            self._changes.close()

    def look(self) -> RunView:
        """The run now."""
        while True:
            if self._newest:
                self._attempt = max(observe.list_attempts(self._run_dir), default=0)
            # The watch is older than the look: what changes in between wakes us.
            self._watch()
            view = self._view = observe.observe_run(self._run_dir, attempt=self._attempt)
            if not view.over or not is_followed(self._run_dir, self._attempt):
                break
            self._attempt += 1
        self._gone_since = (self._gone_since or clock.monotonic_s()) if view.vanished else None
        return view

    def is_gone(self) -> bool:
        """Whether nobody is left who could end it, and has not been for a while."""
        return self._gone_since is not None and clock.monotonic_s() - self._gone_since >= GONE_S

    def rest(self, limit_s: float) -> None:
        """Sleep until something about the run has changed since the last look, or for `limit_s` seconds."""
        assert self._changes is not None
        assert self._view is not None
        view = self._view
        if self._gone_since is not None or view.reach is not RunReach.HERE:
            limit_s = min(limit_s, POLL_S)
        watch_processes(self._changes, view)
        self._changes.wait(limit_s)

    def _watch(self) -> None:
        if self._changes is None or self._watched != self._attempt:
            if self._changes is not None:
                self._changes.close()
            self._changes = ChangeWatch(wire.attempt_dir(self._run_dir, self._attempt))
            self._watched = self._attempt


def is_untaken(view: RunView) -> bool:
    """Whether no supervisor has taken the attempt up, and none is left of the attempt before that it would wait for.

    One of a scheduler waits for that.
    """
    if not run_view.is_never_taken(view) or view.scheduler:
        return False
    before = observe.observe_run(view.run_dir, attempt=view.attempt - 1) if view.attempt > 1 else None
    if before is None or before.state is None or before.state.supervisor is None:
        return True
    return before.reach is not RunReach.HERE or not is_alive(before.state.supervisor)


def watch_processes(changes: ChangeWatch, view: RunView) -> None:
    """Wake when the supervisor, the keeper or the job of this look ends."""
    if view.state is None or view.reach is not RunReach.HERE:
        return
    keeper, job = run_view.recorded_processes(view.state.state)
    changes.watch(view.state.supervisor, keeper, job)
