"""Where the queue stands: counts, what runs, what waits next and why; and everything about one cell.

With ten thousand cells only the counts and what is shown are read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.cli.render import heading, note, print_json, table
from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, WAITING_STATES, CellState
from holdfast.model.units import format_duration

from .changing import count_cells, require_group
from .opening import describe_absence, look_for_worker, open_queue
from .reasons import explain_cell, read_situation, summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.queue import Cell, Group, QueueSettings
    from holdfast.store.queue import Queue

SHOWN = 20
SHOWN_GROUPS = 30


def show_list(word: str | None, *, states: Sequence[str], everything: bool, as_json: bool) -> int:
    """Print the queue, or one group of it."""
    wanted = _read_states(states)
    with open_queue() as queue:
        group = None if word is None else require_group(queue, word).name
        seen = _Seen(queue, group, wanted, limit=None if everything else SHOWN)
        if as_json:
            print_json(seen.encode())
        else:
            _print_list(seen)
    return 0


class _Seen:
    """One look at the queue, or one group of it."""

    def __init__(self, queue: Queue, group: str | None, states: Sequence[CellState], *, limit: int | None) -> None:
        self.queue = queue
        self.group = group
        self.states = states
        self.groups = queue.groups()
        self.settings = queue.settings()
        self.counts = {name: numbers for name, numbers in queue.counts().items() if group in (None, name)}
        self.worker, self.problem = look_for_worker(queue)
        active = queue.active()
        self.active = [cell for cell in active if group in (None, cell.group)]
        # Blocked and held ones only after those that come next.
        listed = [[CellState.QUEUED], [CellState.BLOCKED, CellState.HELD]] if not states else [list(states)]
        self.cells: list[Cell] = []
        for some in listed:
            left = None if limit is None else limit - len(self.cells)
            if left is None or left > 0:
                self.cells += queue.cells(group=group, states=some, limit=left)
        if states:
            self.active = [cell for cell in self.active if cell.state in states]
            self.cells = [cell for cell in self.cells if cell.state not in ACTIVE_STATES]
        if not states and limit is None:
            self.cells += queue.cells(group=group, states=[CellState.FAILED, CellState.CANCELLED, CellState.DONE])

        cards = any(cell.cards for cell in self.cells)
        self.situation = read_situation(queue, active, groups=self.groups, cards=cards)

    def count(self, *states: CellState) -> int:
        """How many cells are in one of these states."""
        return sum(numbers.get(state, 0) for numbers in self.counts.values() for state in states)

    def waits(self, group: str) -> bool:
        """Whether a cell of a group waits."""
        return any(self.counts.get(group, {}).get(state, 0) for state in WAITING_STATES)

    def explain(self) -> list[tuple[Cell, str]]:
        """The listed cells, each with the first reason why it waits, or what became of it."""
        rows, before = [], {True: 0, False: 0}
        for cell in self.cells:
            if cell.state not in WAITING_STATES:
                rows.append((cell, _describe_end(cell)))
                continue
            kind = bool(cell.cards)
            reasons = explain_cell(self.queue, cell, self.situation, behind=before[kind])
            if cell.state is CellState.QUEUED:
                before[kind] += 1
            rows.append((cell, summarise(reasons)))
        return rows

    def encode(self) -> dict[str, object]:
        """For programs."""
        return {
            "queue": self.queue.directory,
            "settings": self.settings,
            "worker": self.worker is not None,
            "notice": self.queue.notice,
            "groups": [
                {
                    **_encode_group(self.groups[name]),
                    "counts": {state.value: number for state, number in numbers.items() if number},
                }
                for name, numbers in self.counts.items()
                if name in self.groups
            ],
            "active": self.active,
            "cells": [{"cell": cell, "label": cell.label, "why": why} for cell, why in self.explain()],
        }


def _encode_group(group: Group) -> dict[str, object]:
    from holdfast.model import wire

    encoded: dict[str, object] = wire.encode(group)
    return encoded


def _read_states(words: Sequence[str]) -> list[CellState]:
    """States as people say them; `waiting` and `active` are several.

    Raises:
        UsageError: there is no such state.
    """
    found: list[CellState] = []
    for word in words:
        if word == "waiting":
            found += [state for state in CellState if state in WAITING_STATES]
        elif word == "active":
            found += [state for state in CellState if state in ACTIVE_STATES]
        elif word in {state.value for state in CellState}:
            found.append(CellState(word))
        else:
            import difflib

            names = [*(state.value for state in CellState), "waiting", "active"]
            near = difflib.get_close_matches(word, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise UsageError(f"--state: there is no state {word!r}", hint=hint)
    return found


def _print_list(seen: _Seen) -> None:
    if not any(sum(numbers.values()) for numbers in seen.counts.values()):
        note("the queue is empty; holdfast submit hands something in")
        _say_stops(seen)
        return
    _print_groups(seen)
    if seen.active:
        heading("at work")
        table(("cell", "state", "time", "left", "cards", "step", "loss"), _list_active(seen), right=(2, 3, 5, 6))
    rows = seen.explain()
    if rows:
        heading("waiting" if all(cell.state in WAITING_STATES for cell, _ in rows) else "listed")
        table(("cell", "state", "prio", "cards", "why"), [_line(cell, why) for cell, why in rows], right=(2, 3))
        left = seen.count(*(set(seen.states or WAITING_STATES) - ACTIVE_STATES)) - len(rows)
        if left > 0:
            verb = "wait" if all(state in WAITING_STATES | ACTIVE_STATES for state in seen.states) else "of these"
            note(f"{left} more {verb}; --all shows every cell")
    _say_stops(seen)


def _print_groups(seen: _Seen) -> None:
    columns = (CellState.QUEUED, CellState.BLOCKED, CellState.HELD, CellState.DONE, CellState.FAILED)
    headers = ("group", "active", *(state.value for state in columns), "other", "left")
    rows = []
    for name, numbers in list(seen.counts.items())[:SHOWN_GROUPS]:
        if not sum(numbers.values()):
            continue
        active = sum(numbers.get(state, 0) for state in ACTIVE_STATES)
        others = sum(number for state, number in numbers.items() if state not in ACTIVE_STATES and state not in columns)
        rows.append(
            (name, active, *(numbers.get(state, 0) for state in columns), others, _say_left(seen, name, numbers))
        )
    table(
        headers,
        [tuple(cell or None if index else cell for index, cell in enumerate(row)) for row in rows],
        right=tuple(range(1, len(headers) - 1)),
    )
    hidden = len(seen.counts) - SHOWN_GROUPS
    if hidden > 0:
        note(f"{hidden} more groups; --json lists them")


def _say_left(seen: _Seen, group: str, numbers: Mapping[CellState, int]) -> str:
    active = [cell for cell in seen.active if cell.group == group]
    if not active:
        return ""
    from .estimating import estimate_cells

    estimate = estimate_cells(seen.queue, numbers, active)
    return "" if estimate is None else estimate.words


def _list_active(seen: _Seen) -> list[tuple[object, ...]]:
    from holdfast.agent.listing import read_row

    from .estimating import find_cost

    now = time.time()
    rows: list[tuple[object, ...]] = []
    for cell in seen.active[:SHOWN]:
        elapsed = None if cell.started_at is None else format_duration(now - cell.started_at)
        left = find_cost(seen.queue, cell).left(cell, now)
        shown = None if left is None else format_duration(left)
        if cell.run_id is None or cell.lean:
            rows.append((cell.label, cell.state.value, elapsed, shown, None, None, None))
            continue
        row = read_row(cell.runs_root, cell.run_id)
        rows.append((cell.label, row.condition, elapsed, shown, row.cards or None, row.step, row.loss))
    return rows


def _line(cell: Cell, why: str) -> tuple[object, ...]:
    return cell.label, cell.state.value, cell.priority or None, cell.cards or None, why


def _describe_end(cell: Cell) -> str:
    words = [cell.failure or (cell.outcome or ""), f"exit {cell.exit_code}" if cell.exit_code is not None else ""]
    said = ", ".join(word for word in words if word)
    return ": ".join(part for part in (said, cell.note) if part)


def _say_stops(seen: _Seen) -> None:
    """Say loudly what does not go on by itself, with the command that lets it."""
    failed = seen.count(CellState.FAILED)
    if failed and not seen.states and not any(cell.state is CellState.FAILED for cell in seen.cells):
        note(f"{failed} failed: holdfast queue ls{f' {seen.group}' if seen.group else ''} --state failed says why")
    # A group that stopped by itself and has nothing left to start is no news.
    groups = {name: group for name, group in seen.groups.items() if not group.held or seen.waits(name)}
    for text in describe_stops(seen.settings, groups, seen.problem, group=seen.group):
        note(text)
    stopped = seen.settings.paused or seen.settings.draining
    if seen.worker is None and not seen.problem and (seen.active or (seen.count(CellState.QUEUED) and not stopped)):
        note(describe_absence(seen.queue))
    if seen.active or not seen.count(*WAITING_STATES):
        return
    held, blocked = seen.count(CellState.HELD), seen.count(CellState.BLOCKED)
    if held + blocked and not seen.count(CellState.QUEUED):
        parts = [f"{number} {word}" for number, word in ((held, "held"), (blocked, "blocked")) if number]
        note(f"nothing goes on by itself: {', '.join(parts)}; `holdfast queue show CELL` says what it takes")


def describe_stops(
    settings: QueueSettings, groups: Mapping[str, Group], problem: str, *, group: str | None
) -> list[str]:
    """What keeps the queue or groups from starting anything, and the command that goes on."""
    found = [problem] if problem else []
    if settings.paused:
        found.append("the queue is PAUSED: nothing new starts; go on: holdfast queue resume")
    elif settings.draining:
        found.append("the queue is being DRAINED: nothing new starts; go on: holdfast queue resume")
    for name, known in groups.items():
        if group not in (None, name):
            continue
        if known.held:
            found.append(f"group {name} is HELD: {known.held}; go on: holdfast queue resume {name}")
        elif known.paused:
            found.append(f"group {name} is PAUSED; go on: holdfast queue resume {name}")
    return found


def show_cell(word: str, *, as_json: bool) -> int:
    """Print everything about a cell, with every reason why it waits and an estimate."""
    with open_queue() as queue:
        cells = queue.find([word])
        if len(cells) != 1:
            raise UsageError(f"{word!r} is {count_cells(len(cells))}", hint=f"holdfast queue ls {word.rstrip('/')}")
        from .showing_cell import print_cell

        return print_cell(queue, cells[0], as_json=as_json)
