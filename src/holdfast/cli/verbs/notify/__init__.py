"""``holdfast notify``: whether messages reach you, before a job depends on it."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import list_verbs, verb_group

VERBS = {"test": "Send a message by every way that is named, now."}
EPILOG = """\b
Examples:
  holdfast notify test                       by your own defaults, from this machine
  holdfast notify test train.yaml            by those of a job
  holdfast notify test train.yaml --on gpu1  from the place, as its supervisor would"""


@verb_group(__name__, VERBS, EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Try the ways by which a job tells people (`notify` in the job file, docs/messages.md)."""
    return list_verbs(ctx)
