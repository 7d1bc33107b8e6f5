"""What the cells of a sweep have come to, side by side: their parameters, where they stand, their numbers.

Numbers come from two places: what a job last logged (``heartbeat.json`` of its newest attempt) and the numbers in its
JSON results (declared artifacts, ``artifacts/metrics.json``). Those of a cell that is not proven done are what was
seen last, never a result: they are marked, and never the best. Everything here is read from files that jobs write, so
it is bounded, and what cannot be read is named.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.render import clean
from holdfast.host import files
from holdfast.model import wire
from holdfast.model.queue import CellState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.model.queue import Cell
    from holdfast.store.queue import Queue

MAX_METRICS_BYTES = 1 << 20
MOST_NUMBERS = 200
MOST_DEPTH = 4
LONGEST_NAME = 100
METRICS = "artifacts/metrics.json"
BEAT_FACTS = frozenset({"step", "epoch"})
"""Of a heartbeat's numbers those that say how far it is; times and sizes of saves are not the training's."""
_NOT_METRICS = frozenset({"schema", "time", "save_seconds", "last_durable_step", "dropped", "pid", "nonfinite"})
_HIGHER = re.compile(
    r"acc|score|f1|auc|(^|[._-])m?ap($|[._@-])|reward|return|bleu|rouge|recall|precision|r2|iou|psnr|ssim"
)
_LOWER = re.compile(r"loss|err|ppl|perplexity|mse|mae|rmse|wer|cer|fid|nll|regret")


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: `final` says whether its numbers are results. `problems` are files that could not be read."""

    cell: Cell
    metrics: dict[str, float] = field(default_factory=dict)
    final: bool = False
    problems: tuple[str, ...] = ()


def collect(queue: Queue, group: str) -> list[Row]:
    """Every cell of a group in the order in which it was handed in."""
    declared: dict[str, tuple[str, ...]] = {}
    rows = []
    for cell in sorted(queue.cells(group=group), key=lambda cell: cell.id):
        if cell.run_dir is None:
            rows.append(Row(cell))
            continue
        rows.append(read_row(cell, cell.run_dir, _list_artifacts(cell.run_dir, declared)))
    return rows


def _list_artifacts(run_dir: str, known: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The JSON files that may hold numbers: those declared, and the usual one."""
    if run_dir not in known:
        try:
            record = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
            names = record.get("job", {}).get("artifacts") or []
        except (OSError, wire.WireError, AttributeError):
            names = []
        found = [str(name) for name in names if str(name).endswith(".json") and ".." not in str(name).split("/")]
        known[run_dir] = tuple(dict.fromkeys([*(name for name in found if not os.path.isabs(name)), METRICS]))
    return known[run_dir]


def read_row(cell: Cell, run_dir: str, artifacts: Iterable[str]) -> Row:
    """The numbers of one run; results stand over what was last logged."""
    problems: list[str] = []
    attempt = _find_attempt(run_dir)
    beat = _read(f"{wire.attempt_dir(run_dir, attempt)}/{wire.HEARTBEAT}", problems) if attempt else {}
    metrics = {name: value for name, value in _numbers(wire.clean_heartbeat(beat)).items() if name not in _NOT_METRICS}
    for name in artifacts:
        metrics.update(_numbers(_read(f"{run_dir}/{name}", problems)))
    return Row(cell, metrics, final=cell.state is CellState.DONE, problems=tuple(problems))


def _find_attempt(run_dir: str) -> int:
    try:
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except OSError:
        return 0
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _read(path: str, problems: list[str]) -> dict[str, Any]:
    """A JSON object that a job wrote; absent is empty, unreadable is said."""
    try:
        return wire.parse_object(files.read_bytes(path, limit=MAX_METRICS_BYTES), path)
    except FileNotFoundError:
        return {}
    except (OSError, wire.WireError) as error:
        problems.append(f"{path}: {error}")
        return {}


def _numbers(values: dict[str, Any], prefix: str = "", depth: int = 1) -> dict[str, float]:
    """Dotted names to the numbers in a JSON object; truth values are none."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if len(found) >= MOST_NUMBERS:
            break
        name = clean(f"{prefix}{key}"[:LONGEST_NAME])
        if isinstance(value, dict) and depth < MOST_DEPTH:
            found.update(_numbers(value, f"{name}.", depth + 1))
        elif isinstance(value, float) or (
            isinstance(value, int) and not isinstance(value, bool) and abs(value) < wire.LARGEST_HEARTBEAT_NUMBER
        ):
            found[name] = value
    return found


# ---------------------------------------------------------------------------------------------------------- choosing


def list_params(rows: Sequence[Row]) -> list[str]:
    """The parameters in which the cells differ; all of them when there is one cell."""
    names = list(dict.fromkeys(name for row in rows for name in row.cell.params))
    if len(rows) <= 1:
        return names
    return [name for name in names if len({row.cell.params.get(name) for row in rows}) > 1]


def list_metrics(rows: Sequence[Row]) -> list[str]:
    """Every number's name, those that tell good from bad first; parameters and what is equal in all cells last."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    params = {name for row in rows for name in row.cell.params}

    def rank(name: str) -> tuple[bool, bool]:
        values = {row.metrics.get(name) for row in rows}
        return (name in params or (len(rows) > 1 and len(values) <= 1)), not (is_judged(name) or name in BEAT_FACTS)

    return sorted(names, key=rank)


def is_judged(name: str) -> bool:
    """Whether the name says what is better."""
    return bool(_HIGHER.search(name.lower()) or _LOWER.search(name.lower()))


def is_higher_better(name: str, mode: str | None = None) -> bool:
    """Whether more is better: as said (``min``, ``max``), else as the name suggests; a loss, if it says nothing."""
    if mode is not None:
        return mode == "max"
    return _HIGHER.search(name.lower()) is not None and _LOWER.search(name.lower()) is None


def find_best(rows: Sequence[Row], name: str, mode: str | None = None) -> Row | None:
    """The best cell by a number, among those that are proven done and have a finite one."""
    known = [row for row in rows if row.final and _is_finite(row.metrics.get(name))]
    if not known:
        return None
    choose = max if is_higher_better(name, mode) else min
    return choose(known, key=lambda row: row.metrics[name])


def differs(rows: Sequence[Row], name: str) -> bool:
    """Whether results differ in a number, so that one can be better than another."""
    return len({row.metrics[name] for row in rows if row.final and _is_finite(row.metrics.get(name))}) > 1


def sort_rows(rows: Sequence[Row], name: str, mode: str | None = None) -> list[Row]:
    """Best first; cells without a proven number behind those with one."""
    sign = -1.0 if is_higher_better(name, mode) else 1.0

    def key(row: Row) -> tuple[bool, bool, float, int]:
        value = row.metrics.get(name)
        finite = value is not None and math.isfinite(value)
        return not row.final, not finite, sign * value if finite and value is not None else 0.0, row.cell.id

    return sorted(rows, key=key)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def count_states(rows: Iterable[Row]) -> dict[CellState, int]:
    """How many cells stand where, in the order of the states."""
    counts = dict.fromkeys(CellState, 0)
    for row in rows:
        counts[row.cell.state] += 1
    return {state: number for state, number in counts.items() if number}


def encode_row(row: Row) -> dict[str, Any]:
    """A row for programs; what is not finite is text, because JSON has no number for it."""
    cell = row.cell
    return {
        "cell": cell.name,
        "state": cell.state,
        "final": row.final,
        "params": cell.params,
        "metrics": {name: value if math.isfinite(value) else str(value) for name, value in row.metrics.items()},
        "attempts": cell.attempts,
        "seconds": seconds_of(cell),
        "run_id": cell.run_id,
        "sha256": cell.sha256,
        "exit_code": cell.exit_code,
        "failure": cell.failure,
        "note": cell.note,
        "problems": list(row.problems),
    }


def seconds_of(cell: Cell) -> float | None:
    """From the start of a cell to its end; None before both are known."""
    if cell.started_at is None or cell.ended_at is None:
        return None
    return round(max(0.0, cell.ended_at - cell.started_at), 3)


def write_json(group: str, rows: Sequence[Row]) -> bytes:
    """The whole table as one JSON object."""
    content = {"schema": 1, "group": group, "cells": wire.encode([encode_row(row) for row in rows])}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
