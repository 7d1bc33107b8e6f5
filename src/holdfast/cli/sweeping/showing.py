"""The table of a sweep for people and spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from typing import TYPE_CHECKING

from holdfast.cli.render import note, print_json, table
from holdfast.host import files
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.queue import CellState
from holdfast.model.units import format_duration

from .results import (
    Row,
    count_states,
    differs,
    encode_row,
    find_best,
    is_judged,
    list_metrics,
    list_params,
    seconds_of,
    sort_rows,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.queue import Cell

MOST_COLUMNS = 5
"""Numbers side by side unless they were named; the others are named below the table."""
MOST_PROBLEMS = 5
NOT_FINAL = "~"
BEST = "*"
_SOON = frozenset({CellState.BLOCKED, CellState.QUEUED, CellState.HELD, CellState.CLAIMED})


def parse_sort(text: str | None) -> tuple[str | None, str | None]:
    """(metric, min or max or None) of ``--sort loss:min``.

    Raises:
        UsageError: the part behind the colon is neither.
    """
    if text is None:
        return None, None
    name, colon, mode = text.rpartition(":")
    if not colon:
        return text, None
    if mode not in {"min", "max"}:
        raise UsageError(f"--sort: {mode!r} is neither min nor max", hint=f"--sort {name}:min")
    return name, mode


def choose_metrics(rows: Sequence[Row], wanted: str | None, sort: str | None) -> tuple[list[str], list[str]]:
    """The numbers to show, and those that are left out.

    Raises:
        UsageError: one was named that no cell has; near names are proposed.
    """
    known = list_metrics(rows)
    if not known:
        # Nothing has logged anything yet, which is no mistake of who asks.
        return [], []
    named = [name.strip() for name in (wanted or "").split(",") if name.strip()]
    for name in [*named, *([sort] if sort is not None else [])]:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known[:20]) or 'none yet'}"
            raise UsageError(f"no cell has a number {name!r}", hint=hint)
    if named:
        return named, []
    params = {name for row in rows for name in row.cell.params}
    telling = [name for name in known if name not in params]
    shown = list(dict.fromkeys([*([sort] if sort is not None else []), *telling]))[:MOST_COLUMNS]
    return shown, [name for name in known if name not in shown]


def print_rows(group: str, rows: Sequence[Row], *, metrics: str | None, sort: str | None) -> None:
    """The table, what the marks mean, and how far it is."""
    name, mode = parse_sort(sort)
    shown, left = choose_metrics(rows, metrics, name)
    if name is not None:
        rows = sort_rows(rows, name, mode)
    params = list_params(rows)
    best = {
        column: find_best(rows, column, mode if column == name else None)
        for column in shown
        if (column == name or is_judged(column)) and differs(rows, column)
    }
    headers = ["cell", *params, "state", "att", "took", *shown]
    body = [
        [
            row.cell.name,
            *(row.cell.params.get(param) for param in params),
            row.cell.state.value,
            row.cell.attempts or None,
            _took(row.cell),
            *(_format(row, column, best=best.get(column)) for column in shown),
        ]
        for row in rows
    ]
    table(headers, body, right=range(len(params) + 2, len(headers)))
    if any(not row.final and row.metrics for row in rows):
        print(f"{NOT_FINAL} last seen of a cell that is not proven done: no result")
    if any(best.values()):
        print(f"{BEST} best of the cells that are done")
    if left:
        print(f"also: {', '.join(left[:20])} (--metrics NAME,NAME)")
    print(describe_progress(group, rows))
    _say_problems(rows)


def _took(cell: Cell) -> str | None:
    seconds = seconds_of(cell)
    return None if seconds is None else format_duration(seconds)


def _format(row: Row, column: str, *, best: Row | None) -> str | None:
    value = row.metrics.get(column)
    if value is None:
        return None
    text = f"{value:.6g}" if row.final else f"{NOT_FINAL}{value:.6g}"
    if best is None:
        return text
    # Equally good ones are all marked; the others keep the mark's room, so that the numbers stand in line.
    return f"{text} {BEST}" if row.final and value == best.metrics.get(column) else f"{text}{' ' * (len(BEST) + 1)}"


def describe_progress(group: str, rows: Sequence[Row]) -> str:
    """``night: 7 of 12 done, 2 running, 3 queued``."""
    counts = count_states(rows)
    done = counts.pop(CellState.DONE, 0)
    rest = ", ".join(f"{number} {state.value}" for state, number in counts.items())
    return f"{group}: {done} of {len(rows)} done" + (f", {rest}" if rest else "")


def _say_problems(rows: Sequence[Row]) -> None:
    problems = [f"{row.cell.name}: {text}" for row in rows for text in row.problems]
    for text in problems[:MOST_PROBLEMS]:
        note(f"cannot be read: {text}")
    if len(problems) > MOST_PROBLEMS:
        note(f"and {len(problems) - MOST_PROBLEMS} more that cannot be read")
    failed = [row.cell for row in rows if row.cell.state is CellState.FAILED]
    for cell in failed[:MOST_PROBLEMS]:
        note(f"{cell.label} failed: {cell.note or cell.failure or f'exit code {cell.exit_code}'}")


def print_rows_json(group: str, rows: Sequence[Row], *, sort: str | None) -> None:
    """The same for programs, with every number of every cell."""
    name, mode = parse_sort(sort)
    if name is not None:
        choose_metrics(rows, None, name)
        rows = sort_rows(rows, name, mode)
    best = find_best(rows, name, mode) if name is not None else None
    counts = {state.value: number for state, number in count_states(rows).items()}
    facts = {"group": group, "counts": counts, "best": None if best is None else best.cell.name}
    print_json({**facts, "cells": [encode_row(row) for row in rows]})


def format_csv(rows: Sequence[Row]) -> str:
    """The table as CSV: parameters as they are, numbers in full, ``final`` true only where they are results."""
    params = list(dict.fromkeys(name for row in rows for name in row.cell.params))
    metrics = list_metrics(rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    own = ["cell", "state", "final", "attempts", "seconds", "exit_code", "failure", "run_id", "sha256"]
    writer.writerow([*own, *(f"param.{name}" for name in params), *metrics])
    for row in rows:
        cell = row.cell
        facts = [cell.name, cell.state.value, str(row.final).lower(), cell.attempts, seconds_of(cell)]
        facts += [cell.exit_code, cell.failure, cell.run_id, cell.sha256]
        values = [*facts, *(cell.params.get(name) for name in params), *(row.metrics.get(name) for name in metrics)]
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def export(group: str, rows: Sequence[Row], path: str, *, overwrite: bool) -> None:
    """Write the whole table into a file, at once or not at all.

    Raises:
        UsageError: its ending tells no form.
        StorageError: it is there already, or cannot be written.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in {".csv", ".json"}:
        raise UsageError(f"{path}: the ending does not tell the form", hint="write to NAME.csv or NAME.json")
    if not overwrite and os.path.lexists(path):
        raise StorageError(f"{path} is there already", hint="--overwrite replaces it")
    data = format_csv(rows).encode("utf-8", "replace") if ending == ".csv" else write_json(group, rows)
    try:
        files.commit(path, data, mode=0o644)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}", hint="see df and the directory's permissions") from error
