"""Moving a cell on: which state may follow which, and what that does to the cells that need it (QUEUE-16).

No level is skipped: a cell that runs was claimed, one that is done has produced. The one short cut is that of lean
cells, whose record of the end is all the evidence that there will be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.errors import HoldfastError, InternalError
from ..model.queue import WAITING_STATES, CellState
from .queue_acts import note_done, withdraw_done
from .queue_rows import FACTS, clean, get_cell

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from ..model.queue import Cell

_S = CellState
_WAITING_NEXT = frozenset({_S.BLOCKED, _S.QUEUED, _S.HELD, _S.CANCELLED, _S.ELSEWHERE})
NEXT: dict[CellState, frozenset[CellState]] = {
    _S.BLOCKED: _WAITING_NEXT,
    _S.QUEUED: _WAITING_NEXT | {_S.CLAIMED},
    _S.HELD: _WAITING_NEXT,
    _S.CLAIMED: _WAITING_NEXT | {_S.RUNNING, _S.FAILED},
    _S.RUNNING: _WAITING_NEXT | {_S.PRODUCED, _S.FAILED},
    _S.PRODUCED: frozenset({_S.DONE, _S.FAILED, _S.HELD, _S.QUEUED}),
    _S.DONE: frozenset({_S.FAILED, _S.HELD}),
    _S.FAILED: _WAITING_NEXT,
    _S.CANCELLED: _WAITING_NEXT,
    _S.ELSEWHERE: frozenset({_S.QUEUED, _S.BLOCKED, _S.DONE, _S.FAILED, _S.HELD, _S.CANCELLED}),
}
"""What may follow; a state may always follow itself, with new facts."""


class CellMoved(HoldfastError):
    """The cell is not where the caller believed: somebody cancelled, held or cleared it meanwhile. Nothing changed."""

    code, exit_code, transient = "cell_moved", 75, True


def move(db: sqlite3.Connection, cell_id: int, state: CellState, facts: dict[str, Any]) -> Cell:
    """Move one cell on, inside a transaction; answers it as it is now.

    Raises:
        CellMoved: that state does not follow the one that it is in, or it is gone.
        InternalError: a fact is no fact of a cell.
    """
    cell = get_cell(db, cell_id)
    if cell is None:
        raise CellMoved(f"cell {cell_id} is not in the queue any more", hint="Its run, if it has one, stays.")
    if state is _S.QUEUED and cell.open_needs:
        state = _S.BLOCKED
    if state is not cell.state and not _may_follow(cell, state):
        raise CellMoved(
            f"{cell.label} is {cell.state.value} and cannot become {state.value}", details={"state": cell.state.value}
        )
    values = _check(cell, facts)
    if state is _S.HELD and facts.get("guarded"):
        values["guarded"] = 1
    names = ["state", *values]
    db.execute(
        f"UPDATE cells SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?",  # noqa: S608 - ours
        (state.value, *values.values(), cell_id),
    )
    if state is not cell.state:
        if state is _S.DONE:
            note_done(db, cell_id)
        elif cell.state is _S.DONE:
            withdraw_done(db, cell_id)
        if cell.state not in WAITING_STATES and "guarded" not in values:
            # What a run's directory tells from here on is newer than any order.
            db.execute("UPDATE cells SET guarded = 0 WHERE id = ? AND guarded", (cell_id,))
    moved = get_cell(db, cell_id)
    assert moved is not None
    return moved


def _may_follow(cell: Cell, state: CellState) -> bool:
    if cell.lean and cell.state in (_S.CLAIMED, _S.RUNNING) and state is _S.DONE:
        return True
    if cell.claims is not None and cell.state is _S.CLAIMED and state is _S.DONE:
        # Another box had it done before this one asked.
        return True
    return state in NEXT[cell.state]


def _check(cell: Cell, facts: dict[str, Any]) -> dict[str, Any]:
    values = {name: clean(value) if isinstance(value, str) else value for name, value in facts.items()}
    if values.pop("runs_root", cell.runs_root) != cell.runs_root:
        raise InternalError(f"{cell.label}: its runs are kept where its submission says, {cell.runs_root}")
    values.pop("guarded", None)
    if unknown := values.keys() - FACTS:
        raise InternalError(f"{', '.join(sorted(unknown))}: not for a worker to set")
    return values


def apply_runs(db: sqlite3.Connection, found: Iterable[Cell]) -> None:
    """After a rebuild: what the run directories say of cells of which only the journal was known.

    A cell whose last order came after its run's last attempt stands where the order put it, with its run. An entry
    without a key is a run that could not be read: every waiting cell that it may be of is held, because starting it
    could run it twice.
    """
    for run in found:
        if not run.key:
            _hold_suspects(db, run)
            continue
        number = int(run.key) if run.key.isascii() and run.key.isdigit() and len(run.key) < 19 else -1
        cell = get_cell(db, number)
        if cell is None or (cell.group, cell.name) != (run.group, run.name) or cell.run_id is not None:
            continue
        facts = {name: getattr(run, name) for name in FACTS - {"not_before", "expected_s", "requeued"}}
        facts = {name: clean(value) if isinstance(value, str) else value for name, value in facts.items()}
        seen = db.execute("SELECT from_attempt FROM cells WHERE id = ?", (number,)).fetchone()[0]
        state = run.state if run.attempts > seen or run.state is _S.RUNNING else cell.state
        if state is cell.state:
            facts["note"] = cell.note
        db.execute(
            f"UPDATE cells SET state = ?, guarded = ?, {', '.join(f'{name} = ?' for name in facts)} WHERE id = ?",  # noqa: S608 - ours
            (state.value, int(state is _S.HELD and run.state is _S.HELD), *facts.values(), number),
        )
        if state is _S.DONE:
            note_done(db, number)


def _hold_suspects(db: sqlite3.Connection, run: Cell) -> None:
    """Hold the waiting cells whose job has the name in the run's id, or all without one; lean ones by their own."""
    query = (
        "SELECT c.id, c.change, s.head, g.name, c.name FROM cells c JOIN submissions s ON s.seq = c.seq"
        " JOIN groups g ON g.id = c.group_id WHERE c.state IN ('queued', 'blocked')"
        " AND c.run_id IS NULL AND s.runs_root = ? AND s.lean = ?"
    )
    rows = db.execute(query, (run.runs_root, int(run.lean))).fetchall()
    if run.lean:
        suspects = [row[0] for row in rows if run.group in ("", row[3]) and run.name in ("", row[4])]
    else:
        suspects = [row[0] for row in rows if not run.name or _job_name(row[1], row[2]) == run.name]
    note = clean(run.note)
    db.executemany("UPDATE cells SET state = 'held', guarded = 1, note = ? WHERE id = ?", [(note, i) for i in suspects])


def _job_name(change: str, head: str) -> object:
    import json

    name = json.loads(change).get("name") if change else None
    return name if name is not None else json.loads(head)["base"].get("name")
