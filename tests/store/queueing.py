"""Submissions and orders for tests of the queue's store."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.queue import CellState, NewCell, Order, OrderVerb, Submission
from holdfast.store.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE: dict[str, object] = wire.encode(JobSpec("digits", ("true",), "/"))
AT = "2026-11-20T10:00:00.000Z"
S = CellState


def cell(name: str, *needs: str, sha256: str | None = None, **fields: Any) -> NewCell:
    """A cell with a hash of its own."""
    return NewCell(name, needs=needs, sha256=sha256 if sha256 is not None else f"hash-of-{name}", **fields)


def submission(
    *cells: NewCell | str,
    group: str = "g",
    runs: str = "/runs",
    **fields: Any,
) -> Submission:
    """A submission of these cells; a word is a cell of that name."""
    made = tuple(cell(item) if isinstance(item, str) else item for item in cells)
    return Submission(group, BASE, made, runs, "/", ("holdfast", "submit"), "anna", AT, **fields)


def order(verb: OrderVerb, *cells: int, group: str | None = None, **values: object) -> Order:
    """An order about these cells, a group, or all."""
    return Order(verb, "anna", AT, group, tuple(map(str, cells)), values)


def states(queue: Queue, group: str | None = None) -> dict[str, CellState]:
    """Where each cell stands, by name."""
    return {found.name: found.state for found in queue.cells(group=group)}


def names(queue: Queue) -> list[str]:
    """Names in the order in which they would start."""
    return [found.name for found in queue.cells()]


def finish(queue: Queue, cell_id: int, last: CellState = S.DONE, **facts: object) -> None:
    """Take a queued cell through its life to `last`."""
    queue.move_on(cell_id, S.CLAIMED, run_id=f"20261120-100000-digits-{cell_id:04x}", attempts=1)
    queue.move_on(cell_id, S.RUNNING, started_at=1.0)
    if last is S.DONE:
        queue.move_on(cell_id, S.PRODUCED, ended_at=2.0)
    if last is not S.RUNNING:
        queue.move_on(cell_id, last, **facts)


def dump(queue: Queue) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the database, but whether the runs were looked at."""
    db = sqlite3.connect(f"file:{queue.path}?mode=ro", uri=True)
    try:
        tables = ("groups", "submissions", "cells", "needs")
        found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        meta = db.execute("SELECT key, value FROM meta WHERE key <> 'runs_unread' ORDER BY key").fetchall()
        found["groups"] = [row[1:] for row in found["groups"]]
        ids = [row[:2] for row in db.execute("SELECT id, name FROM groups")]
        by_id = dict(ids)
        found["cells"] = [(*row[:2], by_id[row[2]], *row[3:]) for row in found["cells"]]
        return {**found, "meta": [row for row in meta if row[1] not in (None, 0)]}
    finally:
        db.close()


def no_runs(_: Iterable[str], __: str) -> list[Any]:
    """No run directory has anything."""
    return []
