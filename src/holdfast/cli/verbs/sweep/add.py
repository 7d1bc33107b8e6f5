"""``holdfast sweep add``: more jobs for a sweep, also while it runs."""

from __future__ import annotations

import click

from holdfast.cli.completion import complete_groups
from holdfast.cli.path_type import PATH
from holdfast.cli.sweep.add import plan_more

from . import VERBS
from .hand_in import hand_in, show_preview


@click.command("add", short_help=VERBS["add"])
@click.argument("name", shell_complete=complete_groups)
@click.option("--grid", multiple=True, metavar="NAME=V,V", help="Every combination is a new job.")
@click.option("--jobs", "table", metavar="FILE", type=PATH, help="New jobs as the rows of a CSV file.")
@click.option("--accept-changes", is_flag=True, help="Also when the job's or configuration's files have changed.")
@click.option("--dry-run", is_flag=True, help="Show every new job, and hand nothing in.")
@click.option("--runs", metavar="DIR", type=PATH, help="Directory of the runs. [default: as for `run`]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    *,
    name: str,
    grid: tuple[str, ...],
    table: str | None,
    accept_changes: bool,
    dry_run: bool,
    runs: str | None,
    as_json: bool,
) -> int:
    """Add jobs to a sweep, also while it runs, over the job and the settings that it was handed in with.

    Jobs that are there already are left as they are. Refused when a file that the others were made from has changed
    since, because the new jobs could not be compared with them.
    """
    made = plan_more(name.rstrip("/"), axes=grid, table=table, accept_changes=accept_changes)
    if dry_run:
        show_preview(made, as_json=as_json)
    else:
        hand_in(made, runs, as_json=as_json, keep_recipe=False)
    return 0
