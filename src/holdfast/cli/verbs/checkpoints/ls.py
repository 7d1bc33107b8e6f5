"""``holdfast checkpoints ls``: everything in a directory of checkpoints."""

from __future__ import annotations

import click

from holdfast.agent.view.checkpoints.checkpoint_list import list_checkpoints
from holdfast.cli.render import print_record
from holdfast.cli.render.checkpoints import print_list

from . import VERBS
from .places import JSON, RUNS, complete_places, find_place


@click.command("ls", short_help=VERBS["ls"])
@click.argument("place", required=False, metavar="[RUN|DIR]", shell_complete=complete_places)
@click.option("--metric", default="loss", show_default=True, metavar="NAME", help="Which logged value to show.")
@RUNS
@JSON
def command(*, place: str | None, metric: str, runs: str | None, as_json: bool) -> int:
    """List everything in a directory of checkpoints, newest step first.

    Records and file sizes are looked at, no content is read: `complete` means that nothing is missing, `verify` tells
    whether it is right.
    """
    found = list_checkpoints(find_place(place, runs))
    print_record(found) if as_json else print_list(found, metric)
    return 0
