"""Waiting for cells and runs: until every one is proven done, or nothing goes on by itself any more.

What is waited for is asked of the queue again after each event (its directory changed, its worker ended); nothing is
counted from events. A wait ends as soon as no open cell of the roster can go on without a person: a pause, a held cell,
a failed predecessor or a worker that cannot be had must not look like work that takes long.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.agent.changes import Changes
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, CLOSED_STATES, WAITING_STATES, CellState

from .opening import look_for_worker, start_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.agent.queueing.presence import WorkerFacts
    from holdfast.model.queue import Cell
    from holdfast.store.queue import Queue

LOOK_AGAIN_S = 30.0
"""The longest time without a look, for what no event tells: a clock that was set, a claim of another box."""
GATHER_S = 0.05
"""How long changes are gathered into one look: a busy worker commits hundreds of times a second."""
COME_UP_S = 10.0
"""How long a worker may take from its start to the first thing that it commits."""
MOST_STARTS = 3
"""How many workers are started in vain, one after the other, before that is the answer."""


@dataclass(frozen=True, slots=True)
class Roster:
    """What is waited for: whole groups, with every cell that they get meanwhile, single cells, or everything."""

    groups: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    everything: bool = False

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is on it."""
        return self.everything or cell.group in self.groups or cell.label in self.labels


@dataclass(frozen=True, slots=True)
class Look:
    """Where the roster stands: how many cells in each state, and why nothing of it goes on by itself (else empty).

    `gone` cells were on it and are not in the queue any more: how they ended cannot be told.
    """

    counts: dict[CellState, int]
    stuck: str = ""
    gone: int = 0

    @property
    def total(self) -> int:
        """How many cells are on the roster."""
        return sum(self.counts.values()) + self.gone

    @property
    def done(self) -> int:
        """How many are proven done."""
        return self.counts.get(CellState.DONE, 0)

    @property
    def open(self) -> int:
        """How many are not closed."""
        return sum(number for state, number in self.counts.items() if state not in CLOSED_STATES)

    def describe(self) -> str:
        """``3 of 12 done, 2 running, 1 failed, 6 waiting``."""
        numbers = {
            "running": sum(self.counts.get(state, 0) for state in ACTIVE_STATES),
            "failed": self.counts.get(CellState.FAILED, 0),
            "cancelled": self.counts.get(CellState.CANCELLED, 0),
            "elsewhere": self.counts.get(CellState.ELSEWHERE, 0),
            "waiting": sum(self.counts.get(state, 0) for state in WAITING_STATES),
            "taken out of the list": self.gone,
        }
        return ", ".join([f"{self.done} of {self.total} done", *(f"{n} {word}" for word, n in numbers.items() if n)])


def look(queue: Queue, roster: Roster) -> Look:
    """Count the roster, and see whether it can go on."""
    counts: dict[CellState, int] = {}
    every = queue.counts()
    for group, numbers in every.items():
        if roster.everything or group in roster.groups:
            for state, number in numbers.items():
                counts[state] = counts.get(state, 0) + number
    for cell in _find_known(queue, roster.labels):
        if cell.group not in roster.groups:
            counts[cell.state] = counts.get(cell.state, 0) + 1
    seen = Look({state: number for state, number in counts.items() if number})
    if not seen.open:
        return seen
    stuck = find_stuck(queue, roster, every)
    # These are several readings. When a cell moved on between them they fit together badly, and another look is due,
    # which the same move wakes us for.
    return Look(seen.counts, stuck if queue.counts() == every else "")


def _find_known(queue: Queue, labels: Sequence[str]) -> Iterator[Cell]:
    """The cells of these labels that are still in the queue."""
    try:
        yield from queue.find(labels)
    except UsageError:
        for label in labels:
            with contextlib.suppress(UsageError):
                yield from queue.find([label])


def find_stuck(queue: Queue, roster: Roster, counts: Mapping[str, Mapping[CellState, int]]) -> str:
    """Why no open cell of the roster goes on by itself; empty when one does, or may. `counts` is by group."""
    active = queue.active()
    if any(roster.holds(cell) for cell in active):
        return ""
    settings, groups = queue.settings(), queue.groups()
    stopped = "the queue is being drained" if settings.draining else "the queue is paused" if settings.paused else ""
    closed = {name: why for name, group in groups.items() if (why := _describe_group(group.paused, group.held))}
    whole = [name for name in counts if (roster.everything or name in roster.groups) and name not in closed]
    slots = settings.cpu_slots != 0
    if not stopped and slots and any(counts[name].get(CellState.QUEUED) for name in whole):
        return ""
    waiting = queue.cells(states=(CellState.QUEUED, CellState.ELSEWHERE))
    free = [
        cell
        for cell in waiting
        if cell.state is CellState.ELSEWHERE or not (stopped or cell.group in closed or not (slots or cell.cards))
    ]
    if any(roster.holds(cell) for cell in free):
        return ""
    blocked = [cell for cell in queue.cells(states=(CellState.BLOCKED,)) if roster.holds(cell)]
    if (active or free) and any(map(_Prospects(queue, {cell.id for cell in (*active, *free)}).may_go_on, blocked)):
        return ""
    reasons = [f"{stopped} (holdfast queue resume)"] if stopped else []
    if not slots and any(roster.holds(cell) and not cell.cards for cell in waiting):
        reasons.append("there are no CPU slots (holdfast queue set --cpu-slots auto)")
    return "; ".join([*reasons, *_list_reasons(queue, roster, closed)]) or "nothing can start"


class _Prospects:
    """Whether blocked cells may become free by themselves: all that each needs, on whichever level, goes on or may."""

    def __init__(self, queue: Queue, going: set[int]) -> None:
        """`going` are the ids of the cells that are at work, or start by themselves."""
        self._queue, self._going = queue, going
        self._known: dict[int, bool] = {}

    def may_go_on(self, cell: Cell) -> bool:
        """Whether nothing that has ended or waits for a person stands before it."""
        pending = [cell]
        while pending:
            last = pending[-1]
            needs = [need for need in self._queue.needs_of(last.id) if need.id not in self._going]
            open_needs = [need for need in needs if need.state is CellState.BLOCKED and need.id not in self._known]
            if open_needs and last.id not in self._known:
                pending.append(open_needs[0])
                continue
            self._known[last.id] = all(self._known.get(need.id, False) for need in needs)
            pending.pop()
        return self._known[cell.id]


def _describe_group(paused: bool, held: str) -> str:  # noqa: FBT001 - the two fields of a group
    return f"stopped by itself: {held}" if held else "is paused" if paused else ""


def _list_reasons(queue: Queue, roster: Roster, closed: dict[str, str]) -> list[str]:
    reasons = [
        f"group {name} {why} (holdfast queue resume {name})"
        for name, why in closed.items()
        if roster.everything or name in roster.groups or any(label.startswith(f"{name}/") for label in roster.labels)
    ]
    held = [cell for cell in queue.cells(states=(CellState.HELD,)) if roster.holds(cell)]
    if held:
        first = held[0]
        why = f": {first.note}" if first.note else ""
        way = "" if "holdfast queue" in why else f" (holdfast queue resume {first.label})"
        reasons.append(f"{_count(held)} held, {first.label}{why}{way}")
    blocked = [cell for cell in queue.cells(states=(CellState.BLOCKED,)) if roster.holds(cell)]
    if blocked:
        needs = ", ".join(f"{need.label} ({need.state.value})" for need in _find_roots(queue, blocked[0])[:3])
        reasons.append(f"{_count(blocked)} blocked, {blocked[0].label} needs {needs or 'what is not done'}")
    return reasons


def _find_roots(queue: Queue, cell: Cell) -> list[Cell]:
    """What stands before a blocked cell in the end, what has ended or is held first; blocked cells are no reason."""
    found: dict[int, Cell] = {}
    pending, seen = [cell], {cell.id}
    while pending:
        for need in queue.needs_of(pending.pop().id):
            if need.state is not CellState.BLOCKED:
                found[need.id] = need
            elif need.id not in seen:
                seen.add(need.id)
                pending.append(need)
    final = (*CLOSED_STATES, CellState.HELD)
    return sorted(found.values(), key=lambda need: need.state not in final)


def _count(cells: Sequence[Cell]) -> str:
    return f"{len(cells)} cell{' is' if len(cells) == 1 else 's are'}"


@dataclass(slots=True)
class _Worker:
    """Keeps a worker at work while something is open, and notices when starting one is in vain."""

    queue: Queue
    started: int = 0
    started_at: float = 0.0
    before: dict[CellState, int] = field(default_factory=dict)

    def tend(self, seen: Look) -> tuple[WorkerFacts | None, str]:
        """The worker, and why there is none to be had (else empty)."""
        if seen.counts != self.before:
            self.started, self.before = 0, seen.counts
        facts, problem = look_for_worker(self.queue)
        if facts is not None or problem:
            return facts, problem
        if self.started and monotonic_s() - self.started_at < COME_UP_S / MOST_STARTS:
            return None, ""
        if self.started >= MOST_STARTS:
            log = f"{self.queue.directory}/worker.log"
            return None, f"no worker stays: {self.started} were started and did nothing; see {log}"
        self.started += 1
        self.started_at = monotonic_s()
        start_worker(self.queue)
        return None, ""


def wait_for(
    queue: Queue, roster: Roster, *, deadline: float | None, tell: Callable[[Look], None]
) -> tuple[Look, bool]:
    """Sleep until nothing of the roster is open or can go on; the last look, and whether the time was up first."""
    worker, most = _Worker(queue), 0
    with Changes(queue.directory) as changes:
        while True:
            seen = look(queue, roster)
            most = max(most, seen.total)
            seen = Look(seen.counts, seen.stuck, most - seen.total)
            tell(seen)
            if not seen.open or seen.stuck:
                return seen, False
            facts, problem = worker.tend(seen)
            if problem:
                return Look(seen.counts, problem, seen.gone), False
            limit_s = LOOK_AGAIN_S if facts is not None else COME_UP_S / MOST_STARTS
            if deadline is not None:
                limit_s = min(limit_s, deadline - monotonic_s())
                if limit_s <= 0:
                    return seen, True
            if facts is not None:
                changes.watch(facts.process)
            changes.wait(limit_s)
            time.sleep(GATHER_S)


def wait_idle(queue: Queue) -> None:
    """Sleep until no cell is at work."""
    worker = _Worker(queue)
    with Changes(queue.directory) as changes:
        while active := queue.active():
            facts, problem = worker.tend(Look({CellState.RUNNING: len(active)}))
            if problem:
                return
            if facts is not None:
                changes.watch(facts.process)
            changes.wait(LOOK_AGAIN_S if facts is not None else COME_UP_S / MOST_STARTS)
            time.sleep(GATHER_S)
