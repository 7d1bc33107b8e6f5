"""What starts next, and why the rest waits: the decision alone, without a queue."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.queueing import (
    AHEAD,
    NEEDS_A_PERSON,
    Active,
    Situation,
    Standing,
    Why,
    choose,
    explain,
    order_by_cost,
)
from holdfast.model.queue import ACTIVE_STATES, Cell, CellState, Group, GroupKind, QueueSettings

pytestmark = pytest.mark.pure

NOW = 1_000_000.0
NUMBERS = itertools.count(1)


def cell(name: str = "", **fields: object) -> Cell:
    number = next(NUMBERS)
    given_fields = {"state": CellState.QUEUED, "group": "default", "place": float(number), **fields}
    return Cell(id=number, key=f"k{number}", name=name or f"c{number}", **given_fields)  # type: ignore[arg-type]


def situation(*active: Active, groups: tuple[Group, ...] = (), **fields: object) -> Situation:
    known = {group.name: group for group in groups}
    base = Situation(active, known, QueueSettings("q"), cpu_slots=2, now=NOW)
    return replace(base, **fields)  # type: ignore[arg-type]


def at_work(name: str = "", **fields: object) -> Active:
    return Active(cell(name, **{"state": CellState.RUNNING, **fields}), Standing.AT_WORK)


def names(cells: tuple[Cell, ...]) -> list[str]:
    return [item.name for item in cells]


def test_cells_start_in_their_order_until_the_slots_are_used() -> None:
    assert names(choose([cell("a"), cell("b"), cell("c")], situation())) == ["a", "b"]
    assert names(choose([cell("a"), cell("b")], situation(at_work()))) == ["a"]
    assert choose([cell("a")], situation(at_work(), at_work())) == ()


def test_a_cell_with_many_slots_is_not_overtaken_and_gets_all_there_are_when_it_wants_more() -> None:
    wide, small = cell("wide", slots=2), cell("small")
    assert choose([wide, small], situation(at_work())) == ()
    assert names(choose([wide, small], situation())) == ["wide"]
    assert names(choose([cell("huge", slots=64), small], situation())) == ["huge"]
    assert choose([small], situation(at_work(slots=64))) == ()


def test_cells_for_cards_take_no_cpu_slot_and_one_stands_in_line_ahead() -> None:
    card = [cell(f"g{n}", cards=1) for n in range(4)]
    assert names(choose([*card, cell("cpu")], situation())) == ["g0", "g1", "cpu"]
    blocked = Active(cell(cards=1, state=CellState.RUNNING), Standing.IN_LINE)
    assert choose(card, situation(blocked)) == ()
    coming = Active(cell(cards=1, state=CellState.RUNNING), Standing.COMING)
    assert names(choose(card, situation(coming))) == ["g0"]
    assert len(choose(card, situation(at_work(cards=1), at_work(cards=1)))) == AHEAD


def test_quiet_hours_keep_cells_for_cards_only() -> None:
    found = choose([cell("g", cards=1), cell("cpu")], situation(cards_closed="it is 12:00; ..."))
    assert names(found) == ["cpu"]


@pytest.mark.requirement("QUEUE-20")
@pytest.mark.parametrize("stop", [QueueSettings("q", paused=True), QueueSettings("q", draining=True)])
def test_nothing_starts_while_the_queue_is_paused_or_drained(stop: QueueSettings) -> None:
    assert choose([cell()], situation(settings=stop)) == ()


@pytest.mark.parametrize("group", [Group("g", paused=True), Group("g", held="3 failed"), Group("g", max_parallel=0)])
def test_a_closed_group_lets_the_others_pass(group: Group) -> None:
    assert names(choose([cell("x", group="g"), cell("y")], situation(groups=(group,)))) == ["y"]


def test_a_group_has_no_more_cells_at_work_than_it_may() -> None:
    group = Group("g", max_parallel=2)
    active = at_work(group="g", cards=1)
    found = choose([cell("a", group="g"), cell("b", group="g"), cell("c")], situation(active, groups=(group,)))
    assert names(found) == ["a", "c"]


def test_a_cell_before_its_time_or_with_open_needs_does_not_start() -> None:
    assert choose([cell(not_before=NOW + 1), cell(open_needs=1)], situation()) == ()
    assert len(choose([cell(not_before=NOW - 1)], situation())) == 1


@pytest.mark.requirement("QUEUE-18")
def test_QUEUE_18_a_sweep_with_known_costs_ends_within_a_fifth_of_the_best() -> None:
    sweep = Group("s", GroupKind.SWEEP)
    waiting = [cell(group="s", expected_s=cost, slots=1) for cost in (20.0, 50.0, 20.0, 20.0, 50.0)]
    now, ends, running = 0.0, 0.0, list[tuple[float, Cell]]()
    while waiting or running:
        active = tuple(Active(replace(item, state=CellState.RUNNING), Standing.AT_WORK) for _, item in running)
        for item in choose(waiting, situation(*active, groups=(sweep,))):
            waiting.remove(item)
            running.append((now + (item.expected_s or 0.0), item))
        running.sort(key=lambda pair: pair[0])
        now, _ = running.pop(0)
        ends = max(ends, now)
    best = 90.0
    assert ends <= 1.2 * best


def test_only_cells_of_one_sweep_and_one_priority_are_ordered_by_cost() -> None:
    groups = {"s": Group("s", GroupKind.SWEEP), "p": Group("p")}
    cells = [
        cell("s1", group="s", expected_s=1.0),
        cell("p1", group="p", expected_s=9.0),
        cell("s2", group="s", expected_s=5.0),
        cell("s3", group="s"),
        cell("s4", group="s", expected_s=7.0, priority=-1),
    ]
    assert names(tuple(order_by_cost(cells, groups))) == ["s2", "p1", "s1", "s3", "s4"]


CELLS = st.lists(
    st.builds(
        lambda group, cards, slots, priority, cost: cell(
            group=group, cards=cards, slots=slots, priority=priority, expected_s=cost
        ),
        st.sampled_from(["default", "g", "s"]),
        st.sampled_from([0, 0, 1, 2]),
        st.integers(1, 5),
        st.integers(-1, 1),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=12,
)
ACTIVE = st.lists(
    st.builds(
        lambda group, cards, slots, standing: Active(
            cell(group=group, cards=cards, slots=slots, state=CellState.RUNNING), standing
        ),
        st.sampled_from(["default", "g", "s"]),
        st.sampled_from([0, 1]),
        st.integers(1, 3),
        st.sampled_from(list(Standing)),
    ),
    max_size=5,
)


@pytest.mark.slow
@given(CELLS, ACTIVE, st.integers(1, 6), st.integers(0, 3))
def test_no_choice_takes_more_than_there_is(cells: list[Cell], active: list[Active], slots: int, limit: int) -> None:
    groups = (Group("g", max_parallel=limit), Group("s", GroupKind.SWEEP))
    found = situation(*active, groups=groups, cpu_slots=slots)
    chosen = choose(cells, found)
    ids = [item.id for item in chosen]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {item.id for item in cells}
    wanted = sum(min(item.slots, slots) for item in chosen if not item.cards)
    assert wanted <= found.free_slots
    assert sum(bool(item.cards) for item in chosen) <= found.card_room
    assert sum(item.group == "g" for item in chosen) + found.count_active("g") <= max(limit, found.count_active("g"))


@given(CELLS, st.integers(1, 4))
@settings(max_examples=50)
def test_every_cell_starts_in_the_end_whatever_its_priority(cells: list[Cell], slots: int) -> None:
    waiting = sorted(cells, key=lambda item: (-item.priority, item.place))
    groups = (Group("s", GroupKind.SWEEP, max_parallel=1),)
    for _ in range(len(cells)):
        chosen = choose(waiting, situation(groups=groups, cpu_slots=slots))
        waiting = [item for item in waiting if item not in chosen]
    assert waiting == []


@given(CELLS, ACTIVE, st.sampled_from(list(CellState)), st.booleans())
def test_a_waiting_cell_has_a_reason_and_no_other_has_one(
    cells: list[Cell], active: list[Active], state: CellState, paused: bool
) -> None:
    around = situation(*active, settings=QueueSettings("q", paused=paused))
    for item in cells:
        reasons = explain(replace(item, state=state), around)
        waits = state in {CellState.BLOCKED, CellState.QUEUED, CellState.HELD}
        assert bool(reasons) is waits
        assert all(reason.words for reason in reasons)


@pytest.mark.slow
@given(CELLS, ACTIVE)
def test_a_cell_that_is_said_to_be_next_is_chosen_when_it_is_alone(cells: list[Cell], active: list[Active]) -> None:
    around = situation(*active)
    for item in cells:
        is_next = explain(item, around)[0].why is Why.NEXT
        assert (choose([item], around) == (item,)) is is_next


def test_every_reason_is_told_with_who_is_in_the_way() -> None:
    busy = [at_work(name="a", group="g"), at_work(name="b")]
    groups = (Group("g", max_parallel=1, paused=True, held="2 cells in a row failed"),)
    around = situation(*busy, groups=groups, settings=QueueSettings("q", paused=True, draining=True))
    reasons = explain(cell(group="g", not_before=NOW + 60), around, behind=3, say_time=lambda _: "20:00")
    text = "\n".join(reason.words for reason in reasons)
    for words in (
        "the whole queue is paused",
        "being drained",
        "group g is paused",
        "group g stopped by itself: 2 cells in a row failed",
        "group g is full: 1 of 1 at work (g/a)",
        "2 of 2 in use by g/a, b",
        "stands behind 3 cells",
        "not before 20:00",
    ):
        assert words in text
    assert reasons[0].why is Why.QUEUE_PAUSED


def test_needs_are_named_and_a_failed_one_is_told_apart() -> None:
    failed = cell("up", state=CellState.FAILED, note="exit code 3")
    open_need = cell("other", state=CellState.RUNNING)
    blocked = cell(state=CellState.BLOCKED, open_needs=2)
    reasons = explain(blocked, situation(), needs=[open_need, failed])
    assert [reason.why for reason in reasons] == [Why.NEEDS_FAILED, Why.NEEDS]
    assert reasons[0].words == "needs up, which is failed (exit code 3)"
    assert explain(blocked, situation())[0].words == "needs 2 cells proven done first"


def test_a_held_cell_says_why_and_an_active_one_does_not_wait() -> None:
    assert (
        explain(cell(state=CellState.HELD, note="train.py changed"), situation())[0].words == "held: train.py changed"
    )
    for state in ACTIVE_STATES:
        assert explain(cell(state=state), situation()) == ()


def test_who_stands_in_the_line_for_cards_is_named() -> None:
    ahead = Active(cell("first", cards=1, state=CellState.RUNNING), Standing.IN_LINE)
    (reason,) = explain(cell(cards=1), situation(ahead))
    assert reason.words == "first stands in the box's line for cards first"
    assert explain(cell(cards=1), situation(cards_closed="it is noon"))[0].why is Why.HOURS
    assert explain(cell(), situation(stopped="the disk is full"))[0].words == "the disk is full"


def test_without_any_cpu_slot_a_person_is_needed_and_nobody_is_named_who_uses_them() -> None:
    reasons = explain(cell(), replace(situation(), cpu_slots=0))
    assert reasons[0].why is Why.NO_SLOTS
    assert reasons[0].why in NEEDS_A_PERSON
    assert "in use by" not in reasons[0].words
