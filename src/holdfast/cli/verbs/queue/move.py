"""``holdfast queue move``: put a job before or behind others."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.edit import move
from holdfast.cli.completion import complete_jobs

from . import VERBS
from .options import JSON, answer


@click.command("move", short_help=VERBS["move"])
@click.argument("name", metavar="JOB|GROUP/", shell_complete=complete_jobs)
@click.option("--first", is_flag=True, help="Before all others of its priority.")
@click.option("--last", is_flag=True, help="Behind all others of its priority.")
@click.option("--before", metavar="JOB", shell_complete=complete_jobs, help="Right before this one.")
@JSON
def command(*, name: str, first: bool, last: bool, before: str | None, as_json: bool) -> int:
    """Change the place of a waiting JOB among those of its priority."""
    return answer(move(name, first=first, last=last, before=before), as_json=as_json)
