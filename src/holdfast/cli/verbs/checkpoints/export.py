"""``holdfast checkpoints export``: one checkpoint as one plain file."""

from __future__ import annotations

import click

from holdfast.agent.control.checkpoints.files import export_checkpoint
from holdfast.cli.path_type import PATH
from holdfast.cli.render import print_record
from holdfast.cli.render.checkpoints import print_exported

from . import VERBS
from .places import JSON, RUNS, STEP, complete_places, find_place, show_progress


@click.command("export", short_help=VERBS["export"])
@click.argument("place", metavar="CHECKPOINT|RUN|DIR", shell_complete=complete_places)
@click.argument("out", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(("safetensors", "torch")), help="What OUT is. [default: by its ending]"
)
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only what is tracked under this name.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The part of this rank.")
@click.option("--overwrite", is_flag=True, help="Replace OUT.")
@STEP
@RUNS
@JSON
def command(  # noqa: PLR0913 - its options
    *,
    place: str,
    out: str,
    form: str | None,
    names: tuple[str, ...],
    rank: int | None,
    overwrite: bool,
    step: int | None,
    runs: str | None,
    as_json: bool,
) -> int:
    """Write one checkpoint into the one file OUT: safetensors, or for `torch.load(OUT, weights_only=True)`.

    The whole checkpoint is proven first. With one --name the file holds that state under its own keys, as
    `load_state_dict` wants it; else all names, in safetensors as NAME.KEY. A checkpoint of several ranks is exported
    where all ranks have the same, else one --rank at a time. A torch file is written by the Python that trained, where
    holdfast's own has no torch.
    """
    where, show = find_place(place, runs), show_progress(quiet=as_json)
    made = export_checkpoint(where, step, out, form=form, names=names, rank=rank, overwrite=overwrite, show=show)
    print_record(made) if as_json else print_exported(made)
    return 0
