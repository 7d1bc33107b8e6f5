"""A stop in words: what is new while it goes on, and the account of it afterwards."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.model.run import Finalizing, Stopping

from . import clean, note

if TYPE_CHECKING:
    from holdfast.agent.control.stop import StopResult
    from holdfast.agent.view.run_view import RunView

_RUNGS = {
    "stop_requested": "asked to stop",
    "term_sent": "TERM sent",
    "container_paused": "its container was paused by hand; letting it go on, so that it can end",
    "container_stays_paused": "its runtime did not let it go on",
    "kill_sent": "KILL sent",
    "timer": "time is up",
    "leftovers": "processes outlived the leader",
    "finalizing": "the job has ended; emptying the tree",
    "lease_released": "lease released",
    "ended": "ended",
}
_SHOWN = ("by", "timer", "processes", "survivors", "outcome", "why")


class StopReporter:
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
            # Whoever does not take it loses it, and nothing else: a restart goes on with the start.
            with suppress(OSError):
                note(text)


def print_stopped(stopped: StopResult) -> None:
    """Print the account: rung by rung with times, then where it stands."""
    run_id, ending = stopped.run_id, f"{stopped.condition} (exit {stopped.run_exit_code})"
    if stopped.already_ended:
        print(f"{run_id} had already ended: {ending}")
        if stopped.next_attempt:
            print(f"its job waits for attempt {stopped.next_attempt}, which will be stopped as it begins")
            note("take the job out of the queue now: holdfast queue cancel, and its name")
        if stopped.withdrawn:
            print(f"job {stopped.withdrawn}, which was to begin it again, is taken out of the queue")
        return
    for event in stopped.ladder:
        print(f"  {clean(str(event.get('utc', '')))[11:]}  {_describe(event)}")
    if stopped.ended:
        print(f"{run_id} {ending}: {stopped.note}")
    elif stopped.survivors:
        print(f"{run_id} is not gone: KILL was sent, and these have not died: {'; '.join(stopped.survivors)}")
        note("a process in uninterruptible sleep dies when its kernel call returns; the lease stays held until then")
    else:
        print(f"{run_id} is still {stopped.condition}{f': {stopped.note}' if stopped.note else ''}")
        if stopped.supervised:
            note(f"it goes on stopping without us; holdfast stop --now {run_id} kills it")
        else:
            note(
                f"no supervisor is seen to carry it out; holdfast logs --supervisor {run_id} says why, and the stop is "
                "kept for the next one"
            )


def _describe(event: dict[str, Any]) -> str:
    data = event.get("data")
    facts = data if isinstance(data, dict) else {}
    words = _RUNGS[str(event["event"])]
    shown = [f"{key} {facts[key]}" for key in _SHOWN if facts.get(key)]
    return f"{words} ({', '.join(shown)})" if shown else words
