"""``holdfast gpus`` without a verb: every card of this box."""

from __future__ import annotations

import click

from holdfast.agent.cards.card_list import list_cards
from holdfast.cli.render import print_record
from holdfast.cli.render.cards import print_cards
from holdfast.model.errors import PlaceError


@click.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, as_json: bool) -> int:
    """Show every card of this box."""
    found = list_cards()
    print_record(found) if as_json else print_cards(found)
    return PlaceError.exit_code if found.unread or not (found.cards or found.complete) else 0
