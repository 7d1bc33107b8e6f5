"""Who is next when people share a box: within a share first, in order of arrival, and nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cards.shares import (
    STARVE_AFTER_S,
    AccountShare,
    CardRequest,
    ShareRank,
    find_bars,
    has_shares,
    list_ahead,
    next_in_line,
    rank_request,
)
from holdfast.core.rules.rules import Rules

pytestmark = pytest.mark.pure

CARDS = frozenset({"a", "b"})
SOFT = Rules(cards_per_user=1, sources=("/etc/r.toml",))
HARD = Rules(max_cards_per_user=2, hours_per_week_max=10.0, sources=("/etc/r.toml",))


def request(
    order: int, uid: int, count: int = 1, *, waited_s: float = 0.0, cards: frozenset[str] = CARDS
) -> CardRequest:
    return CardRequest(order, f"run-{order}", uid, count, cards, waited_s)


requests = st.lists(
    st.builds(
        request, st.integers(0, 50), st.integers(1, 4), st.integers(1, 3), waited_s=st.floats(0, 2 * STARVE_AFTER_S)
    ),
    unique_by=lambda item: item.order,
    max_size=12,
)
accounts = st.dictionaries(st.integers(1, 4), st.builds(AccountShare, st.integers(0, 4), st.floats(0, 20)))
rule_sets = st.builds(
    Rules,
    cards_per_user=st.none() | st.integers(1, 4),
    max_cards_per_user=st.none() | st.integers(1, 4),
    hours_per_week=st.none() | st.floats(0, 20),
    hours_per_week_max=st.none() | st.floats(0, 20),
)


@pytest.mark.requirement("LEASE-14")
@given(requests, accounts)
def test_without_shares_it_is_first_come_first_served(line: list[CardRequest], held: dict[int, AccountShare]) -> None:
    assert not has_shares(Rules())
    assert [item.order for item in next_in_line(line, held, Rules())] == sorted(item.order for item in line)


@given(requests, accounts, rule_sets, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_who_looks(
    line: list[CardRequest], held: dict[int, AccountShare], rules: Rules, shuffler: object
) -> None:
    mixed = list(line)
    shuffler.shuffle(mixed)  # type: ignore[attr-defined]
    assert next_in_line(mixed, held, rules) == next_in_line(line, held, rules)


@given(requests, accounts, rule_sets)
def test_nobody_starves_and_only_hard_limits_take_somebody_out(
    line: list[CardRequest], held: dict[int, AccountShare], rules: Rules
) -> None:
    ordered = next_in_line(line, held, rules)
    for item in line:
        assert (item in ordered) == (not find_bars(item.count, held.get(item.uid, AccountShare()), rules))
    for place, item in enumerate(ordered):
        if item.waited_s >= STARVE_AFTER_S:
            # Only who came before is before it, and each of these is within a share or overdue as well.
            assert all(other.order < item.order for other in ordered[:place])


def test_a_share_is_kept_before_somebody_borrows() -> None:
    held = {1: AccountShare(cards=1), 2: AccountShare()}
    first, second = request(1, uid=1), request(2, uid=2)
    assert rank_request(first, held[1], SOFT) is ShareRank.BORROWING
    assert next_in_line([first, second], held, SOFT) == (second, first)
    assert list_ahead(first, [first, second], held, SOFT, CARDS) == (second,)
    assert list_ahead(second, [first, second], held, SOFT, CARDS) == ()
    # Alone, the borrower is next.
    assert next_in_line([first], held, SOFT) == (first,)


def test_among_borrowers_and_among_the_others_the_first_is_first() -> None:
    held = {1: AccountShare(cards=2), 2: AccountShare(cards=1), 3: AccountShare()}
    line = [request(1, 1), request(2, 2), request(3, 3), request(4, 3)]
    assert [item.order for item in next_in_line(line, held, SOFT)] == [3, 4, 1, 2]


def test_more_cards_than_the_share_at_once_is_borrowing_until_it_is_overdue() -> None:
    big = request(1, 1, count=2)
    assert rank_request(big, AccountShare(), SOFT) is ShareRank.BORROWING
    assert rank_request(request(1, 1, count=2, waited_s=STARVE_AFTER_S), AccountShare(), SOFT) is ShareRank.WITHIN
    patient = Rules(cards_per_user=1, starve_after_s=60.0)
    assert rank_request(request(1, 1, count=2, waited_s=61.0), AccountShare(), patient) is ShareRank.WITHIN


def test_hours_of_the_week_count_like_cards() -> None:
    rules = Rules(hours_per_week=10.0)
    assert rank_request(request(1, 1), AccountShare(hours=9.9), rules) is ShareRank.WITHIN
    assert rank_request(request(1, 1), AccountShare(hours=10.0), rules) is ShareRank.BORROWING


def test_a_hard_limit_is_said_with_rule_use_and_when() -> None:
    assert find_bars(1, AccountShare(cards=1, hours=9.0), HARD) == ()
    (cards,) = find_bars(1, AccountShare(cards=2, runs=("run-a", "run-b")), HARD)
    for part in ("holds 2 cards (run-a, run-b)", "allows 2", "share.max_cards_per_user", "/etc/r.toml", "given back"):
        assert part in cards
    (hours,) = find_bars(1, AccountShare(hours=12.34), HARD)
    for part in ("12.3 GPU-hours", "allows 10 ", "share.hours_per_week_max", "Monday"):
        assert part in hours
    assert "ask for fewer" in find_bars(3, AccountShare(), HARD)[0]


def test_who_is_barred_holds_nobody_up_however_old_the_request_is() -> None:
    held = {1: AccountShare(cards=2)}
    old = request(1, 1, waited_s=10 * STARVE_AFTER_S)
    assert rank_request(old, held[1], HARD) is ShareRank.BARRED
    assert list_ahead(request(2, 2), [old, request(2, 2)], held, HARD, CARDS) == ()


def test_requests_for_other_cards_are_not_ahead() -> None:
    other = request(1, 1, cards=frozenset({"c"}))
    assert list_ahead(request(2, 2), [other], {}, SOFT, CARDS) == ()
    # Without a place of one's own everybody who may have one of the cards is ahead.
    assert list_ahead(None, [request(1, 1), other], {}, SOFT, CARDS) == (request(1, 1),)
