"""What a training logged, as numbers: ``metrics.jsonl`` of its attempts, merged by step, and the last heartbeat.

A job writes these files: lines that are no objects, and values that are no numbers, are counted and left out.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.agent.view.observe import list_attempts, observe_run
from holdfast.core.run.progress import OWN_NAMES, estimate_left, thin_out
from holdfast.core.run.stall import read_count
from holdfast.host.clock import epoch_s
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.record import record, replace

MOST_NAMES = 200
CURVE_POINTS = 60
SAMPLED_BYTES = 1 << 20
"""A file up to this size is read whole for a curve; of a larger one `CURVE_POINTS` lines are."""
LONGEST_LINE = 64 * 1024
LAST_BYTES = 64 * 1024
"""How much of a file's end is read for the last value of each name."""
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How a row of strict JSON has what is no finite number."""


@record
class MetricSeries:
    """One logged value over the steps. `count` values, of which `nonfinite` are no numbers (and count nowhere else).

    `curve` has a few points of it, each the mean of those that it stands for, and `curve_steps` their steps.
    """

    name: str
    count: int
    nonfinite: int
    first: float | None
    last: float | None
    lowest: float | None
    highest: float | None
    last_step: int | None
    curve: tuple[float, ...]
    curve_steps: tuple[float, ...]


@record
class Metrics:
    """What a run logged, and how far its last heartbeat says that it is; None where nothing says so.

    `rows` are the logged rows, a step once: that of the newest attempt. `unread` lines could not be read.
    """

    run_id: str
    condition: str
    attempts: tuple[int, ...]
    step: int | None
    planned_steps: int | None
    steps_per_s: float | None
    left_s: float | None
    series: tuple[MetricSeries, ...]
    rows: tuple[dict[str, Any], ...]
    unread: int


@record
class ManyMetrics:
    """What several runs logged, in the order in which they were named."""

    runs: tuple[Metrics, ...]


def read_metrics(run_dir: str, attempts: Sequence[int] | None = None) -> Metrics:
    """The metrics of some attempts of a run (None: all)."""
    view = observe_run(run_dir)
    chosen = tuple(attempts) if attempts is not None else list_attempts(run_dir)
    rows: dict[object, dict[str, Any]] = {}
    unread = 0
    for attempt in chosen:
        found, bad = _read_rows(f"{wire.attempt_dir(run_dir, attempt)}/{wire.METRICS}")
        unread += bad
        if found and isinstance(begun := found[0].get("step"), int):
            # What an attempt before had done beyond its last checkpoint was done again.
            rows = {step: row for step, row in rows.items() if not isinstance(step, int) or step < begun}
        for number, row in enumerate(found):
            step = row.get("step")
            key: object = step if isinstance(step, int) else (attempt, number)
            rows[key] = {**rows.get(key, {}), **row}
    kept = list(rows.values())
    beat = view.heartbeat
    pace = beat.get("steps_per_s")
    return Metrics(
        run_id=view.run_id,
        condition=view.condition,
        attempts=chosen,
        step=_whole(beat.get("step")),
        planned_steps=_whole(beat.get("planned_steps")),
        steps_per_s=pace if isinstance(pace, (int, float)) and not isinstance(pace, bool) else None,
        left_s=None if view.end is not None else estimate_left(beat, epoch_s()),
        series=tuple(_describe(name, kept) for name in _list_names(kept)),
        rows=tuple(kept),
        unread=unread,
    )


def select_values(found: Metrics, names: Sequence[str]) -> Metrics:
    """The metrics with these values alone; as they are without names."""
    if not names:
        return found
    kept = [_choose(row, names) for row in found.rows]
    return replace(found, rows=tuple(kept), series=tuple(_describe(name, kept) for name in _list_names(kept)))


def list_values(found: Metrics) -> dict[str, None]:
    """The names of all values that were logged, each once."""
    return {name: None for row in found.rows for name in row if name not in OWN_NAMES}


def parse_row(line: bytes, names: Sequence[str] = ()) -> dict[str, Any]:
    """One logged row; with `names` only these of its values. Empty where it is none."""
    rows, _ = _parse([line])
    return _choose(rows[0], names) if rows else {}


def read_last_values(path: str) -> dict[str, Any]:
    """What stands last in a metrics file of each name, of the rows in its last `LAST_BYTES`; NaN is a value.

    Raises:
        OSError: it cannot be read.
    """
    rows, _ = _parse(files.read_last_lines(path, LAST_BYTES))
    found: dict[str, Any] = {}
    for row in rows:
        found.update((name, value) for name, value in row.items() if value is not None)
    return {name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in found.items()}


def read_curve(path: str) -> tuple[str, tuple[float, ...]]:
    """The name of the loss that a metrics file has, and its curve in at most `CURVE_POINTS`; empty without one.

    Of a large file lines at even distances are read, so that it costs the same for any length.
    """
    try:
        size = os.stat(path).st_size
        rows = _read_rows(path)[0] if size <= SAMPLED_BYTES else _sample_rows(path, size)
    except OSError:
        return "", ()
    names = _list_names(rows)
    name = next((name for name in names if name == "loss"), next((name for name in names if "loss" in name), ""))
    return name, thin_out([value for row in rows if (value := _number(row.get(name))) is not None], CURVE_POINTS)


def _read_rows(path: str) -> tuple[list[dict[str, Any]], int]:
    try:
        lines = files.read_last_lines(path)
    except OSError:
        return [], 0
    return _parse(lines)


def _parse(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    rows, bad = [], 0
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad += 1
    return rows, bad


def _sample_rows(path: str, size: int) -> list[dict[str, Any]]:
    """Rows at even distances in a file."""
    found = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        for number in range(CURVE_POINTS * 2):
            file.seek(number * size // (CURVE_POINTS * 2))
            if number:
                file.readline(LONGEST_LINE)
            found.append(file.readline(LONGEST_LINE))
    return _parse(found)[0]


def _choose(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key in OWN_NAMES or not names or key in names}


def _list_names(rows: Iterable[dict[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        names.update(
            dict.fromkeys(key for key in row if key not in OWN_NAMES and not isinstance(row[key], (dict, list)))
        )
        if len(names) >= MOST_NAMES:
            break
    return list(names)[:MOST_NAMES]


def _describe(name: str, rows: Sequence[dict[str, Any]]) -> MetricSeries:
    having = [row for row in rows if name in row]
    values = [(value, row) for row in having if (value := _number(row[name])) is not None]
    numbers = [value for value, _ in values]
    steps = [
        number if (step := read_count(row.get("step"))) is None else step for number, (_, row) in enumerate(values)
    ]
    return MetricSeries(
        name=name,
        count=len(having),
        nonfinite=len(having) - len(values),
        first=numbers[0] if numbers else None,
        last=numbers[-1] if numbers else None,
        lowest=min(numbers, default=None),
        highest=max(numbers, default=None),
        last_step=_whole(having[-1].get("step")) if having else None,
        curve=thin_out(numbers, CURVE_POINTS),
        curve_steps=thin_out(steps, CURVE_POINTS),
    )


def _number(value: object) -> float | None:
    """A value as a finite float; None of anything else, also of a whole number that no float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
