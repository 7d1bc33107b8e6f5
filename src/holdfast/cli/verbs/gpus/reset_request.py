"""``holdfast gpus reset-request``: a message that asks the administrator for a reset."""

from __future__ import annotations

import click

from holdfast.agent.cards.reset import request_reset
from holdfast.cli.render import clean, print_record

from . import VERBS


@click.command("reset-request", short_help=VERBS["reset-request"])
@click.argument("index", type=click.IntRange(min=0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, index: int, as_json: bool) -> int:
    """Write a message that asks the administrator to reset card INDEX. Nothing is executed.

    It holds the card, the processes on it, their users, the exact command, and says that the card is idle only when
    that was read to be true.
    """
    found = request_reset(index)
    print_record(found) if as_json else print(clean(found.text, keep_newlines=True))
    return 0
