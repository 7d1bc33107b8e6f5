"""``holdfast queue pause``: start nothing new, or not this job."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.stop import pause
from holdfast.cli.completion import complete_jobs
from holdfast.desk.author import find_user
from holdfast.desk.caller import CALLER

from . import VERBS
from .options import JSON, answer, strip_place


@click.command("pause", short_help=VERBS["pause"])
@click.argument("names", nargs=-1, metavar="[GROUP|JOB]...", shell_complete=complete_jobs)
@click.option("--reason", default="", metavar="TEXT", help="Of jobs: why, for whoever looks.")
@JSON
def command(*, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    """Start nothing more of GROUPs, or of the whole queue, and hold JOBs that wait. What runs goes on.

    A job that was held by name goes on by name alone: `queue resume JOB`. At a place of Slurm JOB is a run that waits
    there, which Slurm then holds.
    """
    change = pause(strip_place(names), reason=reason, by=CALLER.author or find_user())
    return answer(change, as_json=as_json)
