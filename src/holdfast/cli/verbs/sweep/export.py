"""``holdfast sweep export``: the whole table of a sweep into a file."""

from __future__ import annotations

import click

from holdfast.agent.queue.sweep.export import export
from holdfast.agent.queue.sweep.results import read_rows
from holdfast.cli.completion import complete_groups
from holdfast.cli.path_type import PATH
from holdfast.cli.render import note
from holdfast.cli.render.sweep import describe_progress
from holdfast.core.queue.results import describe_removed

from . import VERBS


@click.command("export", short_help=VERBS["export"])
@click.argument("name", shell_complete=complete_groups)
@click.argument("file", type=PATH)
@click.option("--overwrite", is_flag=True, help="Replace FILE.")
def command(*, name: str, file: str, overwrite: bool) -> int:
    """Write the whole table, every number of every job, into FILE: NAME.csv or NAME.json.

    The column `final` says which numbers are results: those of jobs that are proven done. The jobs are in their own
    order; `holdfast sweep show NAME --sort accuracy --csv` prints the same with the best first.
    """
    found = read_rows(name)
    export(found.group, found.rows, file, overwrite=overwrite)
    print(file)
    note(describe_progress(found.group, found.rows))
    if removed := describe_removed(found.rows):
        note(removed)
    return 0
