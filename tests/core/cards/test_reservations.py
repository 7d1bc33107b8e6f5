"""Reservations: which count, against whom, and until when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cards.reservations import (
    FARTHEST_S,
    LONGEST_S,
    Reservation,
    choose_reserved,
    find_against,
    find_excess,
    find_own,
    is_over,
    sort_out,
)
from holdfast.core.rules.rules import Rules
from holdfast.model.gpu import GpuRequest
from holdfast.model.record import replace

pytestmark = pytest.mark.pure

KEPT = Reservation("r1", 7, "anna", ("a",), 1000.0, 5000.0, 500.0, "boot", 50.0)


def test_it_is_over_by_the_wall_clock_and_also_where_that_was_set_back() -> None:
    assert not is_over(KEPT, 4999.0, "boot", 100.0)
    assert is_over(KEPT, 5000.0, "other", 0.0)
    # 4500 s after it was made, on the same boot.
    assert is_over(KEPT, 600.0, "boot", 4550.0)
    assert not is_over(KEPT, 600.0, "other", 4550.0)


def test_it_stands_against_others_who_may_reach_into_it() -> None:
    assert find_against([KEPT], 8, "a", 2000.0, 1.0) == KEPT
    assert find_against([KEPT], 8, "a", 600.0, None) == KEPT
    assert find_against([KEPT], 8, "a", 600.0, 401.0) == KEPT
    assert find_against([KEPT], 8, "a", 600.0, 400.0) is None
    assert find_against([KEPT], 7, "a", 2000.0, None) is None
    assert find_against([KEPT], 8, "b", 2000.0, None) is None
    assert find_against([KEPT], 8, "a", 5000.0, None) is None


def test_own_cards_are_those_of_now() -> None:
    assert find_own([KEPT], 7, 999.0) == frozenset()
    assert find_own([KEPT], 7, 1000.0) == {"a"}
    assert find_own([KEPT], 8, 1000.0) == frozenset()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"end_s": 1000.0 + LONGEST_S + 1}, "reserve_max"),
        ({"end_s": 1000.0}, "no time"),
        ({"cards": ()}, "no card"),
        ({"begin_s": 501.0 + FARTHEST_S, "end_s": 600.0 + FARTHEST_S}, "a week"),
        ({"cards": tuple("abcd")}, "reserve_cards_max"),
    ],
)
def test_what_is_beyond_the_rules_does_not_count(changes: dict[str, object], words: str) -> None:
    rules = Rules(reserve_cards_max=2)
    assert find_excess(KEPT, rules) == ""
    assert words in find_excess(replace(KEPT, **changes), rules)  # type: ignore[arg-type]


def test_the_first_to_be_made_wins_a_card() -> None:
    later = replace(KEPT, id="r0", uid=8, user="bob", made_s=501.0, begin_s=4000.0, end_s=6000.0)
    apart = replace(later, id="r3", begin_s=5000.0, end_s=6000.0)
    valid, void = sort_out([later, apart, KEPT], Rules())
    assert valid == (KEPT, apart)
    assert [(item.id, "anna" in why) for item, why in void] == [("r0", True)]


def test_one_account_has_no_more_cards_at_once_than_the_rules_allow() -> None:
    more = replace(KEPT, id="r2", cards=("b",), made_s=501.0)
    assert sort_out([KEPT, more], Rules(reserve_cards_max=1))[0] == (KEPT,)
    assert sort_out([KEPT, replace(more, begin_s=5000.0, end_s=5001.0)], Rules(reserve_cards_max=1))[1] == ()


@given(
    st.lists(
        st.builds(
            lambda number, uid, cards, begin, length, made: Reservation(
                f"r{number}", uid, "x", tuple(sorted(cards)), begin, begin + length, made
            ),
            st.integers(0, 1000),
            st.integers(1, 3),
            st.frozensets(st.sampled_from("abc"), max_size=2),
            st.integers(0, 100).map(float),
            st.integers(0, 50).map(float),
            st.integers(0, 100).map(float),
        ),
        unique_by=lambda item: item.id,
        max_size=8,
    )
)
def test_no_card_is_ever_kept_for_two_at_once(found: list[Reservation]) -> None:
    valid, void = sort_out(found, Rules())
    assert len(valid) + len(void) == len(found)
    for item in valid:
        for other in valid:
            apart = item.end_s <= other.begin_s or other.end_s <= item.begin_s
            assert item is other or apart or not set(item.cards) & set(other.cards)


def test_cards_are_chosen_among_those_that_can_be_had() -> None:
    cards = [(0, "a"), (1, "b"), (2, "c")]
    assert choose_reserved(GpuRequest(count=2), cards, {"a": "anna"}) == (("b", "c"), "")
    chosen, why = choose_reserved(GpuRequest(count=3), cards, {"a": "anna"})
    assert not chosen
    assert "card 0: anna" in why
    assert choose_reserved(GpuRequest(devices=("1", "c")), cards, {}) == (("b", "c"), "")
    assert choose_reserved(GpuRequest(devices=("0",)), cards, {"a": "anna"}) == ((), "card 0: anna")
    assert choose_reserved(GpuRequest(count=1), cards, {}, {"a", "b"}) == (("c",), "")
    assert choose_reserved(GpuRequest(count=2), cards, {}, {"a"}) == (("b", "c"), "")
    assert choose_reserved(GpuRequest(count=3), cards, {}, {"a"}) == (("b", "c", "a"), "")
    assert choose_reserved(GpuRequest(devices=("0",)), cards, {}, {"a"}) == (("a",), "")
    assert choose_reserved(GpuRequest(devices=("9",)), cards, {}) == ((), "there is no card 9 here")
