"""How often runs are interrupted: one guess and what was seen, each counted once."""

from __future__ import annotations

import pytest

from holdfast.core.job.interruptions import PRIOR_S, mean_time_between

pytestmark = pytest.mark.pure


def test_nothing_seen_is_nothing_known() -> None:
    assert mean_time_between([]) is None


@pytest.mark.requirement("SPOT-03")
def test_SPOT_03_an_observed_hour_shortens_what_was_assumed() -> None:
    assert mean_time_between([3600.0]) == (3 * 3600 + 3600) / 2
    assert mean_time_between([3600.0] * 9) == pytest.approx(3600 * 1.2)


def test_the_guess_counts_once_and_wears_off() -> None:
    assert PRIOR_S == 10800.0
    assert mean_time_between([60.0] * 999, prior_s=3600.0) == pytest.approx(60.0, rel=0.07)


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    assert mean_time_between([-5.0], prior_s=100.0) == 50.0
