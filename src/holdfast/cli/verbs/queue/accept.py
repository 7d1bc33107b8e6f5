"""``holdfast queue accept``: take a job as done whose exit code 0 is in doubt."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.accept import accept
from holdfast.cli.completion import complete_jobs

from . import VERBS
from .options import JSON, answer


@click.command("accept", short_help=VERBS["accept"])
@click.argument("names", nargs=-1, required=True, metavar="JOB...", shell_complete=complete_jobs)
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@JSON
def command(*, names: tuple[str, ...], reason: str, as_json: bool) -> int:
    """Take JOBs as done that ended with 0 while something speaks against that, so that what needs them starts.

    Such a job is failed, as `unverified`: its output ends with a traceback, its losses are not finite, it left its work
    behind. Look at it first (`queue show`, `diagnose`). Its results are still proven. Who accepted it is recorded.
    """
    return answer(accept(names, reason=reason), as_json=as_json)
