"""`core.forecast`: estimates that are possible, and none where nothing is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.forecast import Load, Room, Span, describe_estimate, estimate_rest, expect_seconds, forecast

pytestmark = pytest.mark.pure

TWO_SLOTS = Room(cards=0, slots=2, groups={})


def cell(key: str, seconds: float | None = 10.0, **facts: object) -> Load:
    return Load(key, seconds=seconds, **facts)  # type: ignore[arg-type]  # fields by name


def test_cells_fill_the_slots_in_order() -> None:
    spans = forecast([], [cell("a"), cell("b", 20), cell("c"), cell("d", 5)], TWO_SLOTS)
    assert spans == {"a": Span(0, 10), "b": Span(0, 20), "c": Span(10, 20), "d": Span(20, 25)}


def test_running_cells_keep_their_place_until_they_end() -> None:
    spans = forecast([cell("r", 3), cell("s", 30)], [cell("a")], TWO_SLOTS)
    assert spans["a"] == Span(3, 13)


def test_a_cell_starts_after_what_it_needs_and_after_its_time() -> None:
    waiting = [cell("eval", needs=("train",)), cell("train", 7), cell("late", 1, ready_s=100)]
    spans = forecast([], waiting, TWO_SLOTS)
    assert (spans["train"], spans["eval"], spans["late"]) == (Span(0, 7), Span(7, 17), Span(100, 101))


def test_an_unknown_duration_has_no_end_and_gives_what_waits_for_it_no_start() -> None:
    room = Room(cards=0, slots=1, groups={})
    spans = forecast([], [cell("a", None), cell("b")], room)
    assert spans == {"a": Span(0, None), "b": Span(None, None)}


def test_cards_are_given_in_order_and_cpu_cells_pass_them_by() -> None:
    room = Room(cards=2, slots=1, groups={})
    waiting = [cell("one", cards=1), cell("two", cards=2), cell("small", 1, cards=1), cell("cpu", 4)]
    spans = forecast([], waiting, room)
    assert spans["two"] == Span(10, 20)
    assert spans["small"] == Span(20, 21)
    assert spans["cpu"] == Span(0, 4)


def test_a_full_group_does_not_keep_others_waiting() -> None:
    room = Room(cards=0, slots=2, groups={"g": 1})
    spans = forecast([], [cell("a", group="g"), cell("b", group="g"), cell("c", 3)], room)
    assert spans == {"a": Span(0, 10), "b": Span(10, 20), "c": Span(0, 3)}


def test_without_known_cards_a_cell_for_cards_has_no_estimate() -> None:
    assert forecast([], [cell("a", cards=1)], Room(None, 1, {}))["a"] == Span(None, None)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Load], Room]:
    """Waiting cells that need only earlier or later ones of the same list, without a cycle."""
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    cards, slots = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    loads = []
    for place, number in enumerate(order):
        earlier = [f"c{other}" for other in order[:place]]
        needs = draw(st.lists(st.sampled_from(earlier), max_size=2)) if earlier else []
        loads.append(
            Load(
                f"c{number}",
                group=draw(st.sampled_from(["g", "h"])),
                cards=draw(st.integers(0, cards)),
                seconds=draw(st.one_of(st.none(), st.integers(0, 50).map(float))),
                needs=tuple(needs),
                ready_s=draw(st.sampled_from([0.0, 0.0, 25.0])),
            )
        )
    loads.sort(key=lambda load: load.key)
    return loads, Room(cards, slots, draw(st.sampled_from([{}, {"g": 1}, {"g": 2, "h": 1}])))


@pytest.mark.slow
@given(plans())
def test_no_span_is_before_its_critical_path(plan: tuple[list[Load], Room]) -> None:
    loads, room = plan
    spans = forecast([], loads, room)
    for load in loads:
        span = spans[load.key]
        if span.start_s is None:
            continue
        assert span.start_s >= load.ready_s
        for need in load.needs:
            end = spans[need].end_s
            assert end is not None
            assert span.start_s >= end
        assert span.end_s == (None if load.seconds is None else span.start_s + load.seconds)


@pytest.mark.slow
@given(plans())
def test_never_more_at_once_than_there_is_room_for(plan: tuple[list[Load], Room]) -> None:
    loads, room = plan
    spans = forecast([], loads, room)
    for moment in {span.start_s for span in spans.values() if span.start_s is not None}:
        at_once = [
            load
            for load in loads
            if (begin := spans[load.key].start_s) is not None
            and begin <= moment
            and ((end := spans[load.key].end_s) is None or moment < end)
        ]
        assert sum(load.cards for load in at_once) <= (room.cards or 0)
        assert sum(load.slots for load in at_once if not load.cards) <= room.slots
        for group, most in room.groups.items():
            assert sum(load.group == group for load in at_once) <= most


@pytest.mark.slow
@given(plans())
def test_every_cell_of_known_duration_gets_an_estimate(plan: tuple[list[Load], Room]) -> None:
    loads, room = plan
    known = [Load(load.key, load.group, load.cards, 1, load.seconds or 1.0, load.needs, load.ready_s) for load in loads]
    assert all(span.end_s is not None for span in forecast([], known, room).values())


@given(
    st.integers(0, 30),
    st.lists(st.integers(0, 40).map(float), max_size=4),
    st.integers(1, 9).map(float),
    st.integers(1, 5),
)
def test_equal_cells_are_told_from_their_number(
    waiting: int, running: list[float], seconds: float, parallel: int
) -> None:
    slots = max(parallel, len(running))
    active = [cell(f"r{number}", left) for number, left in enumerate(running)]
    spans = forecast(active, [cell(f"w{number}", seconds) for number in range(waiting)], Room(0, slots, {}))
    latest = max((span.end_s for span in spans.values() if span.end_s is not None), default=0.0)
    told = estimate_rest(waiting, running, seconds, slots)
    assert told is not None
    assert math.isclose(told, latest)


def test_nothing_is_estimated_from_nothing() -> None:
    assert estimate_rest(3, [], None, 2) is None
    assert estimate_rest(3, [], 10.0, 0) is None
    assert estimate_rest(0, [4.0, 9.0], None, 2) == 9.0


def test_what_was_measured_goes_before_what_was_stated() -> None:
    assert expect_seconds(100.0, (30.0, 10.0, 20.0)) == 20.0
    assert expect_seconds(100.0, (30.0, 10.0)) == 20.0
    assert expect_seconds(100.0, ()) == 100.0
    assert expect_seconds(None, ()) is None


def test_an_estimate_says_what_it_rests_on() -> None:
    assert describe_estimate(12_000, 14) == "about 3h20m (from 14 done cells)"
    assert describe_estimate(60, 1) == "about 1m00s (from 1 done cell)"
    assert "stated" in describe_estimate(60, 0, stated=True)
