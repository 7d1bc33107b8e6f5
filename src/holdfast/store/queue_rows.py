"""Rows of the queue's database as the types of `model.queue`, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..model import wire
from ..model.queue import Cell, CellState, Group, GroupKind, IfChanged, NewCell, Submission
from .queue_database import Damage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

SELECT_CELLS = (
    "SELECT c.id, g.name, c.name, c.state, c.priority, c.place, c.cards, c.not_before, c.open_needs, c.expected_s,"
    " c.params, c.sha256, s.lean, s.claims, c.run_id, s.runs_root, c.attempts, c.requeued, c.outcome, c.exit_code,"
    " c.failure, c.note, c.submitted_at, c.started_at, c.ended_at, c.accepts_changes"
    " FROM cells c JOIN groups g ON g.id = c.group_id JOIN submissions s ON s.seq = c.seq"
)
IN_ORDER = " ORDER BY c.priority DESC, c.place, c.id"
FACTS = frozenset(
    {"run_id", "attempts", "requeued", "outcome", "exit_code", "failure", "note", "started_at", "ended_at"}
    | {"not_before", "expected_s"}
)
"""The fields of a cell that its worker may set."""
_STATES = {state.value: state for state in CellState}


def read_cell(row: Sequence[Any]) -> Cell:
    """A cell of a row of `SELECT_CELLS`.

    Raises:
        Damage: it holds what was never written there.
    """
    try:
        return Cell(
            id=row[0],
            key=str(row[0]),
            group=row[1],
            name=row[2],
            state=_STATES[row[3]],
            priority=row[4],
            place=row[5],
            cards=row[6],
            slots=0 if row[6] else 1,
            not_before=row[7],
            open_needs=row[8],
            expected_s=row[9],
            params=json.loads(row[10]) if row[10] else {},
            sha256=row[11],
            lean=bool(row[12]),
            claims=row[13],
            run_id=row[14],
            runs_root=row[15],
            attempts=row[16],
            requeued=row[17],
            outcome=row[18],
            exit_code=row[19],
            failure=row[20],
            note=row[21],
            submitted_at=row[22],
            started_at=row[23],
            ended_at=row[24],
            accepts_changes=bool(row[25]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Damage(f"the row of cell {row[0]} is damaged: {error}") from error


def read_state(word: str) -> CellState:
    """A state of a row.

    Raises:
        Damage: there is none of that name.
    """
    try:
        return _STATES[word]
    except KeyError as error:
        raise Damage(f"{word!r} is no state of a cell") from error


def select_cells(db: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> list[Cell]:
    """The cells of a query that begins with `SELECT_CELLS`."""
    return [read_cell(row) for row in db.execute(query, values).fetchall()]


def get_cell(db: sqlite3.Connection, cell_id: int) -> Cell | None:
    """One cell; None when there is none of that id."""
    row = db.execute(f"{SELECT_CELLS} WHERE c.id = ?", (cell_id,)).fetchone()
    return None if row is None else read_cell(row)


def get_cells(db: sqlite3.Connection, ids: Iterable[int]) -> list[Cell]:
    """These cells, in this order; those that are not there are left out."""
    return [cell for cell_id in ids if (cell := get_cell(db, cell_id)) is not None]


def read_group(row: Sequence[Any]) -> Group:
    """A group of a row of its table.

    Raises:
        Damage: it holds what was never written there.
    """
    _, name, kind, max_parallel, paused, held, hold_after, source, made_at = row
    try:
        return Group(name, GroupKind(kind), max_parallel, bool(paused), held, hold_after, source, made_at)
    except ValueError as error:
        raise Damage(f"the row of group {name} is damaged: {error}") from error


def read_submission(db: sqlite3.Connection, cell_id: int) -> Submission | None:
    """The submission of a cell with that one cell; None when there is no such cell."""
    row = db.execute(
        "SELECT s.head, c.name, c.change, c.params, c.after, c.priority, c.not_before, c.expected_s, c.sha256,"
        " c.accepts_changes FROM cells c JOIN submissions s ON s.seq = c.seq WHERE c.id = ?",
        (cell_id,),
    ).fetchone()
    if row is None:
        return None
    head, name, change, params, after, priority, not_before, expected_s, sha256, accepts_changes = row
    try:
        cell = NewCell(
            name, _object(change), _object(params), tuple(after.split()), priority, not_before, expected_s, sha256
        )
        found = wire.decode(Submission, {**json.loads(head), "cells": []})
    except (ValueError, wire.WireError) as error:
        raise Damage(f"the submission of cell {cell_id} is damaged: {error}") from error
    if accepts_changes:
        # Somebody has looked at what changed and wants it so.
        found = replace(found, if_changed=IfChanged.RUN)
    return replace(found, cells=(cell,))


def _object(text: str) -> dict[str, Any]:
    return json.loads(text) if text else {}


def clean(text: str) -> str:
    """Text as SQLite can store it: lone surrogates (bytes that are no UTF-8) are written out."""
    return text.encode("utf-8", "backslashreplace").decode()
