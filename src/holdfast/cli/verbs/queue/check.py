"""``holdfast queue check``: the roster against what is on disk."""

from __future__ import annotations

import click

from holdfast.agent.queue.view.check import check
from holdfast.cli.completion import complete_groups
from holdfast.cli.render import print_record
from holdfast.cli.render.queue import print_checked

from . import VERBS
from .options import JSON

EPILOG = """\b
holdfast queue check                   every group
holdfast queue check night             one group
holdfast queue check night --deep      read the results whole, and compare them across jobs"""


@click.command("check", short_help=VERBS["check"], epilog=EPILOG)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option("--deep", is_flag=True, help="Read the results whole, and look for the same bytes in several jobs.")
@JSON
def command(*, group: str | None, deep: bool, as_json: bool) -> int:
    """Hold the roster against what is on disk, and say what re-runs the rest.

    Each job that has run is looked at again: its exit record, the checks after its end, its declared results as they
    are now, its configuration. Jobs are done, open, missing, empty, failed, duplicate or unverified; runs that belong
    to no job are named. What cannot be read is never done. Nothing is changed.

    Exit code 0: every job is proven done. 1: something is open.
    """
    checked = check(group, deep=deep)
    print_record(checked) if as_json else print_checked(checked)
    return 0 if checked.complete else 1
