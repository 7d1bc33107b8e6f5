"""`core.queue.forecast`: estimates that are possible, and none where nothing is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue.forecast import (
    Capacity,
    JobLoad,
    JobSpan,
    describe_estimate,
    estimate_rest,
    expect_seconds,
    forecast_jobs,
)

pytestmark = pytest.mark.pure

TWO_SLOTS = Capacity(cards=0, slots=2, groups={})


def job(key: str, seconds: float | None = 10.0, **facts: object) -> JobLoad:
    return JobLoad(key, seconds=seconds, **facts)  # type: ignore[arg-type]  # fields by name


def test_jobs_fill_the_slots_in_order() -> None:
    spans = forecast_jobs([], [job("a"), job("b", 20), job("c"), job("d", 5)], TWO_SLOTS)
    assert spans == {"a": JobSpan(0, 10), "b": JobSpan(0, 20), "c": JobSpan(10, 20), "d": JobSpan(20, 25)}


def test_running_jobs_keep_their_place_until_they_end() -> None:
    spans = forecast_jobs([job("r", 3), job("s", 30)], [job("a")], TWO_SLOTS)
    assert spans["a"] == JobSpan(3, 13)


def test_a_job_starts_after_what_it_needs_and_after_its_time() -> None:
    waiting = [job("eval", needs=("train",)), job("train", 7), job("late", 1, ready_s=100)]
    spans = forecast_jobs([], waiting, TWO_SLOTS)
    assert (spans["train"], spans["eval"], spans["late"]) == (JobSpan(0, 7), JobSpan(7, 17), JobSpan(100, 101))


def test_an_unknown_duration_has_no_end_and_gives_what_waits_for_it_no_start() -> None:
    room = Capacity(cards=0, slots=1, groups={})
    spans = forecast_jobs([], [job("a", None), job("b")], room)
    assert spans == {"a": JobSpan(0, None), "b": JobSpan(None, None)}


def test_cards_are_given_in_order_and_cpu_jobs_pass_them_by() -> None:
    room = Capacity(cards=2, slots=1, groups={})
    waiting = [job("one", cards=1), job("two", cards=2), job("small", 1, cards=1), job("cpu", 4)]
    spans = forecast_jobs([], waiting, room)
    assert spans["two"] == JobSpan(10, 20)
    assert spans["small"] == JobSpan(20, 21)
    assert spans["cpu"] == JobSpan(0, 4)


def test_a_full_group_does_not_keep_others_waiting() -> None:
    room = Capacity(cards=0, slots=2, groups={"g": 1})
    spans = forecast_jobs([], [job("a", group="g"), job("b", group="g"), job("c", 3)], room)
    assert spans == {"a": JobSpan(0, 10), "b": JobSpan(10, 20), "c": JobSpan(0, 3)}


def test_without_known_cards_a_job_for_cards_has_no_estimate() -> None:
    assert forecast_jobs([], [job("a", cards=1)], Capacity(None, 1, {}))["a"] == JobSpan(None, None)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[JobLoad], Capacity]:
    """Waiting jobs that need only earlier or later ones of the same list, without a cycle."""
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    cards, slots = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    loads = []
    for place, number in enumerate(order):
        earlier = [f"c{other}" for other in order[:place]]
        needs = draw(st.lists(st.sampled_from(earlier), max_size=2)) if earlier else []
        loads.append(
            JobLoad(
                f"c{number}",
                group=draw(st.sampled_from(["g", "h"])),
                cards=draw(st.integers(0, cards)),
                seconds=draw(st.one_of(st.none(), st.integers(0, 50).map(float))),
                needs=tuple(needs),
                ready_s=draw(st.sampled_from([0.0, 0.0, 25.0])),
            )
        )
    loads.sort(key=lambda load: load.key)
    return loads, Capacity(cards, slots, draw(st.sampled_from([{}, {"g": 1}, {"g": 2, "h": 1}])))


@pytest.mark.slow
@given(plans())
def test_no_span_is_before_its_critical_path(plan: tuple[list[JobLoad], Capacity]) -> None:
    loads, room = plan
    spans = forecast_jobs([], loads, room)
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
def test_never_more_at_once_than_there_is_room_for(plan: tuple[list[JobLoad], Capacity]) -> None:
    loads, room = plan
    spans = forecast_jobs([], loads, room)
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
def test_every_job_of_known_duration_gets_an_estimate(plan: tuple[list[JobLoad], Capacity]) -> None:
    loads, room = plan
    known = [
        JobLoad(load.key, load.group, load.cards, 1, load.seconds or 1.0, load.needs, load.ready_s) for load in loads
    ]
    assert all(span.end_s is not None for span in forecast_jobs([], known, room).values())


@given(
    st.integers(0, 30),
    st.lists(st.integers(0, 40).map(float), max_size=4),
    st.integers(1, 9).map(float),
    st.integers(1, 5),
)
def test_equal_jobs_are_told_from_their_number(
    waiting: int, running: list[float], seconds: float, parallel: int
) -> None:
    slots = max(parallel, len(running))
    active = [job(f"r{number}", left) for number, left in enumerate(running)]
    spans = forecast_jobs(active, [job(f"w{number}", seconds) for number in range(waiting)], Capacity(0, slots, {}))
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
    assert describe_estimate(12_000, 14) == "about 3h20m (from 14 done jobs)"
    assert describe_estimate(60, 1) == "about 1m00s (from 1 done job)"
    assert "stated" in describe_estimate(60, 0, stated=True)
