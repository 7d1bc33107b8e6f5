"""``holdfast gpus quarantine``: set a card aside."""

from __future__ import annotations

import click

from holdfast.agent.cards.quarantine import set_aside
from holdfast.cli.completion import complete_cards
from holdfast.cli.render import clean, note, print_record

from . import VERBS

EPILOG = """\b
Examples:
  holdfast gpus quarantine 3 --reason "Xid 95 twice today"
  holdfast gpus clear 3                 gives it back
"""


@click.command("quarantine", short_help=VERBS["quarantine"], epilog=EPILOG)
@click.argument("card", shell_complete=complete_cards)
@click.option("--reason", required=True, metavar="TEXT", help="Why; everybody on this box can read it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, card: str, reason: str, as_json: bool) -> int:
    """Set CARD (index or UUID) aside on this host: no new run of yours gets it until it is cleared.

    Said by root it holds for every account. Runs that are on the card go on.
    """
    made = set_aside(card, reason)
    record = made.quarantined
    if not made.answers:
        note(f"no card that answers now has the UUID {record.uuid}: is it written right?")
    if as_json:
        print_record(made)
    else:
        print(clean(f"card {card} ({record.uuid}) is set aside: {record.reason}"))
    return 0
