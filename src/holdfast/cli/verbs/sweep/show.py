"""``holdfast sweep show``: the results of a sweep's jobs side by side."""

from __future__ import annotations

import sys

import click

from holdfast.agent.queue.sweep.export import format_csv
from holdfast.agent.queue.sweep.results import read_rows
from holdfast.cli.completion import complete_groups
from holdfast.cli.render import note, print_record
from holdfast.cli.render.sweep import print_rows
from holdfast.cli.sweep.sort_option import parse_sort
from holdfast.core.queue.results import describe_removed, list_metrics, rank_rows, tabulate

from . import VERBS


@click.command("show", short_help=VERBS["show"])
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "--sort",
    metavar="NUMBER[:min|max]",
    help="Best first by this number; say min or max where holdfast cannot know which is better.",
)
@click.option(
    "--metrics", metavar="NAME,NAME", help="Which numbers to show. [default: those that differ most usefully]"
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with every number.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, sort: str | None, metrics: str | None, as_csv: bool, as_json: bool) -> int:
    """Show every job: parameters, state, attempts, duration, and its numbers side by side.

    Numbers are what a job last logged (as `holdfast metrics` shows it) and those in its JSON results (declared
    artifacts, artifacts/metrics.json). Of a job that is not proven done they are marked with ~ and are never the best.
    STEP is how many steps are complete.
    """
    by, mode = parse_sort(sort)
    found = read_rows(name)
    if by is not None and not list_metrics(found.rows):
        note(f"no job has logged a number yet: nothing to sort by {by!r}")
    if as_csv:
        if removed := describe_removed(found.rows):
            note(removed)
        sys.stdout.write(format_csv(rank_rows(found.rows, by, mode)))
    elif as_json:
        print_record(tabulate(found.group, found.rows, by, mode))
    else:
        print_rows(found.group, found.rows, metrics=metrics, sort=(by, mode))
    return 0
