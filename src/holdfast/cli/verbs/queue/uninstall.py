"""``holdfast queue uninstall``: take the entry of `queue install` away."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.boot_entry import find_installed, remove_boot_entries
from holdfast.cli.consent import remove_entries

from . import VERBS
from .options import JSON, YES


@click.command("uninstall", short_help=VERBS["uninstall"])
@YES
@JSON
def command(*, yes: bool, as_json: bool) -> int:
    """Take away what `holdfast queue install` made, and nothing else. Runs and the queue stay as they are."""
    question = "Remove the queue's entry from there?"
    return remove_entries(find_installed(), remove_boot_entries, question, yes=yes, as_json=as_json)
