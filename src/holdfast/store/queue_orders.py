"""What an order comes to: which cells it changes, and how. Worked out once, when it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..model.errors import UsageError
from ..model.queue import ACTIVE_STATES, CLOSED_STATES, DEFAULT_GROUP, WAITING_STATES, CellState, OrderVerb
from .queue_handing import propose
from .queue_schema import read_meta

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from ..model.queue import Order

SMALLEST_GAP = 1e-6
"""Between two places; when halving comes below, the places are dealt out anew."""
_CANCELLED = WAITING_STATES | {CellState.ELSEWHERE}
_RETRIED = frozenset({CellState.FAILED, CellState.CANCELLED, CellState.HELD})
_EDITS: dict[str, tuple[type, ...]] = {
    "priority": (int,),
    "not_before": (int, float, type(None)),
    "max_parallel": (int, type(None)),
    "hold_after": (int,),
    "cpu_slots": (int, type(None)),
}


@dataclass(frozen=True, slots=True)
class Effects:
    """What an order changes. `cells` are pairs of id and attempts seen; `edits` pairs of id and new values."""

    cells: tuple[tuple[int, int], ...] = ()
    edits: tuple[tuple[int, dict[str, Any]], ...] = ()
    group: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        """The cells that it changes."""
        return tuple(dict.fromkeys([*(cell for cell, _ in self.cells), *(cell for cell, _ in self.edits)]))


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    state: CellState
    attempts: int
    label: str
    guarded: bool

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.label.partition("/")[0]


def plan_order(db: sqlite3.Connection, order: Order) -> Effects:
    """What the order changes now.

    Raises:
        UsageError: it names what is not there, does not fit, or holds values that it cannot have.
    """
    if order.group is not None and not db.execute("SELECT 1 FROM groups WHERE name = ?", (order.group,)).fetchone():
        near = propose(db, f"{order.group}/")
        raise UsageError(
            f"there is no group {order.group!r} in the queue{near}", hint="`holdfast queue ls` lists them."
        )
    return _PLANS[order.verb](db, order, _read_rows(db, order))


def _read_rows(db: sqlite3.Connection, order: Order) -> list[_Row]:
    """The cells that it is about: those named, else those of its group, else all."""
    query = (
        "SELECT c.id, c.state, c.attempts, g.name, c.name, c.guarded FROM cells c JOIN groups g ON g.id = c.group_id"
    )
    rows: list[tuple[Any, ...]] = []
    if order.cells:
        for key in dict.fromkeys(order.cells):
            number = int(key) if key.isascii() and key.isdigit() and len(key) < 19 else -1
            row = db.execute(f"{query} WHERE c.id = ?", (number,)).fetchone()
            if row is None:
                raise UsageError(f"there is no cell {key[:40]!r} in the queue any more", hint="`holdfast queue ls`")
            rows.append(row)
    elif order.group is not None:
        rows = db.execute(
            f"{query} WHERE g.name = ? ORDER BY c.priority DESC, c.place, c.id", (order.group,)
        ).fetchall()
    else:
        rows = db.execute(f"{query} ORDER BY c.priority DESC, c.place, c.id").fetchall()
    return [
        _Row(cell_id, CellState(state), attempts, f"{group}/{name}", bool(guarded))
        for cell_id, state, attempts, group, name, guarded in rows
    ]


def _pick(
    order: Order, rows: list[_Row], fitting: frozenset[CellState], *also: CellState
) -> tuple[tuple[int, int], ...]:
    """Those in a state that fits. Cells that were named and of which none does (nor is in `also`) are a mistake."""
    if order.cells and not any(row.state in fitting or row.state in also for row in rows):
        states = ", ".join(f"{row.label} is {row.state.value}" for row in rows[:10])
        words = " or ".join(sorted(state.value for state in fitting))
        raise UsageError(f"{order.verb.value}: {states}", hint=f"It is for cells that are {words}.")
    return tuple((row.id, row.attempts) for row in rows if row.state in fitting)


def _pause(_: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    if order.cells:
        return Effects(_pick(order, rows, frozenset({CellState.QUEUED, CellState.BLOCKED}), CellState.HELD))
    if order.group is None:
        return Effects(settings={"draining" if order.verb is OrderVerb.DRAIN else "paused": 1})
    why = order.values.get("held")
    return Effects(group={"held": why} if isinstance(why, str) and why else {"paused": 1})


def _resume(_: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    held = _pick(order, rows, frozenset({CellState.HELD}))
    if order.cells:
        return Effects(held)
    # Cells whose run could not be read may have run: those are let go by name only.
    guarded = {row.id for row in rows if row.guarded}
    held = tuple(pair for pair in held if pair[0] not in guarded)
    if order.group is None:
        return Effects(held, settings={"paused": 0, "draining": 0})
    return Effects(held, group={"paused": 0, "held": ""})


def _cancel(_: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    return Effects(_pick(order, rows, _CANCELLED, *ACTIVE_STATES))


def _retry(_: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    also = {CellState.DONE} if order.values.get("done") is True and order.cells else set()
    found = _pick(order, rows, _RETRIED | also)
    guarded = set() if order.cells else {row.id for row in rows if row.guarded}
    return Effects(tuple(pair for pair in found if pair[0] not in guarded))


def _move(db: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    """New places among the cells of the same priority, the moved ones in the order that they have."""
    if not rows:
        return Effects()
    to, moved = order.values.get("to"), {row.id for row in rows}
    everyone = db.execute("SELECT id, priority, place FROM cells ORDER BY priority DESC, place, id").fetchall()
    ours = [row for row in everyone if row[0] in moved]
    others = [row for row in everyone if row[0] not in moved]
    if to == "before":
        index = _find_target(order, others, moved)
        return Effects(edits=_place(others, index, ours))
    if to not in ("first", "last"):
        raise UsageError(f"move: {to!r} is no place", hint="first, last, or before a cell")
    places = [row[2] for row in everyone]
    start = min(places) - len(ours) if to == "first" else max(places) + 1
    return Effects(edits=tuple((row[0], {"place": start + i}) for i, row in enumerate(ours)))


def _find_target(order: Order, others: list[tuple[int, int, float]], moved: set[int]) -> int:
    key = str(order.values.get("key"))
    if key in map(str, moved):
        raise UsageError("move: a cell cannot stand before itself", hint="Name another cell.")
    for index, row in enumerate(others):
        if str(row[0]) == key:
            return index
    raise UsageError(f"move: there is no cell {key[:40]!r} in the queue any more", hint="`holdfast queue ls`")


def _place(
    others: list[tuple[int, int, float]], index: int, ours: list[tuple[int, int, float]]
) -> tuple[tuple[int, dict[str, Any]], ...]:
    """Places for `ours` just before `others[index]`; everybody's anew when there is no room between the numbers.

    Places order cells of one priority, but are kept in one order for all, so that a later change of a priority has a
    meaning, too.
    """
    target = others[index][2]
    before = max((row[2] for row in others if row[2] < target), default=target - 1.0 - len(ours))
    step = (target - before) / (len(ours) + 1)
    if step >= SMALLEST_GAP:
        return tuple((row[0], {"place": before + step * (i + 1)}) for i, row in enumerate(ours))
    line = sorted(others, key=lambda row: (row[2], row[0]))
    at = next(i for i, row in enumerate(line) if row[0] == others[index][0])
    line[at:at] = ours
    return tuple((row[0], {"place": float(i)}) for i, row in enumerate(line))


def _edit(_: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    values = order.values
    for name, value in values.items():
        known = _EDITS.get(name)
        if known is None:
            raise UsageError(f"edit: {name!r} is not known", hint=f"Known: {', '.join(_EDITS)}.")
        if not isinstance(value, known) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
            raise UsageError(f"edit: {name} cannot be {value!r}", hint="A number is wanted.")
        if name in ("max_parallel", "hold_after", "cpu_slots") and isinstance(value, int) and value < 0:
            raise UsageError(f"edit: {name} cannot be {value}", hint="0 or more.")
        if isinstance(value, int) and abs(value) > 1 << 31:
            raise UsageError(f"edit: {name} cannot be {value}", hint="A number of a sane size is wanted.")
    of_cells: dict[str, Any] = {name: values[name] for name in ("priority", "not_before") if name in values}
    of_group: dict[str, Any] = {name: values[name] for name in ("max_parallel", "hold_after") if name in values}
    if of_group and order.group is None:
        raise UsageError(f"edit: {', '.join(of_group)} is a group's", hint="Name the group.")
    if "cpu_slots" in values and (order.group is not None or order.cells):
        raise UsageError("edit: cpu_slots is the whole queue's", hint="Name neither group nor cells.")
    if of_cells and order.group is None and not order.cells:
        raise UsageError(f"edit: {', '.join(of_cells)} is a cell's", hint="Name cells or a group.")
    edits: tuple[tuple[int, dict[str, Any]], ...] = ()
    if of_cells:
        edits = tuple((row.id, of_cells) for row in rows if order.cells or row.state not in CLOSED_STATES)
    settings = {"cpu_slots": values["cpu_slots"]} if "cpu_slots" in values else {}
    return Effects(edits=edits, group=of_group, settings=settings)


def _clear(db: sqlite3.Connection, order: Order, rows: list[_Row]) -> Effects:
    """Cells of wholly closed groups; of the default group, which is no set of its own, closed cells.

    What is not proven done stays as long as a cell that stays needs it.
    """
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    chosen: dict[int, _Row] = {}
    for name, cells in groups.items():
        closed = [row for row in cells if row.state in CLOSED_STATES]
        if len(closed) == len(cells) or name == DEFAULT_GROUP:
            chosen |= {row.id: row for row in closed}
        elif order.group is not None or order.cells:
            open_ones = [f"{row.label} is {row.state.value}" for row in cells if row.state not in CLOSED_STATES]
            raise UsageError(f"clear: {', '.join(open_ones[:10])}", hint="Cancel them, or wait until they have ended.")
    _keep_needed(db, chosen)
    settings = read_meta(db)
    return Effects(
        tuple((row.id, row.attempts) for row in chosen.values()),
        settings={name: settings.get(name) for name in ("paused", "draining", "cpu_slots")},
    )


def _keep_needed(db: sqlite3.Connection, chosen: dict[int, _Row]) -> None:
    """Leave out what is not proven done and needed by a cell that stays; a group goes whole or not at all."""
    unproven = [
        (need, cell)
        for need, cell in db.execute("SELECT need, cell FROM needs")
        if need in chosen and chosen[need].state is not CellState.DONE
    ]
    # Each round but the last keeps a group or a cell that the round before would have let go.
    for _ in range(len(chosen) + 1):
        kept = {need for need, cell in unproven if need in chosen and cell not in chosen}
        if not kept:
            return
        groups = {chosen[cell].group for cell in kept} - {DEFAULT_GROUP}
        for row in [row for row in chosen.values() if row.id in kept or row.group in groups]:
            del chosen[row.id]


_PLANS: dict[OrderVerb, Callable[[sqlite3.Connection, Order, list[_Row]], Effects]] = {
    OrderVerb.PAUSE: _pause,
    OrderVerb.DRAIN: _pause,
    OrderVerb.RESUME: _resume,
    OrderVerb.CANCEL: _cancel,
    OrderVerb.MOVE: _move,
    OrderVerb.EDIT: _edit,
    OrderVerb.RETRY: _retry,
    OrderVerb.CLEAR: _clear,
}
