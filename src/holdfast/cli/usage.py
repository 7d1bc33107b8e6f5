"""``holdfast gpus usage``: GPU-hours of each person and week, and how much of the time each card was leased."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

from holdfast.cli.render import clean, note, print_json, table

if TYPE_CHECKING:
    from holdfast.core.usage import Total, Use

EPILOG = """\b
Examples:
  holdfast gpus usage                  this week, everybody
  holdfast gpus usage --since 28d      week by week
  holdfast gpus usage --since 2026-11-01 --user anna
"""
BAR_CELLS = 24
MOST_NAMED = 20
MOST_CARDS = 64
"""An account may write any names of cards into its own ledger; no box has so many."""
LONGEST_S = 400 * 86400.0


@click.command("usage", short_help="GPU-hours of each person and week.", epilog=EPILOG)
@click.option("--week", is_flag=True, help="This week, since Monday 00:00; the default.")
@click.option("--since", metavar="TIME", help="From then on: 7d, 12h, or a date such as 2026-11-01.")
@click.option("--user", metavar="NAME", help="Only this account.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, week: bool, since: str | None, user: str | None, as_json: bool) -> int:
    """Show who had how many GPU-hours, week by week, with the leases that run now, and how busy each card was.

    Each run's supervisor writes one line when it gives its cards back. Only what the account itself wrote counts as its
    own; files that somebody else put there are named and left out. What does not use holdfast is not in it.
    """
    from holdfast.core import usage as counting
    from holdfast.host.clock import epoch_s
    from holdfast.host.usage import find_week_begin
    from holdfast.model.errors import UsageError

    if week and since:
        raise UsageError("--week and --since exclude each other", hint="say one of them")
    now_s = epoch_s()
    monday_s = find_week_begin(now_s)
    begin_s = monday_s if since is None else _parse_since(since, now_s)
    uses, wrong = _read_uses(begin_s)
    chosen = [use for use in uses if user is None or use.user == user or str(use.uid) == user]
    weeks = [
        counting.sum_by_account(chosen, first, last) for first, last in counting.split_weeks(begin_s, now_s, monday_s)
    ]
    shares = counting.sum_by_card(uses, begin_s, now_s)
    if as_json:
        print_json(
            {
                "from": _utc(begin_s),
                "to": _utc(now_s),
                "weeks": [{"from": _utc(totals[0].begin_s), "accounts": totals} for totals in weeks if totals],
                "cards": {card: round(part, 4) for card, part in sorted(shares.items())},
                "uses": len(chosen),
                "warnings": wrong,
            }
        )
        return 0
    _print(weeks, shares, chosen)
    for text in wrong[:MOST_NAMED]:
        note(text)
    return 0


def _read_uses(begin_s: float) -> tuple[tuple[Use, ...], tuple[str, ...]]:
    from holdfast.cli.cards import open_existing_area
    from holdfast.core.usage import merge_uses
    from holdfast.host.usage import Ledgers, read_live

    area = open_existing_area()
    if area is None:
        return (), ()
    past, wrong = Ledgers().read(area, since_s=begin_s)
    return merge_uses([*past, *read_live(area)]), wrong


def _parse_since(text: str, now_s: float) -> float:
    from holdfast.model.errors import UsageError
    from holdfast.model.units import parse_duration

    found = None
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        try:
            found = time.mktime(time.strptime(text, "%Y-%m-%d"))
        except (ValueError, OverflowError):
            found = None
    else:
        try:
            found = now_s - parse_duration(text)
        except ValueError:
            found = None
    if found is None:
        raise UsageError(f"--since: {text!r} is no time", hint="write it like 7d, 12h or 2026-11-01")
    if not now_s - LONGEST_S <= found < now_s:
        raise UsageError(f"--since: {text} is not in the past 400 days", hint="the ledger is kept for 13 months")
    return found


def _utc(at_s: float) -> str:
    from holdfast.host.clock import format_utc

    return format_utc(at_s)


def _print(weeks: list[tuple[Total, ...]], shares: dict[str, float], uses: list[Use]) -> None:
    totals = [total for week in weeks for total in week]
    if not totals:
        print("nobody has leased a card in that time")
        return
    most = max(total.hours for total in totals)
    rows = [
        (
            time.strftime("%Y-%m-%d", time.localtime(total.begin_s)),
            total.user,
            f"{total.hours:.2f}",
            _draw_bar(total.hours, most),
            total.leases,
            total.cards_now or None,
        )
        for total in totals
    ]
    table(["from", "user", "GPU-hours", "", "leases", "cards now"], rows, right=(2, 4, 5))
    for card, part in sorted(shares.items())[:MOST_CARDS]:
        print(clean(f"{card}: leased {100 * part:.0f} % of the time"))
    if len(shares) > MOST_CARDS:
        note(f"{len(shares) - MOST_CARDS} more names of cards stand in the ledgers; --json lists them")
    guessed = sum(not use.exact for use in uses)
    if guessed:
        note(f"the end of {guessed} of {len(uses)} leases is the last sign of life: their supervisors died")


def _draw_bar(hours: float, most: float) -> str:
    """A bar in proportion to the largest; at least one cell for whatever is not nothing."""
    cells = round(BAR_CELLS * hours / most) if most > 0 else 0
    return "#" * max(cells, 1 if hours > 0 else 0)
