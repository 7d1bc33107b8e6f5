"""Trends from samples that jump, and how long something lasts."""

from __future__ import annotations

import random

import pytest

from holdfast.core.run.trend import (
    ALARM_S,
    CLEAR_S,
    Alarm,
    TimeLeft,
    find_median,
    find_time_left,
    find_trend,
    is_far,
    is_soon,
)

pytestmark = pytest.mark.pure


def sample(slope: float, start: float = 1e12, count: int = 20, every_s: float = 30.0) -> list[tuple[float, float]]:
    return [(index * every_s, start + slope * index * every_s) for index in range(count)]


@pytest.mark.requirement("STOR-09")
def test_STOR_09_a_steady_writer_is_foreseen_to_the_second() -> None:
    trend = find_trend(sample(-10 * 2**20))
    assert trend is not None
    left = find_time_left(1e12, trend)
    assert left.likely_s == pytest.approx(1e12 / (10 * 2**20))
    assert left.earliest_s == pytest.approx(left.likely_s)
    assert left.latest_s == pytest.approx(left.likely_s)


@pytest.mark.requirement("STOR-09")
@pytest.mark.parametrize("written_at", [(300,), (30,), (570,), (200, 400)])
def test_STOR_09_a_checkpoint_or_two_are_no_trend(written_at: tuple[int, ...]) -> None:
    points = [(t, 20e9 - sum(5e9 for at in written_at if t >= at)) for t, _ in sample(0.0)]
    trend = find_trend(points)
    assert trend is not None
    assert not is_soon(find_time_left(points[-1][1], trend))


def test_a_checkpoint_that_is_written_and_deleted_leaves_the_slope() -> None:
    points = [(t, free - (5e9 if index % 7 == 3 else 0)) for index, (t, free) in enumerate(sample(-1e6, count=40))]
    trend = find_trend(points)
    assert trend is not None
    assert trend.slope == pytest.approx(-1e6, rel=0.3)
    assert trend.low <= trend.slope <= trend.high


def test_noise_widens_the_answer() -> None:
    chance = random.Random(3)
    trend = find_trend([(t, value + chance.gauss(0, 2e8)) for t, value in sample(-1e6)])
    assert trend is not None
    left = find_time_left(1e9, trend)
    assert left.latest_s is None or left.likely_s is None or left.latest_s > left.likely_s


@pytest.mark.parametrize("points", [[], sample(-1.0, count=5), [(3.0, float(i)) for i in range(9)]])
def test_too_few_samples_or_none_that_differ_in_time_are_no_trend(points: list[tuple[float, float]]) -> None:
    assert find_trend(points) is None


def test_only_what_is_near_and_sure_is_told() -> None:
    assert is_soon(TimeLeft(ALARM_S - 1, 60.0, ALARM_S * 2))
    assert not is_soon(TimeLeft(ALARM_S + 1, 60.0, ALARM_S * 2))
    assert not is_soon(TimeLeft(60.0, 60.0, None)), "nobody knows"
    assert not is_soon(TimeLeft(60.0, 60.0, ALARM_S * 10))
    assert not is_soon(TimeLeft(None, None, None))
    assert is_far(TimeLeft(None, None, None))
    assert is_far(TimeLeft(CLEAR_S + 1, None, None))
    assert not is_far(TimeLeft(ALARM_S + 1, None, None)), "between the two it stays as it was"


def test_an_alarm_is_raised_once_and_again_after_it_was_well() -> None:
    alarm = Alarm()
    states = [(True, False), (True, False), (False, False), (True, False), (False, True), (True, False)]
    assert [alarm.note(bad=bad, well=well) for bad, well in states] == [True, False, False, False, False, True]


def test_the_median() -> None:
    assert find_median([3.0, 1.0, 2.0]) == 2.0
    assert find_median([]) is None
