"""Why a cell waits, as the desk sees it: the same judgement as the worker's, from the same facts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from holdfast.core.queueing import NEEDS_A_PERSON, Active, Situation, Standing, Why, explain
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import CellState

from .times import format_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.queueing import Reason
    from holdfast.model.queue import Cell, Group
    from holdfast.store.queue import Queue

MOST_LOOKED_AT = 200
MANY = 100_000
"""Cells that may be counted in front of one."""


def read_situation(
    queue: Queue, active: Sequence[Cell], *, groups: dict[str, Group] | None = None, cards: bool = True
) -> Situation:
    """What decides beside the waiting cells, now; `cards`: whether the question is about cells for cards."""
    return Situation(
        active=tuple(Active(cell, find_standing(cell)) for cell in active[:MOST_LOOKED_AT]),
        groups=queue.groups() if groups is None else groups,
        settings=queue.settings(),
        cpu_slots=find_slots(queue),
        now=time.time(),
        cards_closed=find_closing() if cards else "",
    )


def find_slots(queue: Queue) -> int:
    """How many CPU slots there are: as said, else what the worker counts for itself."""
    from holdfast.agent.queueing.presence import count_cpu_slots

    stated = queue.settings().cpu_slots
    return count_cpu_slots() if stated is None else stated


def find_standing(cell: Cell) -> Standing:
    """Where a started cell is; only one for cards can stand in a line."""
    if not cell.cards or cell.run_dir is None:
        return Standing.AT_WORK
    # Much is loaded for a look at a run: only where a run is looked at.
    from holdfast.agent.queueing.watching import look_at

    return look_at(cell.run_dir, first_attempt=0).standing


def find_closing() -> str:
    """Why no cell for cards may start at this time of day; empty when they may, or when the rules cannot be read."""
    from holdfast.core.rules import judge_hours
    from holdfast.host.rulesfile import read_rules

    try:
        rules = read_rules(os.environ)
    except HoldfastError as error:
        return f"the box's rules cannot be read: {error}"
    here = time.localtime()
    closed = judge_hours(rules, here.tm_hour * 60 + here.tm_min)
    return "" if closed is None else f"{closed.evidence}; {closed.remedy}"


def explain_cell(queue: Queue, cell: Cell, situation: Situation, *, behind: int = 0) -> tuple[Reason, ...]:
    """Every reason why a cell waits."""
    needs = queue.needs_of(cell.id) if cell.state is CellState.BLOCKED else ()
    now = situation.now
    return explain(cell, situation, needs=needs, behind=behind, say_time=lambda moment: format_moment(moment, now))


def explain_briefly(queue: Queue, cell: Cell) -> str:
    """The first reason in words; for a cell that is next, that it starts."""
    situation = read_situation(queue, queue.active())
    behind = count_before(queue, cell)
    reasons = explain_cell(queue, cell, situation, behind=behind)
    if not reasons:
        return cell.state.value
    return summarise(reasons)


def summarise(reasons: Sequence[Reason]) -> str:
    """The first reason, short enough for a table; `queue show` has each one in full."""
    first = reasons[0]
    if first.why is Why.GROUP_FULL:
        # Who they are stands right above, and would be said again on every line.
        return first.words.partition(" (")[0]
    alike = sum(reason.why is first.why for reason in reasons) - 1
    return f"{first.words}; and {alike} more" if first.why in {Why.NEEDS, Why.NEEDS_FAILED} and alike else first.words


def count_before(queue: Queue, cell: Cell) -> int:
    """How many cells of its kind that may start come before a queued one."""
    if cell.state is not CellState.QUEUED:
        return 0
    now, before = time.time(), 0
    closed = {name for name, group in queue.groups().items() if group.paused or group.held}
    for other in queue.cells(states=(CellState.QUEUED,), limit=MANY):
        if other.id == cell.id:
            break
        due = other.group not in closed and (other.not_before is None or other.not_before <= now)
        before += due and bool(other.cards) == bool(cell.cards)
    return before


def needs_a_person(reasons: Sequence[Reason]) -> bool:
    """Whether one of the reasons does not pass by itself."""
    return any(reason.why in NEEDS_A_PERSON or reason.why is Why.DRAINING for reason in reasons)
