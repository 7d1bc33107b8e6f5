"""Records as text: JSON, JSON lines, CSV. Every line is read; numbers must be finite."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from .tried import Checked, Damage, Untested

LARGEST_JSON = 128 << 20
LONGEST_LINE = 32 << 20
"""Both: what is parsed may be thirty times as large in memory."""
MOST_COLUMNS = 10_000
LONGEST_NAME = 200


def _refuse_constant(name: str) -> NoReturn:
    raise Damage(f"it holds {name}, which is no number")


def _read_float(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_constant(f"{text:.40}")


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Damage("a key is there twice in one object")
    return found


def _parse(data: bytes, where: str) -> None:
    try:
        json.loads(data, parse_constant=_refuse_constant, parse_float=_read_float, object_pairs_hook=_refuse_twice)
    except Damage as error:
        raise Damage(f"{where}{error}{_name_field(data)}") from None
    except (ValueError, RecursionError) as error:
        raise Damage(f"{where}no JSON: {error}") from error


def _name_field(data: bytes) -> str:
    """In words, where the first number is that is not finite; empty where there is none."""
    try:
        left: list[Iterator[tuple[str, Any]]] = [iter([("", json.loads(data))])]
    except (ValueError, RecursionError):
        return ""
    while left:
        found = next(left[-1], None)
        if found is None:
            left.pop()
            continue
        name, value = found
        if isinstance(value, float) and not math.isfinite(value):
            return f", in {name[1:]}" if name else ""
        if isinstance(value, (dict, list)):
            left.append(_list_parts(name, value))
    return ""


def _list_parts(name: str, value: dict[str, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    """What is in a value, one after the other, by names that are cut: a key may be as long as the file."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield f"{name}.{key}"[:LONGEST_NAME], part


def check_json(path: str) -> Checked:
    """Parse a file of JSON.

    Raises:
        Damage, Untested: it cannot be loaded; or it is larger than is parsed.
        OSError: it cannot be read.
    """
    if os.stat(path).st_size > LARGEST_JSON:
        raise Untested("larger than is parsed")
    with open(path, "rb") as file:
        _parse(file.read(), "")
    return Checked(whole=True)


def check_json_lines(path: str, *, live: bool = False) -> Checked:
    """Parse every line; a last one without an end was cut off, but in the file of a run that is `live`.

    Raises:
        Damage, Untested: a line cannot be parsed, or was cut off; or it is longer than is read.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            _refuse_long(line)
            if not line.endswith(b"\n"):
                if live:
                    break
                raise Damage(f"line {number} has no end: the write was cut off")
            if line.strip():
                _parse(line, f"line {number}: ")
    return Checked(whole=True)


def _refuse_long(line: str | bytes) -> None:
    if len(line) >= LONGEST_LINE:
        raise Untested("a line of it is longer than is read")


def _read_lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE):
        _refuse_long(line)
        yield line


def check_csv(path: str) -> Checked:
    """Read every row: as many cells as the first has, and finite numbers where a column has numbers.

    Raises:
        Damage, Untested: it is otherwise; or a line, or a cell, is longer than is read.
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        first = file.readline(LONGEST_LINE)
        delimiter = "\t" if path.lower().endswith(".tsv") else max(",;\t", key=first.count)
        file.seek(0)
        rows, head, numeric, bad = 0, list[str](), list[bool](), dict[int, int]()
        try:
            for row in csv.reader(_read_lines(file), delimiter=delimiter, strict=True):
                if not row:
                    continue
                rows += 1
                if rows == 1:
                    head, numeric = row, [True] * min(len(row), MOST_COLUMNS)
                    continue
                if len(row) != len(head):
                    raise Damage(f"row {rows} has {len(row)} cells, the first has {len(head)}")
                _look_at_row(row, rows, numeric, bad)
        except csv.Error as error:
            if "field limit" in str(error):
                raise Untested(f"row {rows + 1} has a cell that is longer than is read") from error
            raise Damage(f"row {rows + 1}: {error}") from error
    named = [(column, at) for column, at in bad.items() if numeric[column]]
    if named:
        column, at = named[0]
        raise Damage(f"row {at} has a number that is not finite, in column {column + 1} ({head[column]:.60})")
    return Checked(whole=True) if _has_end(path) else Checked(whole=False, why="its last line has no end")


def _has_end(path: str) -> bool:
    """Whether the last line is a whole one: without its end it may have been cut off, and be as long as the others."""
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) in (b"\n", b"\r")


def _look_at_row(row: list[str], number: int, numeric: list[bool], bad: dict[int, int]) -> None:
    for column, is_numeric in enumerate(numeric):
        cell = row[column]
        if not is_numeric or not cell:
            continue
        try:
            if not math.isfinite(float(cell)):
                bad.setdefault(column, number)
        except ValueError:
            numeric[column] = False
