"""Everything known about one attempt, gathered from its files; what is said about it is in `showing`.

Reads only. A part that is missing is left out or said to be missing; nothing is guessed: seeds that nobody stated are
"not stated".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from holdfast.agent import acting, observe
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun
from holdfast.model.run import Outcome

from .cards import is_simulated

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.model.verdict import Verdict

    from .runs import Found

PHASES = ("created", "preflight", "waiting", "starting", "running", "stopping", "finalizing", "ended")
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dossier:
    """One attempt: the look, its events, the findings of both check lists, and the last health sample."""

    view: RunView
    events: list[Facts]
    preflight: list[Facts]
    postflight: list[Facts]
    health: Facts
    earlier: list[Facts]
    failure: Verdict | None = None

    def describe_stall(self) -> list[tuple[str, object]]:
        """What its supervisor said of a live run that stands still; nothing when it goes on, or has ended."""
        said: dict[str, Facts] = {}
        for event in self.events:
            if event.get("event") in ("stalled", "recovered"):
                said.clear()
            if event.get("event") in ("stalled", "diagnosed"):
                said[str(event["event"])] = event
        if self.view.ended or "stalled" not in said:
            return []
        stall, found = said["stalled"], said.get("diagnosed", {}).get("data") or {}
        lines: list[tuple[str, object]] = [("seen", f"{(stall.get('data') or {}).get('what')}, at {stall.get('utc')}")]
        if found.get("class"):
            lines += [("class", f"{found['class']} ({found.get('confidence')})"), ("do", found.get("action"))]
        return [*lines, ("look", f"holdfast diagnose {self.view.run_id}")]

    def encode(self) -> Facts:
        """The JSON object of ``show --json``: desired, last committed and observed stay apart."""
        view = self.view
        return {
            "run_id": view.run_id,
            "name": view.name,
            "run_dir": view.run_dir,
            "attempt": view.attempt,
            "attempts": [*self.earlier, {"attempt": view.attempt, "condition": view.condition}],
            "condition": view.condition,
            "note": view.note,
            "ended": view.ended,
            "exit_code": view.exit_code,
            "desired": view.desired,
            "committed": view.state,
            "observed": {
                "at": view.observed_at,
                "by": os.uname().nodename,
                "supervisor": view.supervisor,
                "keeper": view.keeper,
                "job": view.job,
                "members": view.members,
                "rebooted": view.rebooted,
            },
            "reachability": {"reach": view.reach, "host": view.host},
            "unreadable": view.unreadable,
            "origin": view.record,
            "manifest": view.manifest,
            "simulated": is_simulated(view),
            "status": view.status,
            "exit": view.exit,
            "failure": self.failure,
            "heartbeat": view.heartbeat,
            "health": self.health,
            "preflight": self.preflight,
            "postflight": self.postflight,
            "phases": build_phases(self.events),
            "events": self.events,
            "seed": describe_seed(view),
        }


def gather(found: Found, attempt: int | None) -> Dossier:
    """Everything about one attempt, the newest unless told; a run that vanished is finished first.

    Raises:
        NoSuchRun: there is no such attempt.
    """
    view = acting.settle_and_look(found.run_dir)
    if attempt is not None:
        if attempt not in view.attempts:
            known = ", ".join(map(str, view.attempts)) or "none"
            raise NoSuchRun(f"{found.run_id} has no attempt {attempt}; it has {known}", hint="leave --attempt out")
        view = observe.observe(found.run_dir, attempt=attempt)
    earlier = [observe.observe(found.run_dir, attempt=number) for number in view.attempts if number != view.attempt]
    return Dossier(
        view=view,
        events=observe.read_events(found.run_dir, view.attempt),
        preflight=_read_findings(f"{view.attempt_dir}/{wire.PREFLIGHT}"),
        postflight=_read_findings(f"{view.attempt_dir}/{wire.POSTFLIGHT}"),
        health=_read_last(f"{view.attempt_dir}/{wire.HEALTH}"),
        earlier=[{"attempt": old.attempt, "condition": old.condition, "exit_code": old.exit_code} for old in earlier],
        failure=_judge(view),
    )


def _judge(view: RunView) -> Verdict | None:
    """Why it failed, as the failure note has it; None for what succeeded, was stopped or has not ended."""
    if view.end is None or view.end.outcome in (Outcome.SUCCEEDED, Outcome.STOPPED):
        return None
    from holdfast.agent.failure import judge_attempt

    return judge_attempt(view.run_dir, view.attempt, view.end)


def _read_findings(path: str) -> list[Facts]:
    try:
        value = wire.parse_object(files.read_bytes(path), path).get("findings")
    except (OSError, wire.WireError):
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_last(path: str) -> Facts:
    try:
        lines = list(files.read_lines(path))
        return wire.parse_object(lines[-1], path) if lines else {}
    except (OSError, wire.WireError):
        return {}


def build_phases(events: list[Facts]) -> list[Facts]:
    """Each lifecycle state that was entered, with when and for how many seconds (by the monotonic clock)."""
    entered = [event for event in events if event.get("event") in PHASES]
    found = []
    for event, following in zip_longest(entered, entered[1:]):
        begin, end = event.get("monotonic_s"), None if following is None else following.get("monotonic_s")
        known = isinstance(begin, (int, float)) and isinstance(end, (int, float)) and end >= begin
        found.append(
            {
                "phase": event["event"],
                "since": event.get("utc"),
                "seconds": round(end - begin, 6) if known else None,  # type: ignore[operator]  # known says numbers
            }
        )
    return found


def describe_seed(view: RunView) -> str:
    """The declared seed, or that none was stated (OBS-06)."""
    for source in (view.heartbeat, view.manifest, view.record.get("job")):
        seed = source.get("seed") if isinstance(source, dict) else None
        if seed is not None:
            return str(seed)
    return "not stated"
