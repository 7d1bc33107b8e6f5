"""The order of those who wait for cards, with the shares that the box's people agreed on.

First come, first served among those within their share; whoever has more than that borrows, and gets cards when nobody
within a share wants them. Nobody starves: a request that has waited for `starve_after` counts as within. Whoever is at
a hard limit is left out of the line until below it, so that no card rests on such a request's account.

Pure: requests, what each account holds and has used, and the rules come in. Whoever decides by the same files comes to
the same answer, which is all that keeps the line: there is nobody to enforce it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.model.record import record
from holdfast.model.units import format_count

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules

STARVE_AFTER_S = 4 * 3600.0
"""Where the rules do not say how long somebody beyond a share may be overtaken."""
MOST_NAMED = 4


class ShareRank(Enum):
    """Where the rules put a request, best first."""

    WITHIN = 0
    BORROWING = 1
    BARRED = 2


@record
class AccountShare:
    """What one account has now: `cards` held, GPU-`hours` of this week with those that run, the `runs` that hold."""

    cards: int = 0
    hours: float = 0.0
    runs: tuple[str, ...] = ()


@record
class CardRequest:
    """One request: when it came (`order`, smaller is earlier), and the `cards` of which it wants `count`."""

    order: int
    run_id: str
    uid: int
    count: int
    cards: frozenset[str]
    waited_s: float = 0.0


def has_shares(rules: Rules) -> bool:
    """Whether the rules say anything by which the line differs from first come, first served."""
    limits = (rules.cards_per_user, rules.max_cards_per_user, rules.hours_per_week, rules.hours_per_week_max)
    return any(limit is not None for limit in limits)


def counts_hours(rules: Rules) -> bool:
    """Whether it matters what somebody has used this week."""
    return rules.hours_per_week is not None or rules.hours_per_week_max is not None


def find_patience(rules: Rules) -> float:
    """For how many seconds somebody beyond a share may be overtaken."""
    return STARVE_AFTER_S if rules.starve_after_s is None else rules.starve_after_s


def rank_request(request: CardRequest, account: AccountShare, rules: Rules) -> ShareRank:
    """Where a request stands. Limits that are hard bar it, however long it has waited."""
    if find_bars(request.count, account, rules):
        return ShareRank.BARRED
    if request.waited_s >= find_patience(rules):
        return ShareRank.WITHIN
    return ShareRank.BORROWING if explain_borrowing(request.count, account, rules) else ShareRank.WITHIN


def explain_borrowing(count: int, account: AccountShare, rules: Rules) -> str:
    """Why `count` more cards would be beyond an account's share; empty when they are within."""
    cards, hours = rules.cards_per_user, rules.hours_per_week
    if cards is not None and account.cards + count > cards:
        total = format_count(account.cards + count, "card")
        return f"with the {account.cards} held that is {total}; the share is {cards}"
    if hours is not None and account.hours >= hours:
        return f"{account.hours:.1f} GPU-hours were used this week; the share is {hours:g}"
    return ""


def find_bars(count: int, account: AccountShare, rules: Rules) -> tuple[str, ...]:
    """Which hard limits keep an account from `count` more cards, with what it has; empty when none does."""
    source = ", ".join(rules.sources) or "the rules"
    found = []
    most = rules.max_cards_per_user
    if most is not None and account.cards + count > most:
        held = f"this account holds {format_count(account.cards, 'card')}{_name(account.runs)}"
        then = "possible when one of them is given back" if account.cards else "ask for fewer"
        found.append(f"{held} and asks for {count} more; {source} allows {most} (share.max_cards_per_user); {then}")
    hours = rules.hours_per_week_max
    if hours is not None and account.hours >= hours:
        used = f"this account has used {account.hours:.1f} GPU-hours this week"
        found.append(f"{used}; {source} allows {hours:g} (share.hours_per_week_max); possible again on Monday at 00:00")
    return tuple(found)


def _name(runs: tuple[str, ...]) -> str:
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return f" ({', '.join(runs[:MOST_NAMED])}{more})" if runs else ""


def next_in_line(
    requests: Iterable[CardRequest], accounts: Mapping[int, AccountShare], rules: Rules
) -> tuple[CardRequest, ...]:
    """The line as these rules order it, who is next first; barred requests are left out.

    What is taken by those in front is not counted: the line is asked again each time that somebody got cards.
    """
    placed = [
        (rank_request(request, accounts.get(request.uid, AccountShare()), rules), request) for request in requests
    ]
    standing = [
        (place.value, request.order, request.run_id, request)
        for place, request in placed
        if place is not ShareRank.BARRED
    ]
    return tuple(entry[-1] for entry in sorted(standing, key=lambda entry: entry[:3]))


def list_ahead(
    me: CardRequest | None,
    others: Iterable[CardRequest],
    accounts: Mapping[int, AccountShare],
    rules: Rules,
    cards: frozenset[str],
) -> tuple[CardRequest, ...]:
    """Those who may have one of `cards` before me, who is next first. Without a place in line (None) that is all."""
    rivals = [request for request in others if request.cards & cards and (me is None or request != me)]
    line = next_in_line(rivals if me is None else [*rivals, me], accounts, rules)
    return line[: line.index(me)] if me is not None and me in line else line
