"""``holdfast results``: results on storage that lasts."""

from __future__ import annotations

import click

from holdfast.cli.lazy_group import list_verbs, verb_group

VERBS = {
    "collect": "Gather the results of many runs, and count them.",
    "copy": "Copy a run's results again; nothing is trained.",
    "shard": "Pack many small files into few archives.",
}
EPILOG = """\b
Examples:
  holdfast results copy train                         to where its job says: results: {to: DIR}
  holdfast results copy train --to /durable/results
  holdfast results collect night/ --to /durable/night    every job of a group, counted"""


@verb_group(__name__, VERBS, EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Copy results to storage that lasts, proven file by file, and gather those of many runs.

    A job that says `results: {to: DIR}` copies by itself after its success; docs/results.md.
    """
    return list_verbs(ctx)
