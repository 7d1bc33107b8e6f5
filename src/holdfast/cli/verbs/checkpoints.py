"""``holdfast checkpoints``: what is on disk, whether it is right, what may go, and one plain file out of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.checkpoint_places import complete_places
from holdfast.cli.render import note, print_json
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.units import format_bytes

from . import SUMMARIES

if TYPE_CHECKING:
    from holdfast.cli.checkpoint_places import Place
    from holdfast.training.storage.survey import Survey

EPILOG = """\b
holdfast checkpoints ls digits                            what the run digits has saved
holdfast checkpoints verify --all checkpoints             read every byte of all of them
holdfast checkpoints show digits                          what is in the newest one
holdfast checkpoints prune digits --keep-last 1           what would go; --yes does it
holdfast checkpoints export digits model.pt --name model  a file for torch.load"""
EXIT_WRONG = 65
"""EX_DATAERR of sysexits.h: the bytes are not those that were written."""

_RUNS = click.option("--runs", metavar="DIR", type=click.Path(), help="Look for runs only under this directory.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
_STEP = click.option("--step", type=click.IntRange(min=0), metavar="N", help="Which step. [default: the newest]")


@click.group(short_help=SUMMARIES["checkpoints"], invoke_without_command=True, epilog=EPILOG)
@click.pass_context
def command(ctx: click.Context) -> int:
    """List, prove, show, prune and export the checkpoints of `holdfast.training`.

    They are found by a run (its id, the beginning of it, or its name), by a directory in which they are, or by one
    checkpoint's own directory; without any of these in ./checkpoints or here. Nothing in a checkpoint is executed.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return UsageError.exit_code
    return 0


# ---------------------------------------------------------------------------------------------------------------- ls


@command.command("ls")
@click.argument("place", required=False, metavar="[RUN|DIR]", shell_complete=complete_places)
@click.option("--metric", default="loss", show_default=True, metavar="NAME", help="Which logged value to show.")
@_RUNS
@_JSON
def list_all(*, place: str | None, metric: str, runs: str | None, as_json: bool) -> int:
    """List everything in a directory of checkpoints, newest step first.

    Records and file sizes are looked at, no content is read: `complete` means that nothing is missing, `verify` tells
    whether it is right.
    """
    from holdfast.cli.checkpoint_showing import encode_survey, print_survey

    found = _look(place, runs)
    print_json(encode_survey(found)) if as_json else print_survey(found, metric)
    return 0


def _look(text: str | None, runs: str | None) -> Survey:
    from holdfast.cli.checkpoint_places import look_around

    return look_around(_resolve(text, runs))


def _resolve(text: str | None, runs: str | None) -> Place:
    from holdfast.cli.checkpoint_places import resolve

    place = resolve(text, runs)
    if place.notice:
        note(place.notice)
    return place


# ------------------------------------------------------------------------------------------------------------ verify


@command.command("verify")
@click.argument("place", required=False, metavar="[RUN|DIR|CHECKPOINT]", shell_complete=complete_places)
@click.option("-a", "--all", "everything", is_flag=True, help="All of them, not down to the first that is right.")
@_RUNS
@_JSON
def verify(*, place: str | None, everything: bool, runs: str | None, as_json: bool) -> int:
    """Read every byte and compare it with what was written.

    Of several the newest is proven first; when it is wrong, the ones before it, until one is right. Exit code 0: all
    that was read is right. 65: a checkpoint is wrong. 74: one could not be read, or a later holdfast wrote it, so
    nothing is known about it. 66: there is none.
    """
    from holdfast.cli import checkpoint_work
    from holdfast.cli.checkpoint_showing import describe_verdict, print_verdicts

    verdicts = checkpoint_work.prove(_resolve(place, runs), everything=everything, quiet=as_json)
    wrong = [verdict for verdict in verdicts if describe_verdict(verdict) == "wrong"]
    code = EXIT_WRONG if wrong else StorageError.exit_code if any(not verdict.ok for verdict in verdicts) else 0
    if as_json:
        print_json(
            {"checkpoints": [checkpoint_work.encode_verdict(verdict) for verdict in verdicts], "exit_code": code}
        )
        return code
    print_verdicts(verdicts)
    if code and not everything:
        right = next((verdict for verdict in verdicts if verdict.ok), None)
        if right is not None:
            note(f"a resume would take {os.path.basename(right.path)}")
        elif len(verdicts) > 1:
            note("none of them is right")
    return code


# -------------------------------------------------------------------------------------------------------------- show


@command.command("show")
@click.argument("place", required=False, metavar="[CHECKPOINT|RUN|DIR]", shell_complete=complete_places)
@_STEP
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Whose part. [default: 0]")
@click.option("-a", "--all", "everything", is_flag=True, help="Every key and value, not the first ones.")
@_RUNS
@_JSON
def show(*, place: str | None, step: int | None, rank: int, everything: bool, runs: str | None, as_json: bool) -> int:
    """Show one checkpoint: its record, files, tracked names, arrays with types and shapes, plain values.

    Only headers and the plain values are read. Random states are left out.
    """
    from holdfast.cli import checkpoint_work
    from holdfast.cli.checkpoint_places import CheckpointWrong, choose
    from holdfast.cli.checkpoint_showing import encode_content, print_item
    from holdfast.training.storage import survey

    item = choose(_resolve(place, runs), step)
    if item.record is None:
        unknown = item.kind in (survey.Kind.UNREADABLE, survey.Kind.NEWER)
        raise (StorageError if unknown else CheckpointWrong)(f"{item.path}: {item.problem}")
    with checkpoint_work.told(item.path):
        content = survey.read_content(item, rank)
    if as_json:
        print_json(encode_content(item, content, rank))
        return 0
    if item.problem:
        note(f"{item.name}: {item.problem}")
    print_item(item, content, rank, everything=everything)
    return 0


# ------------------------------------------------------------------------------------------------------------- prune


@command.command("prune")
@click.argument("place", required=False, metavar="[RUN|DIR]", shell_complete=complete_places)
@click.option("--keep-last", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Newest ones.")
@click.option("--keep-best", type=click.IntRange(min=0), default=0, show_default=True, metavar="K", help="Best ones.")
@click.option("--metric", default="loss:min", show_default=True, metavar="NAME:min|max", help="What best means.")
@click.option("--set-aside", is_flag=True, help="Also those that failed their proof (step-N.bad-M).")
@click.option("--leftovers", is_flag=True, help="Also what saves that were cut off have left.")
@click.option("--live", is_flag=True, help="Also while a run writes there; it may remove some itself meanwhile.")
@click.option("-y", "--yes", is_flag=True, help="Do it; otherwise only what would go is shown.")
@_RUNS
@_JSON
def prune(  # noqa: PLR0913 - its options
    *,
    place: str | None,
    keep_last: int,
    keep_best: int,
    metric: str,
    set_aside: bool,
    leftovers: bool,
    live: bool,
    yes: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Remove checkpoints that need not be kept; without --yes only say which.

    The newest, the best and the last one without NaN stay, and every byte of what stays is proven before anything goes:
    a wrong one does not count, an older one stays in its place. What has no sound record is left alone.
    """
    from holdfast.cli import checkpoint_work
    from holdfast.training.storage import checkpoints, pruning

    where = _resolve(place, runs)
    if where.checkpoint is not None:
        raise UsageError(f"{where.checkpoint} is one checkpoint", hint=f"name its directory: {where.directory}")
    name, mode = checkpoint_work.parse_metric(metric)
    keep = checkpoints.Retention(keep_last, keep_best, name, mode)
    if not yes:
        from holdfast.cli.checkpoint_places import look_around

        return checkpoint_work.report_plan(
            pruning.plan(look_around(where), keep, aside=set_aside, leftovers=leftovers), as_json=as_json
        )
    checkpoint_work.require_own(where)
    with checkpoint_work.told(where.directory), checkpoint_work.held(where.directory, live=live):
        return checkpoint_work.prune(where, keep, aside=set_aside, leftovers=leftovers and not live, as_json=as_json)


# ------------------------------------------------------------------------------------------------------------ export


@command.command("export")
@click.argument("place", metavar="CHECKPOINT|RUN|DIR", shell_complete=complete_places)
@click.argument("out", type=click.Path())
@click.option("--format", "form", type=click.Choice(("safetensors", "torch")), help="[default: by the ending of OUT]")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only what is tracked under this name.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The part of this rank.")
@click.option("--overwrite", is_flag=True, help="Replace OUT.")
@_STEP
@_RUNS
@_JSON
def export(  # noqa: PLR0913 - its options
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
    where all ranks have the same, else one --rank at a time. torch has to be installed where holdfast is.
    """
    from holdfast.cli import checkpoint_work
    from holdfast.cli.checkpoint_places import choose
    from holdfast.cli.checkpoint_showing import Progress
    from holdfast.training.storage import export as exporting

    form = form or exporting.guess_format(out)
    if form is None:
        raise UsageError(f"{out}: the ending does not tell the format", hint="say --format safetensors, or torch")
    item = choose(_resolve(place, runs), step)
    progress = Progress(item.name, 0 if item.record is None else item.record.nbytes, quiet=as_json)
    try:
        with checkpoint_work.told(item.path):
            made = exporting.export(
                item.path, out, form=form, names=names, rank=rank, overwrite=overwrite, progress=progress
            )
    except FileExistsError:
        raise StorageError(f"{out} is there already", hint="--overwrite replaces it") from None
    finally:
        progress.close()
    if as_json:
        print_json({"checkpoint": item.path, "step": item.step, **_encode_made(made)})
        return 0
    print(made.path)
    what = ", ".join(made.names)
    note(f"step {item.step}: {what} ({made.arrays} arrays), {format_bytes(made.bytes)}, {made.format}")
    return 0


def _encode_made(made: Any) -> dict[str, Any]:  # noqa: ANN401 - training.export.Exported
    return {
        "path": made.path,
        "format": made.format,
        "bytes": made.bytes,
        "names": list(made.names),
        "arrays": made.arrays,
    }
