"""``holdfast gpus``: every card, who holds it, since when, what runs on it, and why it is not to be had."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.lazy_group import load_command, verb_group

VERBS = {
    "clear": "Give a card back that was set aside.",
    "health": "Judge how well each card is.",
    "idle": "Who holds cards and does nothing with them.",
    "quarantine": "Set a card aside.",
    "release": "End the lease of a run.",
    "reservations": "List what is reserved.",
    "reserve": "Keep cards for a span of time.",
    "reset-request": "Write to the administrator for a reset.",
    "unreserve": "End a reservation.",
    "usage": "GPU-hours of each person and week.",
}


@verb_group(__name__, VERBS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> Any:  # noqa: ANN401 - what click hands on
    """Show every card of this box: who holds it and since when, run, memory, use, strangers, health, why not available.

    Nothing is leased and nobody is disturbed by looking. A driver that does not answer is named. Where the leases
    cannot be read no card is called available, and the exit code is 69, as where it could not be read whether there
    is a card. A box that has none (no driver, and no device file of a card) is no error: 0.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    return ctx.invoke(load_command(__name__, "ls"), as_json=as_json)
