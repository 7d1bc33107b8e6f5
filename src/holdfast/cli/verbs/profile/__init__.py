"""``holdfast profile``: what is known of kinds of machines."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.lazy_group import load_command, verb_group

VERBS = {
    "check": "Look for what is wrong, doubtful or old in profiles.",
    "ls": "List the profiles.",
    "probe": "Begin a profile of your own from what a place is.",
    "show": "Show all that a profile says, and from where.",
    "survives": "Say whether a path outlives an act.",
    "verify": "Say that facts are still so, after a look.",
}
EPILOG = """\b
Examples:
  holdfast profile show runpod
  holdfast profile survives runpod /workspace/model stop
  holdfast place add rented root@203.0.113.7 --port 41022 --profile runpod

Your own profiles, and what you say over those of holdfast, are files of ~/.config/holdfast/profiles."""


@verb_group(__name__, VERBS, EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> Any:  # noqa: ANN401 - what click hands on
    """Show what a kind of machine keeps, deletes and bills. Without a subcommand the same as `ls`.

    A profile is data: which storage outlives which act, which acts end the meter, which clocks run. A place names one
    (`holdfast place add --profile`, or profile = "..." in places.toml). Every fact has a day and a source.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    return ctx.invoke(load_command(__name__, "ls"), as_json=as_json)
