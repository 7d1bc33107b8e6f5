"""``holdfast queue clear``: take closed groups out of the list."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.retry import clear
from holdfast.cli.completion import complete_groups

from . import VERBS
from .options import JSON, answer


@click.command("clear", short_help=VERBS["clear"])
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@JSON
def command(*, groups: tuple[str, ...], as_json: bool) -> int:
    """Take GROUPs out of the list; without one, all that have no open job. Their runs stay."""
    return answer(clear(groups), as_json=as_json)
