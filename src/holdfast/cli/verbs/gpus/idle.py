"""``holdfast gpus idle``: who holds cards and does nothing with them."""

from __future__ import annotations

import click

from holdfast.agent.cards.idle import find_idle
from holdfast.cli.duration_option import parse_duration_option
from holdfast.cli.job.windows import parse_window
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import print_idle

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus idle                  held for 30 min or more and at rest now
  holdfast gpus idle --min 2h --for 30s
"""


@click.command("idle", short_help=VERBS["idle"], epilog=EPILOG)
@click.option(
    "--min",
    "least",
    default="30m",
    metavar="DURATION",
    show_default=True,
    help="Only those at rest or held for at least so long.",
)
@click.option("--for", "window", default="4s", metavar="DURATION", show_default=True, help="How long to watch now.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, least: str, window: str, as_json: bool) -> int:
    """Show leases and other programs that hold a card at rest, with a message that can be sent to their owner.

    Every card is watched for some seconds now. For how long it has rested before is known only of runs of this account
    (all runs, for root) by their health samples; of others it is said since when they hold it. Nobody is disturbed.
    Exit code 0, also where there is no card; 69 where the cards or the leases cannot be read.
    """
    found = find_idle(parse_duration_option(least, "--min"), parse_window(window))
    print_record(found) if as_json else print_idle(found, least)
    return found.exit_code
