"""``holdfast checkpoints prune``: what need not be kept, shown first."""

from __future__ import annotations

import click

from holdfast.agent.control.checkpoints.files import RetentionOptions, plan_pruning, prune_checkpoints
from holdfast.cli.render import note, print_record
from holdfast.cli.render.checkpoints import print_pruning
from holdfast.model.errors import UsageError

from . import VERBS
from .places import JSON, RUNS, complete_places, find_place, show_progress


@click.command("prune", short_help=VERBS["prune"])
@click.argument("place", required=False, metavar="[RUN|DIR]", shell_complete=complete_places)
@click.option("--keep-last", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Newest ones.")
@click.option("--keep-best", type=click.IntRange(min=0), default=0, show_default=True, metavar="K", help="Best ones.")
@click.option("--metric", default="loss:min", show_default=True, metavar="NAME:min|max", help="What best means.")
@click.option("--set-aside", is_flag=True, help="Those that failed their proof (step-N.bad-M), too.")
@click.option("--leftovers", is_flag=True, help="What saves that were cut off have left, too.")
@click.option("--live", is_flag=True, help="Also while a run writes there; it may remove some itself meanwhile.")
@click.option("-y", "--yes", is_flag=True, help="Do it; otherwise only what would go is shown.")
@RUNS
@JSON
def command(  # noqa: PLR0913 - its options
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

    --set-aside and --leftovers only add to that: sound checkpoints that neither --keep-last nor --keep-best keeps go
    all the same. To remove none of those, keep more than there are: --keep-last 1000.
    """
    where = find_place(place, runs)
    name, mode = parse_metric(metric)
    keep = RetentionOptions(keep_last, keep_best, name, mode, aside=set_aside, leftovers=leftovers)
    if yes:
        found = prune_checkpoints(where, keep, live=live, show=show_progress(quiet=as_json), tell=note)
    else:
        found = plan_pruning(where, keep)
    print_record(found) if as_json else print_pruning(found, planned=not yes)
    return found.exit_code


def parse_metric(text: str) -> tuple[str, str]:
    """Name and mode of ``NAME:min``.

    Raises:
        UsageError: it is not of that form.
    """
    name, _, mode = text.partition(":")
    if not name or mode not in ("", "min", "max"):
        raise UsageError(f"--metric: {text!r} is not NAME:min or NAME:max", hint="write it like loss:min")
    return name, mode or "min"
