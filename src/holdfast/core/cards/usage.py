"""GPU-hours by account, by week, by card. Pure.

A use is one lease from its grant to its end. Its GPU-seconds were measured on a clock that nobody can set, where that
was possible; the times are the wall clock's and only say when it was. A shared card or a slice counts as a card.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.record import record

HOUR_S = 3600.0
DAY_S = 86400.0
WEEK_S = 7 * DAY_S
LONGEST_S = 10 * 365 * DAY_S


@record
class LeaseUse:
    """One lease that was, or is (`live`). Epoch seconds; `cards` are device UUIDs; not `exact`: its end is a guess."""

    run_id: str
    attempt: int
    uid: int
    user: str
    cards: tuple[str, ...]
    begin_s: float
    end_s: float
    gpu_s: float
    share: bool = False
    simulated: bool = False
    exact: bool = True
    live: bool = False


@record
class AccountUsage:
    """What one account had in one span: GPU-hours, how many leases, and how many cards it holds now.

    `simulated_hours` are those of them on simulated cards.
    """

    uid: int
    user: str
    begin_s: float
    hours: float
    leases: int
    cards_now: int = 0
    simulated_hours: float = 0.0


def merge_uses(uses: Iterable[LeaseUse]) -> tuple[LeaseUse, ...]:
    """Each attempt of a run once: of several notes the exact one, then the longest; what runs now goes before both.

    A supervisor that was killed between writing its note and giving the cards back writes a second one.
    """
    best: dict[tuple[int, str, int], LeaseUse] = {}
    for use in uses:
        key = use.uid, use.run_id, use.attempt
        before = best.get(key)
        if before is None or (use.live, use.exact, use.gpu_s) > (before.live, before.exact, before.gpu_s):
            best[key] = use
    return tuple(best.values())


def hours_within(use: LeaseUse, begin_s: float, end_s: float) -> float:
    """The GPU-hours of a use that fall into a span; evenly spread, as they were."""
    length_s = use.end_s - use.begin_s
    if length_s <= 0:
        # A clock that was set back during the lease: the whole of it counts where it began.
        return use.gpu_s / HOUR_S if begin_s <= use.begin_s < end_s else 0.0
    overlap_s = min(use.end_s, end_s) - max(use.begin_s, begin_s)
    return use.gpu_s * max(0.0, overlap_s) / length_s / HOUR_S


def sum_by_account(uses: Iterable[LeaseUse], begin_s: float, end_s: float) -> tuple[AccountUsage, ...]:
    """Each account's GPU-hours in a span, most first."""
    hours: dict[int, float] = {}
    simulated: dict[int, float] = {}
    leases: dict[int, int] = {}
    now: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    for use in uses:
        part = hours_within(use, begin_s, end_s)
        if part <= 0 and not use.live:
            continue
        names[use.uid] = use.user
        hours[use.uid] = hours.get(use.uid, 0.0) + part
        simulated[use.uid] = simulated.get(use.uid, 0.0) + (part if use.simulated else 0.0)
        leases[use.uid] = leases.get(use.uid, 0) + 1
        now.setdefault(use.uid, set()).update(use.cards if use.live else ())
    totals = [
        AccountUsage(uid, names[uid], begin_s, hours[uid], leases[uid], len(now[uid]), simulated[uid]) for uid in names
    ]
    return tuple(sorted(totals, key=lambda total: (-total.hours, total.user)))


def sum_by_card(uses: Iterable[LeaseUse], begin_s: float, end_s: float) -> dict[str, float]:
    """The part of a span (0 to 1) for which each card was leased to somebody; of a shared card the union."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for use in uses:
        first, last = max(use.begin_s, begin_s), min(use.end_s, end_s)
        for card in use.cards if last > first else ():
            spans.setdefault(card, []).append((first, last))
    length_s = max(end_s - begin_s, 1.0)
    return {card: _measure_union(found) / length_s for card, found in spans.items()}


def _measure_union(spans: list[tuple[float, float]]) -> float:
    covered_s, reached = 0.0, float("-inf")
    for first, last in sorted(spans):
        covered_s += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return covered_s


def split_weeks(begin_s: float, end_s: float, monday_s: float) -> tuple[tuple[float, float], ...]:
    """The weeks that a span touches, oldest first, cut to the span. `monday_s` is the begin of the week of `end_s`.

    Weeks are seven days of 24 hours back from there; where summer time begins or ends one is an hour off.
    """
    weeks = []
    start = monday_s
    last = end_s
    while last > begin_s:
        weeks.append((max(start, begin_s), last))
        last, start = start, start - WEEK_S
    return tuple(reversed(weeks))
