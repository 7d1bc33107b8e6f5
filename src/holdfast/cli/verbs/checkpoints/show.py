"""``holdfast checkpoints show``: what is in one checkpoint."""

from __future__ import annotations

import click

from holdfast.agent.view.checkpoints.checkpoint_list import read_checkpoint
from holdfast.cli.render import print_record
from holdfast.cli.render.checkpoints import print_page

from . import VERBS
from .places import JSON, RUNS, STEP, complete_places, find_place


@click.command("show", short_help=VERBS["show"])
@click.argument("place", required=False, metavar="[CHECKPOINT|RUN|DIR]", shell_complete=complete_places)
@STEP
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="N", help="The part of this rank. [default: 0]")
@click.option("-a", "--all", "everything", is_flag=True, help="Every key and value, not the first ones.")
@RUNS
@JSON
def command(
    *, place: str | None, step: int | None, rank: int, everything: bool, runs: str | None, as_json: bool
) -> int:
    """Show one checkpoint: its record, files, tracked names, arrays with types and shapes, plain values.

    Only headers and the plain values are read. Random states are left out.
    """
    page = read_checkpoint(find_place(place, runs), step, rank)
    print_record(page) if as_json else print_page(page, everything=everything)
    return 0
