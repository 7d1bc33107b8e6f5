"""What an order comes to: which jobs it changes, and how. Worked out once, when it is given."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.queue import (
    ACTIVE_STATES,
    CLOSED_STATES,
    DEFAULT_GROUP,
    WAITING_STATES,
    JobState,
    OrderVerb,
    QueueAct,
)
from holdfast.model.record import field, record, replace

from .admission import propose_names
from .schema import read_meta

if TYPE_CHECKING:
    import sqlite3

SMALLEST_GAP = 1e-6
"""Between two places; when halving comes below, the places are dealt out anew."""
_CANCELLED = WAITING_STATES | {JobState.ELSEWHERE}
_RETRIED = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.HELD})
_MOVED = _CANCELLED
"""Those for which a place, and a time before which they do not start, has a meaning."""
_RANKED = frozenset(JobState) - {JobState.DONE}
"""Those for which a priority has: what is at work, or has failed, may be begun again by the queue."""
_EDITS: dict[str, tuple[type, ...]] = {
    "priority": (int,),
    "not_before": (int, float, type(None)),
    "max_parallel": (int, type(None)),
    "hold_after": (int,),
    "cpu_slots": (int, type(None)),
}


@record
class OrderEffects:
    """What an order changes. `jobs` are pairs of id and attempts seen; `edits` pairs of id and new values."""

    jobs: tuple[tuple[int, int], ...] = ()
    edits: tuple[tuple[int, dict[str, Any]], ...] = ()
    group: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        """The jobs that it changes."""
        return tuple(dict.fromkeys([*(job for job, _ in self.jobs), *(job for job, _ in self.edits)]))


@record
class _Row:
    id: int
    state: JobState
    attempts: int
    label: str
    guarded: bool

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.label.partition("/")[0]


def plan_order(db: sqlite3.Connection, order: QueueAct) -> OrderEffects:
    """What the order changes now.

    Raises:
        UsageError: it names what is not there, does not fit, or holds values that it cannot have.
    """
    if order.group is not None and not db.execute("SELECT 1 FROM groups WHERE name = ?", (order.group,)).fetchone():
        near = propose_names(db, f"{order.group}/")
        raise NoSuchName(
            f"there is no group {order.group!r} in the queue{near}", hint="`holdfast queue ls` lists them."
        )
    return _PLANS[order.verb](db, order, _read_rows(db, order))


def _read_rows(db: sqlite3.Connection, order: QueueAct) -> list[_Row]:
    """The jobs that it is about: those named, else those of its group, else all."""
    query = "SELECT c.id, c.state, c.attempts, g.name, c.name, c.guarded FROM jobs c JOIN groups g ON g.id = c.group_id"
    rows: list[tuple[Any, ...]] = []
    if order.jobs:
        for key in dict.fromkeys(order.jobs):
            number = int(key) if key.isascii() and key.isdigit() and len(key) < 19 else -1
            row = db.execute(f"{query} WHERE c.id = ?", (number,)).fetchone()
            if row is None:
                raise NoSuchName(f"there is no job {key[:40]!r} in the queue any more", hint="`holdfast queue ls`")
            rows.append(row)
    elif order.group is not None:
        rows = db.execute(
            f"{query} WHERE g.name = ? ORDER BY c.priority DESC, c.place, c.id", (order.group,)
        ).fetchall()
    else:
        rows = db.execute(f"{query} ORDER BY c.priority DESC, c.place, c.id").fetchall()
    return [
        _Row(job_id, JobState(state), attempts, f"{group}/{name}", bool(guarded))
        for job_id, state, attempts, group, name, guarded in rows
    ]


def _pick(
    order: QueueAct, rows: list[_Row], fitting: frozenset[JobState], *also: JobState
) -> tuple[tuple[int, int], ...]:
    """Those in a state that fits. Jobs that were named and of which none does (nor is in `also`) are a mistake."""
    if order.jobs and not any(row.state in fitting or row.state in also for row in rows):
        labels = [row.label.removeprefix(f"{DEFAULT_GROUP}/") for row in rows[:10]]
        states = ", ".join(f"{label} is {row.state.value}" for label, row in zip(labels, rows, strict=False))
        hint = f"it is for jobs that are {' or '.join(sorted(state.value for state in fitting))}"
        if order.verb is OrderVerb.PAUSE and any(row.state in ACTIVE_STATES for row in rows):
            hint += f"; what is at work is stopped by: holdfast queue cancel {shlex.join(labels)} --running"
        if order.verb in (OrderVerb.MOVE, OrderVerb.EDIT):
            hint = f"it is for jobs that wait; {_say_instead(rows[0].state, labels[0])}"
        raise UsageError(f"queue {order.verb.value}: {states}", hint=hint)
    return tuple((row.id, row.attempts) for row in rows if row.state in fitting)


def _say_instead(state: JobState, label: str) -> str:
    """What changes a job that does not wait."""
    if state in ACTIVE_STATES:
        return f"holdfast limit {label} changes the limits of one at work, holdfast restart {label} begins it again"
    if state is JobState.DONE:
        return f"one that is done runs once more with: holdfast run --like {label}"
    return f"one that has ended waits again after: holdfast queue retry {label}"


def _pause(_: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    if order.jobs:
        return OrderEffects(_pick(order, rows, frozenset({JobState.QUEUED, JobState.BLOCKED}), JobState.HELD))
    if order.group is None:
        return OrderEffects(settings={"draining" if order.verb is OrderVerb.DRAIN else "paused": 1})
    why = order.values.get("held")
    return OrderEffects(group={"held": why} if isinstance(why, str) and why else {"paused": 1})


def _resume(_: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    held = _pick(order, rows, frozenset({JobState.HELD}))
    if order.jobs:
        return OrderEffects(held)
    # What a person holds, or whose run could not be read and so may have run, is let go by name only.
    guarded = {row.id for row in rows if row.guarded}
    held = tuple(pair for pair in held if pair[0] not in guarded)
    if order.group is None:
        return OrderEffects(held, settings={"paused": 0, "draining": 0})
    return OrderEffects(held, group={"paused": 0, "held": ""})


def _cancel(_: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    return OrderEffects(_pick(order, rows, _CANCELLED, *ACTIVE_STATES))


def _retry(_: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    also = {JobState.DONE} if order.values.get("done") is True and order.jobs else set()
    found = _pick(order, rows, _RETRIED | also)
    guarded = set() if order.jobs else {row.id for row in rows if row.guarded}
    return OrderEffects(tuple(pair for pair in found if pair[0] not in guarded))


def _move(db: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    """New places among the jobs of the same priority, the moved ones in the order that they have."""
    if not rows:
        return OrderEffects()
    to, moved = order.values.get("to"), {job for job, _ in _pick(order, rows, _MOVED)}
    everyone = db.execute("SELECT id, priority, place FROM jobs ORDER BY priority DESC, place, id").fetchall()
    ours = [row for row in everyone if row[0] in moved]
    others = [row for row in everyone if row[0] not in moved]
    if to == "before":
        index = _find_target(order, others, moved)
        (target,) = _read_rows(db, replace(order, jobs=(str(others[index][0]),)))
        if target.state not in _MOVED:
            label = target.label.removeprefix(f"{DEFAULT_GROUP}/")
            raise UsageError(
                f"move: {label} is {target.state.value}, and no place is before it",
                hint="Name a job that waits, or say --first.",
            )
        return OrderEffects(edits=_place(others, index, ours))
    if to not in ("first", "last"):
        raise UsageError(f"move: {to!r} is no place", hint="first, last, or before a job")
    places = [row[2] for row in everyone]
    start = min(places) - len(ours) if to == "first" else max(places) + 1
    return OrderEffects(edits=tuple((row[0], {"place": start + i}) for i, row in enumerate(ours)))


def _find_target(order: QueueAct, others: list[tuple[int, int, float]], moved: set[int]) -> int:
    key = str(order.values.get("key"))
    if key in map(str, moved):
        raise UsageError("move: a job cannot stand before itself", hint="Name another job.")
    for index, row in enumerate(others):
        if str(row[0]) == key:
            return index
    raise NoSuchName(f"move: there is no job {key[:40]!r} in the queue any more", hint="`holdfast queue ls`")


def _place(
    others: list[tuple[int, int, float]], index: int, ours: list[tuple[int, int, float]]
) -> tuple[tuple[int, dict[str, Any]], ...]:
    """Places for `ours` just before `others[index]`; everybody's anew when there is no room between the numbers.

    Places order jobs of one priority, but are kept in one order for all, so that a later change of a priority has a
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


def _edit(_: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
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
    of_jobs: dict[str, Any] = {name: values[name] for name in ("priority", "not_before") if name in values}
    of_group: dict[str, Any] = {name: values[name] for name in ("max_parallel", "hold_after") if name in values}
    if of_group and order.group is None:
        raise UsageError(f"edit: {', '.join(of_group)} is a group's", hint="Name the group.")
    if "cpu_slots" in values and (order.group is not None or order.jobs):
        raise UsageError("edit: cpu_slots is the whole queue's", hint="Name neither group nor jobs.")
    if of_jobs and order.group is None and not order.jobs:
        raise UsageError(f"edit: {', '.join(of_jobs)} is a job's", hint="Name jobs or a group.")
    edits: tuple[tuple[int, dict[str, Any]], ...] = ()
    if of_jobs:
        fitting = _MOVED if "not_before" in of_jobs else _RANKED
        picked = _pick(order, rows, fitting if order.jobs else fitting - CLOSED_STATES)
        edits = tuple((job, of_jobs) for job, _ in picked)
    settings = {"cpu_slots": values["cpu_slots"]} if "cpu_slots" in values else {}
    return OrderEffects(edits=edits, group=of_group, settings=settings)


def _clear(db: sqlite3.Connection, order: QueueAct, rows: list[_Row]) -> OrderEffects:
    """Jobs of wholly closed groups; of the default group, which is no set of its own, closed jobs.

    What is not proven done stays as long as a job that stays needs it.
    """
    groups: dict[str, list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    chosen: dict[int, _Row] = {}
    for name, jobs in groups.items():
        closed = [row for row in jobs if row.state in CLOSED_STATES]
        if len(closed) == len(jobs) or name == DEFAULT_GROUP:
            chosen |= {row.id: row for row in closed}
        elif order.group is not None or order.jobs:
            open_ones = [f"{row.label} is {row.state.value}" for row in jobs if row.state not in CLOSED_STATES]
            raise UsageError(f"clear: {', '.join(open_ones[:10])}", hint="Cancel them, or wait until they have ended.")
    _keep_needed(db, chosen)
    settings = read_meta(db)
    return OrderEffects(
        tuple((row.id, row.attempts) for row in chosen.values()),
        settings={name: settings.get(name) for name in ("paused", "draining", "cpu_slots")},
    )


def _keep_needed(db: sqlite3.Connection, chosen: dict[int, _Row]) -> None:
    """Leave out what is not proven done and needed by a job that stays; a group goes whole or not at all."""
    unproven = [
        (need, job)
        for need, job in db.execute("SELECT need, job FROM needs")
        if need in chosen and chosen[need].state is not JobState.DONE
    ]
    # Each round but the last keeps a group or a job that the round before would have let go.
    for _ in range(len(chosen) + 1):
        kept = {need for need, job in unproven if need in chosen and job not in chosen}
        if not kept:
            return
        groups = {chosen[job].group for job in kept} - {DEFAULT_GROUP}
        for row in [row for row in chosen.values() if row.id in kept or row.group in groups]:
            del chosen[row.id]


_PLANS: dict[OrderVerb, Callable[[sqlite3.Connection, QueueAct, list[_Row]], OrderEffects]] = {
    OrderVerb.PAUSE: _pause,
    OrderVerb.DRAIN: _pause,
    OrderVerb.RESUME: _resume,
    OrderVerb.CANCEL: _cancel,
    OrderVerb.MOVE: _move,
    OrderVerb.EDIT: _edit,
    OrderVerb.RETRY: _retry,
    OrderVerb.CLEAR: _clear,
}
