"""``holdfast sweep check``: the jobs of a sweep against what is on disk."""

from __future__ import annotations

import click

from holdfast.agent.queue.view.check import check
from holdfast.cli.completion import complete_groups
from holdfast.cli.render import print_record
from holdfast.cli.render.queue import print_checked

from . import VERBS


@click.command("check", short_help=VERBS["check"])
@click.argument("name", shell_complete=complete_groups)
@click.option("--deep", is_flag=True, help="Read every result whole and compare its hash.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, deep: bool, as_json: bool) -> int:
    """Hold the jobs against what is on disk, and say what re-runs the rest; as `holdfast queue check NAME`.

    Exit code 0: every job is proven done. 1: something is open.
    """
    checked = check(name, deep=deep)
    print_record(checked) if as_json else print_checked(checked)
    return 0 if checked.complete else 1
