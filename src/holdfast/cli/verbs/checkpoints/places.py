"""The options that the verbs of ``holdfast checkpoints`` share, and how a person names a place."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from holdfast.agent.view.checkpoints.place import CheckpointPlace, resolve_place
from holdfast.agent.view.find import find_run, require_readable
from holdfast.cli.completion import complete_runs
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.cli.render.checkpoints import ProgressMeter

RUNS = click.option("--runs", metavar="DIR", type=PATH, help="Look for runs only under this directory.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
STEP = click.option("--step", type=click.IntRange(min=0), metavar="N", help="Which step. [default: the newest]")


def complete_places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs, and directories: for shell completion."""
    return [*complete_runs(ctx, param, incomplete), CompletionItem(incomplete, type="dir")]


def find_place(text: str | None, runs: str | None) -> CheckpointPlace:
    """The place that `text` names; a notice about it is said."""

    def find_directory(name: str) -> tuple[str, str | None]:
        found = find_run(name, root=runs)
        require_readable(found)
        return found.run_dir, found.notice

    place = resolve_place(text, find_directory)
    if place.notice:
        note(place.notice)
    return place


def show_progress(*, quiet: bool) -> Callable[[str, int], ProgressMeter]:
    """Begins to show how much of something has been read."""
    return lambda what, total: ProgressMeter(what, total, quiet=quiet)
