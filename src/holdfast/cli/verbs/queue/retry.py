"""``holdfast queue retry``: queue again what has failed, was cancelled or is held."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.retry import retry
from holdfast.cli.completion import complete_jobs

from . import VERBS
from .options import JSON, answer


@click.command("retry", short_help=VERBS["retry"])
@click.argument("names", nargs=-1, metavar="[JOB|GROUP/]...", shell_complete=complete_jobs)
@click.option("--failed", is_flag=True, help="Only failed ones; without a name all of the queue.")
@click.option(
    "--from", "begin", metavar="JOB", shell_complete=complete_jobs, help="JOB and all that its group has after it."
)
@JSON
def command(*, names: tuple[str, ...], failed: bool, begin: str | None, as_json: bool) -> int:
    """Queue JOBs again that failed, were cancelled or are held. Each goes on as the next attempt of its run.

    A job runs again as it was asked for. `holdfast restart RUN --timeout 8h --limit-memory 8GB` changes it and keeps
    its run; the queue follows that.
    """
    return answer(retry(names, failed=failed, begin=begin), as_json=as_json)
