"""GPU-hours: evenly over the weeks that a lease touches, each lease once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cards.usage import (
    WEEK_S,
    LeaseUse,
    hours_within,
    merge_uses,
    split_weeks,
    sum_by_account,
    sum_by_card,
)
from holdfast.model.record import replace

pytestmark = pytest.mark.pure

USE = LeaseUse("run", 1, 7, "anna", ("a", "b"), 0.0, 7200.0, 14400.0)


def test_a_use_is_spread_evenly_over_its_time() -> None:
    assert hours_within(USE, 0.0, 7200.0) == 4.0
    assert hours_within(USE, 3600.0, 10_000.0) == 2.0
    assert hours_within(USE, 8000.0, 9000.0) == 0.0


def test_a_clock_that_was_set_back_loses_no_hours() -> None:
    odd = replace(USE, begin_s=500.0, end_s=500.0, gpu_s=3600.0)
    assert hours_within(odd, 0.0, 1000.0) == 1.0
    assert hours_within(odd, 501.0, 1000.0) == 0.0


def test_a_note_that_was_written_twice_counts_once() -> None:
    guess = replace(USE, gpu_s=99_999.0, exact=False)
    longer = replace(USE, gpu_s=14_500.0)
    assert merge_uses([USE, guess, longer]) == (longer,)
    live = replace(USE, live=True, gpu_s=1.0)
    assert merge_uses([USE, live]) == (live,)
    assert len(merge_uses([USE, replace(USE, attempt=2), replace(USE, uid=8)])) == 3


def test_accounts_are_summed_most_first_and_live_leases_are_cards_now() -> None:
    other = replace(USE, run_id="r2", uid=8, user="bob", gpu_s=36_000.0)
    live = replace(USE, run_id="r3", live=True, end_s=3600.0, gpu_s=3600.0, cards=("c",))
    totals = sum_by_account([USE, other, live], 0.0, 7200.0)
    assert [(total.user, total.hours, total.leases, total.cards_now) for total in totals] == [
        ("bob", 10.0, 1, 0),
        ("anna", 5.0, 2, 1),
    ]
    assert [total.simulated_hours for total in totals] == [0.0, 0.0]
    (mixed,) = sum_by_account([USE, replace(live, simulated=True)], 0.0, 7200.0)
    assert (mixed.hours, mixed.simulated_hours) == (5.0, 1.0)


def test_a_shared_card_is_leased_once_at_a_time() -> None:
    shares = sum_by_card([USE, replace(USE, run_id="r2", begin_s=3600.0, end_s=10_800.0)], 0.0, 14_400.0)
    assert shares == {"a": 0.75, "b": 0.75}


@given(st.integers(0, int(4 * WEEK_S)), st.integers(1, int(WEEK_S)))
def test_weeks_cover_a_span_without_gaps_or_overlap(ago_s: int, since_monday_s: int) -> None:
    now_s = 100 * WEEK_S
    weeks = split_weeks(now_s - ago_s, now_s, now_s - since_monday_s)
    assert sum(last - first for first, last in weeks) == ago_s
    assert all(before[1] == after[0] for before, after in itertools.pairwise(weeks))


@given(st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 2e6))
def test_two_halves_have_the_hours_of_the_whole(begin_s: float, length_s: float, cut_s: float) -> None:
    use = replace(USE, begin_s=begin_s, end_s=begin_s + length_s, gpu_s=2 * length_s)
    whole = hours_within(use, 0.0, 1e7)
    assert hours_within(use, 0.0, cut_s) + hours_within(use, cut_s, 1e7) == pytest.approx(whole)
