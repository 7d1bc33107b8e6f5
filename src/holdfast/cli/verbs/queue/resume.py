"""``holdfast queue resume``: let the queue, groups or held jobs go on."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.stop import resume
from holdfast.cli.completion import complete_jobs

from . import VERBS
from .options import JSON, answer, strip_place


@click.command("resume", short_help=VERBS["resume"])
@click.argument("names", nargs=-1, metavar="[GROUP|JOB]...", shell_complete=complete_jobs)
@click.option("--accept-changes", is_flag=True, help="Run with script and config as they are now.")
@click.option("--with-environment", is_flag=True, help="Give the jobs the secrets of this shell's environment anew.")
@JSON
def command(*, names: tuple[str, ...], accept_changes: bool, with_environment: bool, as_json: bool) -> int:
    """Let GROUPs, held JOBs or the whole queue go on, also after a drain; starts a worker when none is there."""
    change = resume(strip_place(names), accept_changes=accept_changes, with_environment=with_environment)
    return answer(change, as_json=as_json)
