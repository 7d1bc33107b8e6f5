"""``holdfast checkpoints verify``: every byte, compared with what was written."""

from __future__ import annotations

import click

from holdfast.agent.view.checkpoints.checkpoint_list import prove_checkpoints
from holdfast.cli.render import print_record
from holdfast.cli.render.checkpoints import print_proofs

from . import VERBS
from .places import JSON, RUNS, complete_places, find_place, show_progress


@click.command("verify", short_help=VERBS["verify"])
@click.argument("place", required=False, metavar="[RUN|DIR|CHECKPOINT]", shell_complete=complete_places)
@click.option("-a", "--all", "everything", is_flag=True, help="All of them, not down to the first that is right.")
@RUNS
@JSON
def command(*, place: str | None, everything: bool, runs: str | None, as_json: bool) -> int:
    """Read every byte and compare it with what was written.

    Of several the newest is proven first; when it is wrong, the ones before it, until one is right. Exit code 0: all
    that was read is right. 65: a checkpoint is wrong. 74: one could not be read, or a later holdfast wrote it, so
    nothing is known about it. 66: there is none.
    """
    show = show_progress(quiet=as_json)
    found = prove_checkpoints(find_place(place, runs), everything=everything, show=show)
    print_record(found) if as_json else print_proofs(found, everything=everything)
    return found.exit_code
