"""What of an attempt's messages did not reach people, as its events say."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import read_events
from holdfast.agent.view.run_view import RunReach
from holdfast.core.messages.admission import SAME
from holdfast.host.files import fallback
from holdfast.host.process.processes import is_alive
from holdfast.model import wire
from holdfast.model.finding import Finding, Level
from holdfast.model.run import Outcome
from holdfast.model.units import format_count

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView

MOST = 5
SUPPRESSED = "suppressed"
ENDED, FAILED = "ended", "failed"
NOTIFY = "notify"
"""The check of ways (`agent.checks.environment`)."""
ABOUT_ASKED = frozenset({NOTIFY, "memory", "cards.whole", "container.limits", "data", "time.deadline"})
"""Checks that judge what a person has asked for; the others' warnings are about the machine (`holdfast preflight`)."""
TOLD_WITHIN_S = 3.0
"""How long whoever followed a run waits for what became of its last message."""
LOOK_S = 0.05
CUT_OFF = "its supervisor was gone before it could tell anybody"
WAYS = ("command", "webhook", "slack", "discord", "ntfy", "email")


def list_undelivered(view: RunView, events: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """A line for each way and what went wrong there last; how many messages were left out; and who never heard."""
    events = list(events)
    wrong: dict[str, tuple[str, str]] = {}
    left_out = 0
    for event in events:
        data = _read_told(event)
        if data is None:
            continue
        left_out += data.get(SUPPRESSED, SAME) != SAME
        problems = data.get("problems")
        for label, problem in problems.items() if isinstance(problems, Mapping) else ():
            if problem:
                wrong[str(label)] = (str(data.get("state") or "a message"), str(problem))
    lines = [f"{state}: not delivered: {label}: {problem}" for label, (state, problem) in list(wrong.items())[:MOST]]
    if left_out:
        count = format_count(left_out, "message")
        lines.append(f"{count} left out; `holdfast logs {view.run_id} --events` says why")
    if _was_cut_off(view, events):
        lines.append(f"{ENDED}: not delivered: {CUT_OFF}")
    return tuple(lines)


def list_start_warnings(run_dir: str, attempt: int) -> tuple[str, ...]:
    """A line for each warning of the checks before the start that is about what was asked for: limits, times, ways."""
    run_id, path = os.path.basename(run_dir), f"{wire.attempt_dir(run_dir, attempt)}/{wire.PREFLIGHT}"
    try:
        values = wire.parse_object(fallback.read(run_id, attempt, path), path)["findings"]
        found = [wire.decode(Finding, value) for value in values]
    except (OSError, KeyError, TypeError, wire.WireError):
        return ()
    wrong = [item for item in found if item.id in ABOUT_ASKED and item.level is Level.WARN]
    return tuple(f"warning: {item.id}: {item.subject}: {item.evidence}; {item.remedy}" for item in wrong[:MOST])


def find_untold(view: RunView) -> str:
    """Why nobody has heard of the end of a run whose job asks for that; empty where somebody has."""
    if not view.over or not _asks(view):
        return ""
    events = read_events(view.run_dir, view.attempt)
    if _was_cut_off(view, events):
        return CUT_OFF
    told = [data for event in events if (data := _read_told(event)) is not None and data.get("state") == ENDED]
    problems = told[-1].get("problems") if told and not told[-1].get(SUPPRESSED) else None
    if not isinstance(problems, Mapping) or not problems or not all(problems.values()):
        return ""
    return "; ".join(f"{label}: {problem}" for label, problem in problems.items())


def _was_cut_off(view: RunView, events: Iterable[Mapping[str, object]]) -> bool:
    """Whether the supervisor died between the end of the run and telling of it, by events that tell of that end."""
    if (
        not view.over
        or view.copy is not None
        or view.reach is not RunReach.HERE
        or not _asks(view)
        or _has_told(events)
    ):
        return False
    if not any(event.get("event") == "exit_recorded" for event in events):
        return False  # they cannot be read, or a full disk took none: what followed is not known either
    if view.state is None or view.state.supervisor is None or is_alive(view.state.supervisor):
        return False
    # It may have told between that look and its end.
    return not _has_told(read_events(view.run_dir, view.attempt))


def _asks(view: RunView) -> bool:
    """Whether the job wants its end to be told, such as it is."""
    notify, channels = view.spec.get("notify") or {}, view.spec.get("channels") or {}
    wanted = notify.get("on") or ()
    asked = ENDED in wanted or (FAILED in wanted and view.end is not None and view.end.outcome is not Outcome.SUCCEEDED)
    return asked and any(notify.get(way) or channels.get(way) for way in WAYS)


def _read_told(event: Mapping[str, object]) -> Mapping[str, object] | None:
    data = event.get("data")
    return data if event.get("event") == "notified" and isinstance(data, Mapping) else None


def await_told(view: RunView) -> tuple[str, ...]:
    """As `list_undelivered`, of an attempt that has just ended: its last message is waited for, for a moment."""
    tells = _asks(view)
    supervisor = view.state.supervisor if view.state is not None and view.reach is RunReach.HERE else None
    deadline = time.monotonic() + TOLD_WITHIN_S
    while True:
        events = read_events(view.run_dir, view.attempt)
        if not tells or _has_told(events) or time.monotonic() > deadline:
            return list_undelivered(view, events)
        if supervisor is None or not is_alive(supervisor):
            return list_undelivered(view, read_events(view.run_dir, view.attempt))
        time.sleep(LOOK_S)


def _has_told(events: Iterable[Mapping[str, object]]) -> bool:
    return any((data := _read_told(event)) is not None and data.get("state") == ENDED for event in events)
