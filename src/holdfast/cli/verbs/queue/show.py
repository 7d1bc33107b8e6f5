"""``holdfast queue show``: everything about one job."""

from __future__ import annotations

import click

from holdfast.agent.queue.view.job import show_job
from holdfast.cli.completion import complete_jobs
from holdfast.cli.render import print_record
from holdfast.cli.render.job import print_job

from . import VERBS
from .options import JSON


@click.command("show", short_help=VERBS["show"])
@click.argument("name", metavar="JOB", shell_complete=complete_jobs)
@JSON
def command(*, name: str, as_json: bool) -> int:
    """Show everything about JOB: what it is, every reason why it waits, who holds the cards since when, an estimate."""
    seen = show_job(name)
    print_record(seen) if as_json else print_job(seen)
    return 0
