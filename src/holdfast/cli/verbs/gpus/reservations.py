"""``holdfast gpus reservations``: what is reserved."""

from __future__ import annotations

import click

from holdfast.agent.cards.card_list import name_cards
from holdfast.agent.cards.reserved import list_reservations
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import print_reservations

from . import VERBS


@click.command("reservations", short_help=VERBS["reservations"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, as_json: bool) -> int:
    """List the reservations that are not over: who, which cards, from when to when, what for.

    Those that do not count (too long, over an earlier one, written in another's name) are named with the reason.
    """
    found = list_reservations()
    print_record(found) if as_json else print_reservations(found, name_cards())
    return 0
