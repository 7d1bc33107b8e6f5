"""Acts of the journal, made from what was handed in or ordered, and applied to the database.

Applying is a function of the act and of the database as the acts before it have left it. What an order means is worked
out once, when it is given (`queue_orders`), and stored with it, so a replay needs nothing that may have changed since.
A cell's row keeps in `from_attempt` how many attempts its run had had at the last such change: what the run directory
tells about attempts up to that one is older than the order.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from ..model import wire
from ..model.errors import StorageError
from ..model.queue import DEFAULT_GROUP, WAITING_STATES, CellState, OrderVerb
from .queue_handing import count_cards, describe_needs
from .queue_journal import SCHEMA, Act
from .queue_rows import clean
from .queue_schema import read_number, write_meta

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from ..model.queue import Order, Submission
    from .queue_handing import Plan
    from .queue_orders import Effects

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_WAITING = tuple(sorted(state.value for state in WAITING_STATES))
_RELEASED = "CASE WHEN open_needs > 0 THEN 'blocked' ELSE 'queued' END"
_INSERT = (
    "INSERT INTO cells (id, seq, group_id, name, state, priority, place, cards, not_before, open_needs, expected_s,"
    " params, change, after, sha256, submitted_at) VALUES (?, ?, ?, ?, 'queued', ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)"
)
REMEMBER_SETTINGS = ("paused", "draining", "cpu_slots")


# --- making ---------------------------------------------------------------------------------------------------------


def build_submission(submission: Submission, plan: Plan, *, queue_id: str, seq: int, now: float, first_id: int) -> Act:
    """The act of a submission: its new cells, with ids for what they need."""
    ids = {position: first_id + offset for offset, position in enumerate(plan.new)}
    cells = []
    for position in plan.new:
        cell = submission.cells[position]
        line: dict[str, Any] = {"name": cell.name}
        if cell.needs:
            line["after"] = cell.needs
            line["needs"] = [need if need >= 0 else ids[-1 - need] for need in plan.needs.get(position, [])]
        for name in ("change", "params", "priority", "not_before", "expected_s", "sha256"):
            if value := getattr(cell, name):
                line[name] = value
        cells.append(line)
    fields = {name: getattr(submission, name) for name in submission.__dataclass_fields__ if name != "cells"}
    head = {
        "schema": SCHEMA,
        "act": "submission",
        "queue": queue_id,
        "seq": seq,
        "time": now,
        "first_id": first_id,
        "next_id": first_id + len(cells),
        "submission": wire.encode(fields),
    }
    return Act(seq, head, cells)


def build_order(order: Order, effects: Effects, *, queue_id: str, seq: int, now: float, next_id: int) -> Act:
    """The act of an order."""
    head = {
        "schema": SCHEMA,
        "act": "order",
        "queue": queue_id,
        "seq": seq,
        "time": now,
        "next_id": next_id,
        "order": wire.encode(order),
        "effects": wire.encode(effects),
    }
    return Act(seq, head)


# --- applying -------------------------------------------------------------------------------------------------------


def apply(db: sqlite3.Connection, act: Act) -> None:
    """Apply one act, inside a transaction, and note that.

    Raises:
        StorageError: it is an act that this holdfast does not know.
    """
    head = act.head
    try:
        if head["act"] == "submission":
            _apply_submission(db, act)
        elif head["act"] == "order":
            _apply_order(db, OrderVerb(head["order"]["verb"]), head["order"], head["effects"])
        else:
            raise ValueError(f"unknown act {head['act']!r}")
        next_id = max(int(head["next_id"]), read_number(db, "next_id"))
    except (KeyError, ValueError, TypeError) as error:
        raise StorageError(
            f"act {act.seq} of the queue's journal cannot be applied: {error}",
            hint="Was it written by a newer holdfast? Use that one, or restore the file.",
        ) from error
    write_meta(db, applied=act.seq, next_id=next_id, queue_id=head["queue"])


def _apply_submission(db: sqlite3.Connection, act: Act) -> None:
    head, submission = act.head, act.head["submission"]
    now = head["time"]
    group_id = _upsert_group(db, submission, now)
    base = _ENCODE(submission["base"])
    db.execute(
        "INSERT INTO submissions (seq, base_hash, lean, claims, runs_root, head) VALUES (?, ?, ?, ?, ?, ?)",
        (
            *(act.seq, hashlib.sha256(base.encode()).hexdigest(), int(submission["lean"]), submission["claims"]),
            *(submission["runs_root"], _ENCODE(submission)),
        ),
    )
    first = head["first_id"]
    db.executemany(_INSERT, list(_rows(act, group_id, first, submission["base"])))
    pairs = [(first + i, need) for i, cell in enumerate(act.cells) for need in cell.get("needs", ())]
    if pairs:
        _apply_needs(db, pairs)


def _rows(act: Act, group_id: int, first: int, base: dict[str, Any]) -> Iterable[tuple[object, ...]]:
    now = act.head["time"]
    for cell_id, cell in enumerate(act.cells, first):
        change, params = cell.get("change"), cell.get("params")
        yield (
            *(cell_id, act.seq, group_id, cell["name"], cell.get("priority", 0), float(cell_id)),
            *(count_cards(base, change or {}), cell.get("not_before"), cell.get("expected_s")),
            *(_ENCODE(params) if params else "", _ENCODE(change) if change else ""),
            *(" ".join(cell.get("after", ())), cell.get("sha256", ""), now),
        )


def _upsert_group(db: sqlite3.Connection, submission: dict[str, Any], now: float) -> int:
    name = submission["group"]
    db.execute(
        "INSERT INTO groups (name, kind, max_parallel, paused, held, hold_after, source, made_at)"
        " VALUES (?, ?, ?, 0, '', ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " max_parallel = coalesce(excluded.max_parallel, max_parallel), source = coalesce(excluded.source, source),"
        " hold_after = CASE WHEN excluded.hold_after > 0 THEN excluded.hold_after ELSE hold_after END",
        (
            *(name, submission["kind"], submission["max_parallel"], submission["hold_after"]),
            *(None if submission["source"] is None else clean(submission["source"]), now),
        ),
    )
    if submission.get("paused"):
        db.execute("UPDATE groups SET paused = 1 WHERE name = ?", (name,))
    return int(db.execute("SELECT id FROM groups WHERE name = ?", (name,)).fetchone()[0])


def _apply_needs(db: sqlite3.Connection, pairs: list[tuple[int, int]]) -> None:
    # A need that is not there any more was cleared, and only what is proven done is, while somebody needs it.
    db.executemany("INSERT OR IGNORE INTO needs (cell, need) SELECT ?, id FROM cells WHERE id = ?", pairs)
    cells = sorted({cell for cell, _ in pairs})
    db.executemany(
        "UPDATE cells SET open_needs = (SELECT count(*) FROM needs n JOIN cells c ON c.id = n.need"
        " WHERE n.cell = cells.id AND c.state <> 'done') WHERE id = ?",
        [(cell,) for cell in cells],
    )
    db.executemany(f"UPDATE cells SET state = {_RELEASED} WHERE id = ?", [(cell,) for cell in cells])  # noqa: S608 - ours
    by_cell: dict[int, list[int]] = {}
    for cell, need in pairs:
        by_cell.setdefault(cell, []).append(need)
    words: dict[tuple[int, ...], str] = {}
    for cell, needs in by_cell.items():
        key = tuple(needs)
        if key not in words:
            words[key] = describe_needs(db, needs)
        if words[key]:
            db.execute("UPDATE cells SET note = ? WHERE id = ?", (words[key], cell))


def _apply_order(db: sqlite3.Connection, verb: OrderVerb, order: dict[str, Any], effects: dict[str, Any]) -> None:
    changed: list[list[Any]] = effects["cells"]
    if verb is OrderVerb.CANCEL:
        marks = ", ".join("?" * len(_WAITING))
        note = clean(f"cancelled by {order['by']}")
        values = [(note, seen, cell, *_WAITING) for cell, seen in changed]
        db.executemany(
            f"UPDATE cells SET state = 'cancelled', note = ?, from_attempt = ?"  # noqa: S608 - ours
            f" WHERE id = ? AND state IN ({marks}, 'elsewhere')",
            values,
        )
    elif verb in (OrderVerb.RETRY, OrderVerb.RESUME):
        _release(db, verb, changed, accepts=bool(order["values"].get("accept_changes")))
    elif verb in (OrderVerb.PAUSE, OrderVerb.DRAIN):
        note = clean(f"held by {order['by']}")
        db.executemany(
            "UPDATE cells SET state = 'held', note = ?, from_attempt = ?"
            " WHERE id = ? AND state IN ('queued', 'blocked')",
            [(note, seen, cell) for cell, seen in changed],
        )
    elif verb is OrderVerb.CLEAR:
        _clear(db, [cell for cell, _ in changed])
    for cell, facts in effects["edits"]:
        names = [name for name in ("priority", "place", "not_before") if name in facts]
        columns = ", ".join(f"{name} = ?" for name in names)
        db.execute(f"UPDATE cells SET {columns} WHERE id = ?", (*(facts[name] for name in names), cell))  # noqa: S608 - ours
    for name in ("paused", "held", "max_parallel", "hold_after"):
        if name in effects["group"]:
            db.execute(f"UPDATE groups SET {name} = ? WHERE name = ?", (effects["group"][name], order["group"]))  # noqa: S608 - ours
    settings = {name: effects["settings"][name] for name in REMEMBER_SETTINGS if name in effects["settings"]}
    write_meta(db, **settings)


def _release(db: sqlite3.Connection, verb: OrderVerb, changed: Sequence[Sequence[Any]], *, accepts: bool) -> None:
    """Let held cells go on; with RETRY also closed ones."""
    fits = {"held", "failed", "cancelled", "done"} if verb is OrderVerb.RETRY else {"held"}
    for cell, seen in changed:
        row = db.execute("SELECT state FROM cells WHERE id = ?", (cell,)).fetchone()
        if row is None:
            continue
        if row[0] == CellState.DONE.value and row[0] in fits:
            withdraw_done(db, cell)
        if row[0] in fits or row[0] in _WAITING:
            # What came after a failure was the pause before the next try; a person's word ends it.
            db.execute(
                f"UPDATE cells SET state = {_RELEASED}, note = '', from_attempt = ?, guarded = 0, requeued = 0,"  # noqa: S608 - ours
                " not_before = CASE WHEN ? > 0 THEN NULL ELSE not_before END,"
                " accepts_changes = max(accepts_changes, ?) WHERE id = ?",
                (seen, seen, int(accepts), cell),
            )


def withdraw_done(db: sqlite3.Connection, cell: int) -> None:
    """A cell is not proven done any more: what needs it waits for it again."""
    db.execute(
        "UPDATE cells SET open_needs = open_needs + 1, state = CASE state WHEN 'queued' THEN 'blocked' ELSE state END"
        " WHERE id IN (SELECT cell FROM needs WHERE need = ?)",
        (cell,),
    )


def note_done(db: sqlite3.Connection, cell: int) -> None:
    """A cell is proven done: what needs it needs one less, and may start at none."""
    db.execute(
        "UPDATE cells SET open_needs = open_needs - 1,"
        " state = CASE WHEN state = 'blocked' AND open_needs <= 1 THEN 'queued' ELSE state END,"
        " note = CASE WHEN state = 'blocked' AND open_needs <= 1 THEN '' ELSE note END"
        " WHERE id IN (SELECT cell FROM needs WHERE need = ?)",
        (cell,),
    )


def _clear(db: sqlite3.Connection, cells: Sequence[int]) -> None:
    ids = [(cell,) for cell in cells]
    db.executemany("DELETE FROM needs WHERE cell = ?", ids)
    db.executemany("DELETE FROM needs WHERE need = ?", ids)
    db.executemany("DELETE FROM cells WHERE id = ?", ids)
    db.execute("DELETE FROM submissions WHERE seq NOT IN (SELECT seq FROM cells)")
    db.execute("DELETE FROM groups WHERE name <> ? AND id NOT IN (SELECT group_id FROM cells)", (DEFAULT_GROUP,))
