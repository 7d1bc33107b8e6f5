"""Questions to the queue's database, each answered from one transaction.

With ten thousand cells the indexes decide what these cost: what may start and what is shown first are walked in order,
never sorted; numbers by group and state come from an index alone.
"""

from __future__ import annotations

import heapq
import itertools
import json
from typing import TYPE_CHECKING

from ..model.errors import UsageError
from ..model.ids import is_run_id
from ..model.queue import ACTIVE_STATES, DEFAULT_GROUP, CellState, QueueSettings
from . import queue_rows as rows
from .queue_handing import find_ids, propose
from .queue_schema import read_meta

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from ..model.queue import Cell, Group

MOST_DURATIONS = 50
_ACTIVE = tuple(sorted(state.value for state in ACTIVE_STATES))


def find(db: sqlite3.Connection, words: Sequence[str]) -> tuple[Cell, ...]:
    """As `Queue.find`.

    Raises:
        UsageError: a word fits nothing.
    """
    ids: list[int] = []
    for word in words:
        found = _find_word(db, word)
        if not found:
            near = propose(db, word)
            raise UsageError(
                f"there is no cell, group or run {word!r} in the queue{near}", hint="`holdfast queue ls` lists them."
            )
        ids += found
    return tuple(rows.get_cells(db, dict.fromkeys(ids)))


def _find_word(db: sqlite3.Connection, word: str) -> list[int]:
    group, slash, name = word.partition("/")
    if slash:
        return find_ids(db, group, name or None)
    found = find_ids(db, DEFAULT_GROUP, word) or find_ids(db, word)
    if not found and is_run_id(word):
        found = [row[0] for row in db.execute("SELECT id FROM cells WHERE run_id = ?", (word,))]
    return found


def list_cells(db: sqlite3.Connection, group: str | None, states: Iterable[CellState], limit: int | None) -> list[Cell]:
    """As `Queue.cells`."""
    where, values = "c.state = ?", []
    if group is not None:
        row = db.execute("SELECT id FROM groups WHERE name = ?", (group,)).fetchone()
        if row is None:
            return []
        where, values = "c.group_id = ? AND c.state = ?", [row[0]]
    most = -1 if limit is None else limit
    query = f"{rows.SELECT_CELLS} WHERE {where}{rows.IN_ORDER} LIMIT ?"
    # One ordered walk of the index for each state: sorting all cells to show fifty would be what takes time.
    found = [db.execute(query, (*values, state.value, most)).fetchall() for state in dict.fromkeys(states) or CellState]
    merged = heapq.merge(*found, key=lambda row: (-row[4], row[5], row[0]))
    return [rows.read_cell(row) for row in itertools.islice(merged, limit)]


def count(db: sqlite3.Connection) -> dict[str, dict[CellState, int]]:
    """As `Queue.counts`."""
    names = dict(db.execute("SELECT id, name FROM groups ORDER BY id").fetchall())
    answer: dict[str, dict[CellState, int]] = {name: {} for name in names.values()}
    for group_id, state, number in db.execute("SELECT group_id, state, count(*) FROM cells GROUP BY group_id, state"):
        answer[names[group_id]][rows.read_state(state)] = number
    return answer


def list_groups(db: sqlite3.Connection) -> dict[str, Group]:
    """As `Queue.groups`."""
    found = map(rows.read_group, db.execute("SELECT * FROM groups ORDER BY id").fetchall())
    return {group.name: group for group in found}


def read_settings(db: sqlite3.Connection) -> QueueSettings:
    """As `Queue.settings`."""
    meta = read_meta(db)
    slots = meta.get("cpu_slots")
    return QueueSettings(
        queue_id=str(meta["queue_id"]),
        paused=bool(meta.get("paused")),
        draining=bool(meta.get("draining")),
        cpu_slots=slots if isinstance(slots, int) else None,
    )


def list_environments(db: sqlite3.Connection) -> frozenset[str]:
    """As `Queue.environments`."""
    heads = (json.loads(head) for (head,) in db.execute("SELECT head FROM submissions"))
    return frozenset(str(head.get("environment", "")) for head in heads)


def list_needs(db: sqlite3.Connection, cell_id: int) -> tuple[Cell, ...]:
    """As `Queue.needs_of`."""
    query = f"{rows.SELECT_CELLS} JOIN needs n ON n.need = c.id WHERE n.cell = ? AND c.state <> 'done' ORDER BY c.id"
    return tuple(rows.select_cells(db, query, (cell_id,)))


def list_durations(db: sqlite3.Connection, cell_id: int) -> tuple[float, ...]:
    """As `Queue.durations`."""
    query = (
        "SELECT d.ended_at - d.started_at FROM cells c JOIN submissions s ON s.seq = c.seq"
        " JOIN cells d ON d.group_id = c.group_id AND d.state = 'done' JOIN submissions t ON t.seq = d.seq"
        " WHERE c.id = ? AND t.base_hash = s.base_hash AND d.ended_at >= d.started_at"
        " ORDER BY d.ended_at DESC LIMIT ?"
    )
    return tuple(row[0] for row in db.execute(query, (cell_id, MOST_DURATIONS)))


def list_candidates(
    db: sqlite3.Connection, *, now: float, limit: int, without_groups: Iterable[str], cards: bool, slots: bool
) -> list[Cell]:
    """As `Queue.candidates`."""
    if not cards and not slots:
        return []
    names = list(without_groups)
    kind = "" if cards and slots else " AND c.cards > 0" if cards else " AND c.cards = 0"
    marks = ", ".join("?" * len(names))
    closed = [row[0] for row in db.execute(f"SELECT id FROM groups WHERE name IN ({marks})", names)]  # noqa: S608
    without = f" AND c.group_id NOT IN ({', '.join('?' * len(closed))})" if closed else ""
    query = (
        f"{rows.SELECT_CELLS} WHERE c.state = 'queued'{kind}{without}"
        f" AND (c.not_before IS NULL OR c.not_before <= ?){rows.IN_ORDER} LIMIT ?"
    )
    return rows.select_cells(db, query, (*closed, now, limit))


def list_active(db: sqlite3.Connection) -> list[Cell]:
    """As `Queue.active`."""
    marks = ", ".join("?" * len(_ACTIVE))
    return rows.select_cells(db, f"{rows.SELECT_CELLS} WHERE c.state IN ({marks}) ORDER BY c.id", _ACTIVE)


def find_next_time(db: sqlite3.Connection, now: float) -> float | None:
    """As `Queue.next_time`."""
    query = "SELECT min(not_before) FROM cells WHERE state = 'queued' AND not_before > ?"
    found = db.execute(query, (now,)).fetchone()
    return None if found is None or found[0] is None else float(found[0])
