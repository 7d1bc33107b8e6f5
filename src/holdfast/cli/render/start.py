"""A start in words: what a person should know after ``run -d``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.lease import Witness, join_holder, name_labels

from . import note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def print_started(
    run: str, state: Mapping[str, object], *, warnings: Sequence[str] = (), say: Callable[[str], None] = note
) -> None:
    """Print the run as it is called (its id, or PLACE:ID); the rest is said beside it, a line at a time."""
    print(run, flush=True)
    for line in (*describe_start(state, run), *warnings):
        say(line)


def describe_start(state: Mapping[str, object], run: str) -> list[str]:
    """How a run that was begun stands, a line at a time, with what may be typed next."""
    follow = f"holdfast attach {run}    stop: holdfast stop {run}"
    if state["kind"] == "waiting":
        held = _describe_busy(_list(state.get("blocked_by")))
        return [f"in line for cards: {held}", f"follow: {follow}"]
    if state["kind"] == "ended":
        refusal = state.get("refusal")
        lines = [f"ended already: {state['outcome']}, exit code {state['exit_code']}"]
        if isinstance(refusal, dict):
            lines += [refusal[key] for key in ("message", "hint") if refusal.get(key)]
        look = "why: holdfast diagnose" if state["outcome"] == "failed" and len(lines) == 1 else "look: holdfast show"
        return [*lines, f"{look} {run}    output: holdfast logs {run}"]
    devices = ", ".join(f"{device['index']} ({device['name']})" for device in _list(state.get("devices")))
    return [f"running on card {devices}" if devices else "running", f"follow: {follow}"]


def _list(value: object) -> list[Mapping[str, object]]:
    return value if isinstance(value, list) else []


def _describe_busy(busy: list[Mapping[str, object]]) -> str:
    """Who has the cards, each holder once."""
    held: dict[tuple[str, Witness], list[str]] = {}
    for one in busy:
        since = f" since {one['since']}" if one.get("since") else ""
        label = str(one["device"]) if one.get("index") is None else f"card {one['index']}"
        held.setdefault((f"{one['holder']}{since}", Witness(one["witness"])), []).append(label)
    return "; ".join(name_labels(labels) + join_holder(*holder, len(labels)) for holder, labels in held.items())
