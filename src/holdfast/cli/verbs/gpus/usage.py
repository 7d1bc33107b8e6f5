"""``holdfast gpus usage``: GPU-hours of each person and week, and how much of the time each card was leased."""

from __future__ import annotations

import time

import click

from holdfast.agent.cards.usage import read_usage
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import print_usage
from holdfast.core.moments import parse_past
from holdfast.model.errors import UsageError

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus usage                  this week, everybody
  holdfast gpus usage --since 28d      week by week
  holdfast gpus usage --since 2026-11-01 --user anna
"""
LONGEST_S = 400 * 86400.0


@click.command("usage", short_help=VERBS["usage"], epilog=EPILOG)
@click.option("--week", is_flag=True, help="This week, since Monday 00:00; the default.")
@click.option("--since", metavar="TIME", help="From then on: 7d, 12h, or a date such as 2026-11-01.")
@click.option("--user", metavar="NAME", help="Only this account.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, week: bool, since: str | None, user: str | None, as_json: bool) -> int:
    """Show who had how many GPU-hours, week by week, with the leases that run now, and how busy each card was.

    Each run's supervisor writes one line when it gives its cards back. Only what the account itself wrote counts as its
    own; files that somebody else put there are named and left out. What does not use holdfast is not in it.
    """
    if week and since:
        raise UsageError("--week and --since exclude each other", hint="say one of them")
    found = read_usage(None if since is None else _parse_since(since, time.time()), user)
    print_record(found) if as_json else print_usage(found)
    return 0


def _parse_since(text: str, now_s: float) -> float:
    found = parse_past(text, now_s)
    if not now_s - LONGEST_S <= found < now_s:
        raise UsageError(f"--since: {text} is not in the past 400 days", hint="the ledger is kept for 13 months")
    return found
