"""``holdfast sweep retry``: the failed jobs of a sweep again."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.retry import retry_sweep
from holdfast.cli.completion import complete_groups
from holdfast.cli.render import print_record
from holdfast.cli.render.queue import print_change

from . import VERBS


@click.command("retry", short_help=VERBS["retry"])
@click.argument("name", shell_complete=complete_groups)
@click.option("-a", "--all", "everything", is_flag=True, help="Also the cancelled and the held ones.")
@click.option("--dry-run", is_flag=True, help="Say which jobs these are, and queue nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(*, name: str, everything: bool, dry_run: bool, as_json: bool) -> int:
    """Queue the failed jobs of a sweep again, each with the next attempt of its run and the same configuration.

    Where Slurm runs them they are a new array.
    """
    change = retry_sweep(name, everything=everything, dry_run=dry_run)
    print_record(change) if as_json else print_change(change)
    return change.exit_code
