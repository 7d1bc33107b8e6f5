"""Logged values for people: a table with a small curve of each, or the last rows; how far a training is, in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.run.progress import OWN_NAMES, spread_out, thin_out
from holdfast.model.units import format_count, format_duration

from . import clean, note, pairs, table

if TYPE_CHECKING:
    from holdfast.agent.view.live.metrics import Metrics, MetricSeries

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-=+*#@"
"""Of an output that has no such blocks."""
CURVE_CHARS = 30
COLUMNS = ("first", "last", "lowest", "highest", "step", "curve")


def print_metrics(found: Metrics) -> None:
    """How far it is, and a row for each value that it logged."""
    pairs([("run", f"{found.run_id}: {found.condition}"), ("progress", describe_progress(found) or "not told")])
    if not found.series:
        note("it has logged no values: a script does so with `run.log(loss=...)` of holdfast.training")
        return
    rows = [(one.name, *_describe(one), draw_curve(one.curve) or None) for one in found.series]
    table(("name", *COLUMNS), rows, right=(1, 2, 3, 4, 5))
    _note_faults(found, "")


def print_comparison(found: Sequence[Metrics], labels: Sequence[str]) -> None:
    """The same value of several runs in rows below each other; their curves have one axis of steps and of values."""
    rows = []
    for name in dict.fromkeys(one.name for metrics in found for one in metrics.series):
        courses = [
            (label, one)
            for label, metrics in zip(labels, found, strict=True)
            for one in metrics.series
            if one.name == name
        ]
        curves = draw_curves([one for _, one in courses])
        rows += [(name, label, *_describe(one), curve) for (label, one), curve in zip(courses, curves, strict=True)]
    if rows:
        table(("name", "run", *COLUMNS), rows, right=(2, 3, 4, 5, 6))
    for label, metrics in zip(labels, found, strict=True):
        if not metrics.series:
            note(f"{label} has logged none of these")
        _note_faults(metrics, f"{label}: ")


def _describe(one: MetricSeries) -> tuple[str | int | None, ...]:
    numbers = (one.first, one.last, one.lowest, one.highest)
    return *(None if value is None else f"{value:.6g}" for value in numbers), one.last_step


def _note_faults(found: Metrics, whose: str) -> None:
    for one in found.series:
        if one.nonfinite:
            what = "is no finite number" if one.nonfinite == 1 else "are no finite numbers"
            note(f"{whose}{one.name}: {one.nonfinite} of {format_count(one.count, 'value')} {what}")
    if found.unread:
        note(f"{whose}{format_count(found.unread, 'line')} could not be read")


def print_last_rows(found: Metrics, lines: int) -> None:
    """The last rows as they were logged, a column for each name."""
    rows = found.rows[-lines:] if lines else ()
    names = list(dict.fromkeys(name for row in rows for name in row if name not in OWN_NAMES))
    cells = [(row.get("step"), *(_show(row.get(name)) for name in names)) for row in rows]
    table(("step", *names), cells, right=range(len(names) + 1))


def print_row(row: Mapping[str, object]) -> None:
    """One row as it comes, in one line; nothing of one without values."""
    cells = [f"{name} {_show(value)}" for name, value in row.items() if name not in OWN_NAMES]
    if cells:
        print(clean("  ".join([f"step {row.get('step', '-')}", *cells])), flush=True)


def describe_progress(found: Metrics) -> str:
    """``step 1895 of 5000 (38 %), 12.5 steps/s, about 4m10s left``; empty when no heartbeat says a step."""
    return say_progress(found.step, found.planned_steps, found.steps_per_s, found.left_s)


def say_progress(step: object, planned: object, pace: object, left_s: float | None) -> str:
    """As `describe_progress`, of the values of a heartbeat."""
    if not isinstance(step, int):
        return ""
    words = [f"step {step}"]
    if isinstance(planned, int) and planned > 0:
        words = [f"step {step} of {planned} ({100 * step // planned} %)"]
    if isinstance(pace, (int, float)) and pace > 0:
        words.append(f"{pace:.3g} steps/s")
    if left_s is not None:
        words.append(f"about {format_duration(left_s)} left")
    return ", ".join(words)


def draw_curve(values: Sequence[float], width: int = CURVE_CHARS) -> str:
    """The course of a value in one line, from its lowest to its highest."""
    points = thin_out(values, width)
    return _draw(points, min(points), max(points)) if len(points) > 1 else ""


def draw_curves(found: Sequence[MetricSeries], width: int = CURVE_CHARS) -> list[str | None]:
    """As `draw_curve`, of one value of several runs: all from the first step to the last, and to one scale."""
    steps = [step for one in found for step in one.curve_steps]
    values = [value for one in found for value in one.curve]
    if len(set(steps)) < 2:
        return [None for _ in found]
    laid = [
        spread_out(list(zip(one.curve_steps, one.curve, strict=True)), min(steps), max(steps), width) for one in found
    ]
    return [_draw(cells, min(values), max(values)).rstrip() or None for cells in laid]


def _draw(values: Sequence[float | None], low: float, high: float) -> str:
    marks = BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else LETTERS
    # Halves: the difference of two values may be more than a float holds.
    span = (high / 2 - low / 2) or 1.0
    at = [None if value is None else int((value / 2 - low / 2) / span * len(marks)) for value in values]
    return "".join(" " if place is None else marks[max(0, min(len(marks) - 1, place))] for place in at)


def _show(value: object) -> str | None:
    return f"{value:.6g}" if isinstance(value, float) else None if value is None else str(value)


def describe_beat(beat: Mapping[str, object]) -> str:
    """What else a heartbeat says, for people: epoch, phase, the last checkpoint."""
    known = {"epoch": "epoch", "phase": "phase", "nonfinite": "values that were no numbers"}
    return ", ".join(f"{words} {beat[key]}" for key, words in known.items() if beat.get(key) not in (None, 0, ""))
