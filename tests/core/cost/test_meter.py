"""The meter's arithmetic: the figures of the requirements, and what must never be multiplied twice."""

from __future__ import annotations

import pytest

from holdfast.core.cost.meter import (
    estimate_egress,
    estimate_loss,
    find_countdowns,
    find_hours,
    find_idle_share,
)
from holdfast.model.profile import Clock

pytestmark = pytest.mark.pure

HOUR, DAY = 3600.0, 86400.0


@pytest.mark.requirement("COST-01")
def test_two_hours_at_1_99_are_3_98() -> None:
    assert round(find_hours(1000.0, 1000.0 + 2 * HOUR) * 1.99, 2) == 3.98
    assert find_hours(2000.0, 1000.0) == 0


@pytest.mark.gotcha("U14")
@pytest.mark.requirement("COST-04")
def test_140_gb_daily_for_a_month_cost_378() -> None:
    assert round(estimate_egress(140, 0.09, 30), 2) == 378


@pytest.mark.requirement("COST-06", "B-56")
def test_a_loss_is_of_the_machine_and_not_multiplied_by_its_cards() -> None:
    # The price of a machine with 8 cards is 16 an hour: half an hour of it is 8, not 64.
    assert estimate_loss(HOUR / 2, 16.0) == 8.0
    assert estimate_loss(HOUR / 2, 16.0, machines=3) == 24.0


@pytest.mark.parametrize(
    ("busy", "share"),
    [
        ([], 1.0),
        ([(0, 50)], 0.5),
        ([(0, 50), (25, 75)], 0.25),  # both at once count once
        ([(10, 20), (-50, 15)], 0.8),  # what was before the rent is not of it
        ([(90, 500)], 0.9),
        ([(0, 100), (0, 100)], 0.0),
    ],
)
def test_idle_is_what_no_run_covers(busy: list[tuple[float, float]], share: float) -> None:
    assert find_idle_share(0, 100, busy) == pytest.approx(share)


def test_of_no_time_there_is_no_idle_share() -> None:
    assert find_idle_share(100, 100, []) is None


@pytest.mark.requirement("COST-08")
def test_a_machine_that_is_stopped_for_14_days_of_15_has_one_left() -> None:
    clocks = (
        Clock("purge", "stopped", 15 * DAY, "it is released with its disk"),
        Clock("session", "started", 20 * DAY, "it is restarted"),
        Clock("scratch", "idle", DAY, "scratch is wiped"),
    )
    found = find_countdowns(clocks, {"stopped": 0.0, "started": 0.0}, 14 * DAY)
    assert [(each.name, each.left_s) for each in found] == [("purge", DAY), ("session", 6 * DAY)]
    [over] = find_countdowns(clocks[:1], {"stopped": 0.0}, 16 * DAY)
    assert over.left_s == 0
