"""Stopping a run for a person: the words while it stops, and the account of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.agent import acting, observe
from holdfast.agent.retrying import may_be_followed
from holdfast.model.errors import EXIT_TIMED_OUT, StillAlive, UsageError
from holdfast.model.run import Finalizing, Stopping, Wish
from holdfast.model.units import parse_duration

from .render import note

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView

    from .runs import Found

_RUNGS = {
    "stop_requested": "asked to stop",
    "term_sent": "TERM sent",
    "kill_sent": "KILL sent",
    "timer": "time is up",
    "leftovers": "processes outlived the leader",
    "finalizing": "the job has ended; emptying the tree",
    "lease_released": "lease released",
    "ended": "ended",
}


def parse_wait(text: str | None) -> float | None:
    """Seconds of a ``--wait``; None when it was not given.

    Raises:
        UsageError: it is not a duration.
    """
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--wait: {error}", hint="write it like 90s or 5m") from error


class Teller:
    """Says on standard error what is new while a run stops; `quiet` says nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Begin with nothing said."""
        self._quiet = quiet
        self._said: set[str] = set()

    def __call__(self, view: RunView) -> None:
        """Hear one look."""
        state = view.state.state if view.state is not None else None
        if isinstance(state, Stopping):
            self._say(f"{view.run_id}: {state.rung.value.upper()} sent, waiting")
        elif isinstance(state, Finalizing) and state.stuck:
            self._say(f"{view.run_id}: survived KILL so far: {'; '.join(state.stuck)}")

    def _say(self, text: str) -> None:
        if not self._quiet and text not in self._said:
            self._said.add(text)
            note(text)


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of a stop: the last look, whether there was anything to do, and the events since it was asked."""

    view: RunView
    already: bool
    ladder: tuple[dict[str, Any], ...]

    @property
    def survivors(self) -> tuple[str, ...]:
        """What survived KILL."""
        return acting.survivors(self.view)

    @property
    def exit_code(self) -> int:
        """0: over. 76: something survived KILL. 124: it is still stopping."""
        if self.view.ended:
            return 0
        return StillAlive.exit_code if self.survivors else EXIT_TIMED_OUT

    def encode(self) -> dict[str, Any]:
        """The JSON object of ``stop --json``."""
        return {
            "run_id": self.view.run_id,
            "attempt": self.view.attempt,
            "already_ended": self.already,
            "condition": self.view.condition,
            "run_exit_code": self.view.exit_code,
            "exit_code": self.exit_code,
            "survivors": self.survivors,
            "ladder": self.ladder,
        }


def stop_run(found: Found, *, force: bool, reason: str, wait_s: float | None, quiet: bool) -> Stopped:
    """Stop a run and wait; see `holdfast.agent.acting.stop` for what it raises."""
    before = acting.settle_and_look(found.run_dir)
    if before.over and not may_be_followed(before):
        return Stopped(before, already=True, ladder=())
    seen = len(observe.read_events(found.run_dir, before.attempt))
    view = acting.stop(
        found.run_dir,
        Wish.STOP_NOW if force else Wish.STOP,
        by=acting.describe_caller(),
        reason=reason,
        wait_s=wait_s,
        tell=Teller(quiet=quiet),
    )
    if before.over and view.attempt == before.attempt:
        return Stopped(view, already=True, ladder=())
    seen = seen if view.attempt == before.attempt else 0
    events = observe.read_events(found.run_dir, view.attempt)[seen:]
    return Stopped(view, already=False, ladder=tuple(event for event in events if event.get("event") in _RUNGS))


def report_stop(stopped: Stopped) -> None:
    """Print the account: rung by rung with times, then where it stands."""
    view = stopped.view
    if stopped.already:
        print(f"{view.run_id} had already ended: {view.condition} (exit {view.exit_code})")
        return
    for event in stopped.ladder:
        print(f"  {str(event.get('utc', ''))[11:]}  {_describe(event)}")
    if view.ended:
        print(f"{view.run_id} {view.condition} (exit {view.exit_code}): {view.note}")
    elif stopped.survivors:
        print(f"{view.run_id} is not gone: KILL was sent, and these have not died: {'; '.join(stopped.survivors)}")
        note("a process in uninterruptible sleep dies when its kernel call returns; the lease stays held until then")
    else:
        print(f"{view.run_id} is still {view.condition}: {view.note}")
        note(f"it goes on stopping without us; holdfast stop --now {view.run_id} kills it")


def _describe(event: dict[str, Any]) -> str:
    data = event.get("data")
    facts = data if isinstance(data, dict) else {}
    words = _RUNGS[str(event["event"])]
    shown = [f"{key} {facts[key]}" for key in ("by", "timer", "processes", "survivors", "outcome") if facts.get(key)]
    return f"{words} ({', '.join(shown)})" if shown else words
