"""``holdfast gpus unreserve``: end a reservation."""

from __future__ import annotations

import click

from holdfast.agent.cards.reserve import end_reservation
from holdfast.cli.completion import complete_reservations
from holdfast.cli.render import clean, print_record

from . import VERBS


@click.command("unreserve", short_help=VERBS["unreserve"])
@click.argument("name", metavar="ID", shell_complete=complete_reservations)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, as_json: bool) -> int:
    """End reservation ID: yours, or as root anybody's. Runs are not touched."""
    ended = end_reservation(name)
    if as_json:
        print_record(ended)
    else:
        print(clean(f"{ended.id} is over: {', '.join(ended.cards)}"))
    return 0
