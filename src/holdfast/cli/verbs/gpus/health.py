"""``holdfast gpus health``: judge how well each card is."""

from __future__ import annotations

import click

from holdfast.agent.cards.health import judge_health
from holdfast.cli.completion import complete_cards
from holdfast.cli.job.windows import parse_window
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import print_health

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus health                  every card, some seconds
  holdfast gpus health 0 --for 30s      one card, longer
  holdfast gpus health --watch-free     what a new run would get
"""


@click.command("health", short_help=VERBS["health"], epilog=EPILOG)
@click.argument("cards", nargs=-1, metavar="[CARD]...", shell_complete=complete_cards)
@click.option("--watch-free", is_flag=True, help="Look only at the cards that a new run would get now.")
@click.option("--for", "window", default="4s", metavar="DURATION", show_default=True, help="How long to watch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, cards: tuple[str, ...], watch_free: bool, window: str, as_json: bool) -> int:
    """Judge how well each CARD is (all without one): pass, warn, fail or unknown, each with what was seen.

    Watches the cards for some seconds, because what limits their clocks comes and goes, and reads the kernel's log
    for error codes (Xid) of this boot. What could not be read is shown as unknown, which is not a pass. Nothing is
    changed, nobody is disturbed. Exit code 0 when nothing failed, also where there is no card; 78 when a card did; 69
    where it could not be read whether there is one.
    """
    health = judge_health(cards, parse_window(window), free_only=watch_free)
    print_record(health) if as_json else print_health(health)
    return health.exit_code
