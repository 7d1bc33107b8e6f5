"""``holdfast gpus clear``: give a card back that was set aside."""

from __future__ import annotations

import click

from holdfast.agent.cards.quarantine import give_back
from holdfast.cli.completion import complete_cards
from holdfast.cli.render import note, print_record

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus clear 3 --reason "reset by the administrator"
"""


@click.command("clear", short_help=VERBS["clear"], epilog=EPILOG)
@click.argument("card", shell_complete=complete_cards)
@click.option("--reason", default="", metavar="TEXT", help="Why it is well again, for the record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, card: str, reason: str, as_json: bool) -> int:
    """Give CARD (index or UUID) back after a reset or exchange; error codes from before then do not count.

    Ends the quarantine that you set; root ends everybody's.
    """
    done = give_back(card, reason)
    if as_json:
        print_record(done)
        return 0
    print(f"card {card} ({done.uuid}) is cleared; it was {'set aside' if done.cleared else 'not set aside'}")
    for record in done.left:
        note(f"still set aside by {record.user}: {record.reason}")
    return 0
