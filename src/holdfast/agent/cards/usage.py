"""GPU-hours of each person and week, and how much of the time each card was leased, from the accounts' ledgers."""

from __future__ import annotations

from holdfast.core.cards import usage as counting
from holdfast.core.cards.usage import AccountUsage, LeaseUse
from holdfast.host.clock import epoch_s, format_utc
from holdfast.host.lease.area import open_existing_area
from holdfast.host.lease.usage import UsageLedgers, find_week_begin, read_live
from holdfast.model.record import record


@record
class WeeklyUsage:
    """What each account had in one week, or in the part of it that was asked for."""

    since: str
    accounts: tuple[AccountUsage, ...]


@record
class UsageReport:
    """What was used between two times. `cards` is the part of the time for which each card was leased, by all.

    `uses` is how many leases were counted, `guessed` how many of them have only a last sign of life as their end.
    `simulated` are those of `cards` that are no hardware.
    """

    since: str
    until: str
    weeks: tuple[WeeklyUsage, ...]
    cards: dict[str, float]
    uses: int
    guessed: int
    warnings: tuple[str, ...]
    simulated: tuple[str, ...] = ()


def read_usage(since_s: float | None, user: str | None) -> UsageReport:
    """The GPU-hours since an epoch time (this Monday without one), of everybody or of one account (name or uid)."""
    now_s = epoch_s()
    monday_s = find_week_begin(now_s)
    begin_s = monday_s if since_s is None else since_s
    uses, wrong = _read_uses(begin_s)
    chosen = [use for use in uses if user is None or use.user == user or str(use.uid) == user]
    weeks = [
        counting.sum_by_account(chosen, first, last) for first, last in counting.split_weeks(begin_s, now_s, monday_s)
    ]
    shares = counting.sum_by_card(uses, begin_s, now_s)
    return UsageReport(
        since=format_utc(begin_s),
        until=format_utc(now_s),
        weeks=tuple(WeeklyUsage(format_utc(totals[0].begin_s), totals) for totals in weeks if totals),
        cards={card: round(part, 4) for card, part in sorted(shares.items())},
        uses=len(chosen),
        guessed=sum(not use.exact for use in chosen),
        warnings=wrong,
        simulated=tuple(sorted({card for use in uses if use.simulated for card in use.cards} & shares.keys())),
    )


def _read_uses(begin_s: float) -> tuple[tuple[LeaseUse, ...], tuple[str, ...]]:
    area = open_existing_area()
    if area is None:
        return (), ()
    past, wrong = UsageLedgers().read(area, since_s=begin_s)
    return counting.merge_uses([*past, *read_live(area)]), wrong
