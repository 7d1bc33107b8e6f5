"""What the queue starts next, and why the rest waits. Pure: the worker and the command lines look, this decides.

Theory
------
Cells without cards share the account's CPU slots. Cells for cards do not take a place of ours: the box's own line of
leases gives the cards out, first come, first served among all accounts. So the queue only keeps somebody standing in
that line: one cell that waits for cards, with its checks done. While nobody is seen to be blocked there, a second one
may be on its way, so that an empty box fills up without a pause for each card.

Order is priority, then place. Only in a sweep, where the costs of cells were stated, the expected longest goes first
among equals, because list scheduling by falling cost ends within 4/3 - 1/(3n) of the best makespan (Graham, "Bounds on
multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). A cell that wants more CPU slots than are free is not
overtaken by smaller ones behind it, or it might never start; one that wants more than there are gets all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..model.queue import CellState, GroupKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..model.queue import Cell, Group, QueueSettings

AHEAD = 2
"""How many cells for cards may be between their claim and their cards while none of them is blocked there."""
AHEAD_BLOCKED = 1
"""How many when one is blocked: it keeps our place in the line, and others of the box shall not stand behind ten."""


class Standing(Enum):
    """Where a started cell is, as far as it matters for who may start next."""

    COMING = "coming"
    """Being made, at its checks, or looking at cards: nobody is known to be in its way."""
    IN_LINE = "in_line"
    """Blocked by somebody in the line for cards, or just being given them: making the next one can wait for that."""
    AT_WORK = "at_work"
    """Past that: it has what it takes, or has ended and is being judged."""


@dataclass(frozen=True, slots=True)
class Active:
    """A cell that was started and is not over."""

    cell: Cell
    standing: Standing = Standing.COMING


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides beside the waiting cells.

    `cpu_slots` is how many there are. `cards_closed` says why no cell for cards may start now (quiet hours), empty when
    they may. `stopped` says why nothing at all can be started at the moment (a full disk), empty otherwise.
    """

    active: tuple[Active, ...]
    groups: Mapping[str, Group]
    settings: QueueSettings
    cpu_slots: int
    now: float
    cards_closed: str = ""
    stopped: str = ""

    @property
    def used_slots(self) -> int:
        """CPU slots in use; a cell that wants more than there are has all of them."""
        return sum(_slots_of(item.cell, self.cpu_slots) for item in self.active if not item.cell.cards)

    @property
    def free_slots(self) -> int:
        """CPU slots that are free; 0 when somebody lowered their number meanwhile."""
        return max(0, self.cpu_slots - self.used_slots)

    @property
    def closed_groups(self) -> tuple[str, ...]:
        """Groups of which nothing may start now."""
        return tuple(name for name, group in self.groups.items() if not self.is_open(group))

    def count_active(self, group: str) -> int:
        """How many cells of a group are active."""
        return sum(item.cell.group == group for item in self.active)

    def is_open(self, group: Group) -> bool:
        """Whether a cell of the group may start."""
        full = group.max_parallel is not None and self.count_active(group.name) >= group.max_parallel
        return not (group.paused or group.held or full)

    @property
    def card_room(self) -> int:
        """How many cells for cards may be started now."""
        if self.cards_closed:
            return 0
        coming = sum(item.standing is Standing.COMING for item in self.active if item.cell.cards)
        in_line = sum(item.standing is Standing.IN_LINE for item in self.active if item.cell.cards)
        return max(0, (AHEAD_BLOCKED if in_line else AHEAD) - coming - in_line)

    @property
    def starts_nothing(self) -> bool:
        """Whether the whole queue is paused, drained or unable to start anything."""
        return self.settings.paused or self.settings.draining or bool(self.stopped)


def _slots_of(cell: Cell, cpu_slots: int) -> int:
    return max(1, min(cell.slots, cpu_slots))


def choose(candidates: Sequence[Cell], situation: Situation) -> tuple[Cell, ...]:
    """Which of `candidates` (QUEUED, in their order) are to be started now, in the order in which to start them."""
    if situation.starts_nothing:
        return ()
    room, slots, counts = situation.card_room, situation.free_slots, _count_groups(situation)
    slots_open = True
    chosen = []
    for cell in order_by_cost(candidates, situation.groups):
        if not _may_start(cell, situation, counts):
            continue
        if cell.cards:
            if room <= 0:
                continue
            room -= 1
        else:
            wanted = _slots_of(cell, situation.cpu_slots)
            # Whoever does not fit keeps its turn: nothing behind it takes the slots that it waits for.
            slots_open = slots_open and wanted <= slots
            if not slots_open:
                continue
            slots -= wanted
        counts[cell.group] = counts.get(cell.group, 0) + 1
        chosen.append(cell)
    return tuple(chosen)


def _count_groups(situation: Situation) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in situation.active:
        counts[item.cell.group] = counts.get(item.cell.group, 0) + 1
    return counts


def _may_start(cell: Cell, situation: Situation, counts: Mapping[str, int]) -> bool:
    """Whether cell and group stand in the way of nothing; room is another question."""
    if cell.state is not CellState.QUEUED or cell.open_needs:
        return False
    if cell.not_before is not None and cell.not_before > situation.now:
        return False
    group = situation.groups.get(cell.group)
    if group is None:
        return True
    if group.paused or group.held:
        return False
    return group.max_parallel is None or counts.get(cell.group, 0) < group.max_parallel


def order_by_cost(cells: Iterable[Cell], groups: Mapping[str, Group]) -> list[Cell]:
    """The cells with those of one sweep, of equal priority and known cost, longest first in the places that they had.

    Everybody else, and every place that a sweep has among the others, stays.
    """
    ordered = list(cells)
    places: dict[tuple[str, int], list[int]] = {}
    for position, cell in enumerate(ordered):
        group = groups.get(cell.group)
        if cell.expected_s is not None and group is not None and group.kind is GroupKind.SWEEP:
            places.setdefault((cell.group, cell.priority), []).append(position)
    for positions in places.values():
        by_cost = sorted((ordered[position] for position in positions), key=lambda cell: -(cell.expected_s or 0.0))
        for position, cell in zip(positions, by_cost, strict=True):
            ordered[position] = cell
    return ordered


class Why(Enum):
    """Why a cell waits; the first ones need a person."""

    HELD = "held"
    NEEDS_FAILED = "needs_failed"
    QUEUE_PAUSED = "queue_paused"
    GROUP_PAUSED = "group_paused"
    GROUP_HELD = "group_held"
    DRAINING = "draining"
    NO_SLOTS = "no_slots"
    NEEDS = "needs"
    NOT_BEFORE = "not_before"
    STOPPED = "stopped"
    GROUP_FULL = "group_full"
    SLOTS = "slots"
    CARD_LINE = "card_line"
    HOURS = "hours"
    BEHIND = "behind"
    NEXT = "next"


NEEDS_A_PERSON = frozenset(
    {Why.HELD, Why.NEEDS_FAILED, Why.QUEUE_PAUSED, Why.GROUP_PAUSED, Why.GROUP_HELD, Why.NO_SLOTS}
)
"""What does not pass by itself."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its kind, words for people, the labels of the cells it is about, when it passes (epoch seconds)."""

    why: Why
    words: str
    cells: tuple[str, ...] = ()
    until: float | None = None


def explain(
    cell: Cell,
    situation: Situation,
    *,
    needs: Sequence[Cell] = (),
    behind: int = 0,
    say_time: Callable[[float], str] = str,
) -> tuple[Reason, ...]:
    """Every reason why a waiting cell has not started, those that need a person first; never empty for such a cell.

    `needs` is what it needs that is not proven done, `behind` how many startable cells of its kind come before it.
    """
    if cell.state not in (CellState.BLOCKED, CellState.QUEUED, CellState.HELD):
        return ()
    reasons = [*_explain_cell(cell, situation, needs, say_time), *_explain_group(cell, situation)]
    if not cell.open_needs and cell.state is CellState.QUEUED:
        reasons += _explain_room(cell, situation)
        if behind:
            reasons.append(Reason(Why.BEHIND, f"stands behind {_count(behind, 'cell')}"))
    if not reasons:
        reasons.append(Reason(Why.NEXT, "it is next; the worker starts it as soon as it looks"))
    order = list(Why)
    return tuple(sorted(reasons, key=lambda reason: order.index(reason.why)))


def _explain_cell(
    cell: Cell, situation: Situation, needs: Sequence[Cell], say_time: Callable[[float], str]
) -> list[Reason]:
    reasons = []
    if cell.state is CellState.HELD:
        reasons.append(Reason(Why.HELD, f"held: {cell.note or 'by a person'}", (cell.label,)))
    for need in needs:
        ended = need.state in (CellState.FAILED, CellState.CANCELLED, CellState.HELD)
        words = f"needs {need.label}, which is {need.state.value}"
        if ended and need.note:
            words += f" ({need.note})"
        reasons.append(Reason(Why.NEEDS_FAILED if ended else Why.NEEDS, words, (need.label,)))
    if cell.open_needs and not needs:
        reasons.append(Reason(Why.NEEDS, f"needs {_count(cell.open_needs, 'cell')} proven done first"))
    if cell.not_before is not None and cell.not_before > situation.now:
        reasons.append(Reason(Why.NOT_BEFORE, f"not before {say_time(cell.not_before)}", until=cell.not_before))
    if situation.stopped:
        reasons.append(Reason(Why.STOPPED, situation.stopped))
    return reasons


def _explain_group(cell: Cell, situation: Situation) -> list[Reason]:
    reasons = []
    if situation.settings.paused:
        reasons.append(Reason(Why.QUEUE_PAUSED, "the whole queue is paused"))
    if situation.settings.draining:
        reasons.append(Reason(Why.DRAINING, "the queue is being drained: nothing new starts"))
    group = situation.groups.get(cell.group)
    if group is None:
        return reasons
    if group.paused:
        reasons.append(Reason(Why.GROUP_PAUSED, f"group {group.name} is paused"))
    if group.held:
        reasons.append(Reason(Why.GROUP_HELD, f"group {group.name} stopped by itself: {group.held}"))
    active = [item.cell.label for item in situation.active if item.cell.group == group.name]
    if group.max_parallel is not None and len(active) >= group.max_parallel:
        words = f"group {group.name} is full: {len(active)} of {group.max_parallel} at work ({_names(active)})"
        reasons.append(Reason(Why.GROUP_FULL, words, tuple(active)))
    return reasons


def _explain_room(cell: Cell, situation: Situation) -> list[Reason]:
    if cell.cards:
        if situation.cards_closed:
            return [Reason(Why.HOURS, situation.cards_closed)]
        waiting = [
            item.cell.label for item in situation.active if item.cell.cards and item.standing is not Standing.AT_WORK
        ]
        if situation.card_room:
            return []
        words = f"{_names(waiting)} {'stands' if len(waiting) == 1 else 'stand'} in the box's line for cards first"
        return [Reason(Why.CARD_LINE, words, tuple(waiting))]
    if not situation.cpu_slots:
        return [Reason(Why.NO_SLOTS, "there are no CPU slots for cells without cards")]
    wanted = _slots_of(cell, situation.cpu_slots)
    if wanted <= situation.free_slots:
        return []
    users = [item.cell.label for item in situation.active if not item.cell.cards]
    used, total = situation.used_slots, situation.cpu_slots
    by = f" by {_names(users)}" if users else ""
    words = f"wants {_count(wanted, 'CPU slot')}; {used} of {total} in use{by}"
    return [Reason(Why.SLOTS, words, tuple(users))]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _names(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:3])
    return f"{shown} and {len(labels) - 3} more" if len(labels) > 3 else shown
