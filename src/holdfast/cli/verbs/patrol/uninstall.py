"""``holdfast patrol uninstall``: take the clock's entry away."""

from __future__ import annotations

import click

from holdfast.agent.patrol.report import find_entries, remove_entries
from holdfast.cli import consent

from . import VERBS
from .options import JSON


@click.command("uninstall", short_help=VERBS["uninstall"])
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@JSON
def command(*, yes: bool, as_json: bool) -> int:
    """Take away what `holdfast patrol install` made, and nothing else."""
    question = "Remove the patrol's entry from there?"
    return consent.remove_entries(find_entries(), remove_entries, question, yes=yes, as_json=as_json)
