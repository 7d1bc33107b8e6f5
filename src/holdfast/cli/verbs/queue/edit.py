"""``holdfast queue edit``: change when a job starts, or what holds for a group."""

from __future__ import annotations

import time

import click

from holdfast.agent.queue.change.edit import edit
from holdfast.cli.completion import complete_jobs
from holdfast.core.moments import parse_moment

from . import VERBS
from .options import JSON, answer

EPILOG = """\b
Examples:
  holdfast queue edit train --priority 10
  holdfast queue edit night/ --max-parallel 2 --hold-after 3
  holdfast queue edit train --not-before 22:00
"""


@click.command("edit", short_help=VERBS["edit"], epilog=EPILOG)
@click.argument("name", metavar="JOB|GROUP/", shell_complete=complete_jobs)
@click.option("--priority", type=click.IntRange(-1_000_000, 1_000_000), metavar="N", help="Higher starts first.")
@click.option("--not-before", metavar="TIME", help="Start then or later; `now` takes a time away.")
@click.option("--max-parallel", type=click.IntRange(min=0), metavar="N", help="Jobs of the group at once; 0: no limit.")
@click.option(
    "--hold-after", type=click.IntRange(min=0), metavar="N", help="Failures in a row that stop the group; 0: none."
)
@JSON
def command(
    *,
    name: str,
    priority: int | None,
    not_before: str | None,
    max_parallel: int | None,
    hold_after: int | None,
    as_json: bool,
) -> int:
    """Change when a waiting JOB starts, or what holds for a group (GROUP/).

    The job itself (its command, cards, limits) is changed by `queue cancel` and another `submit` under its name.
    """
    values: dict[str, object] = {}
    if priority is not None:
        values["priority"] = priority
    if not_before is not None:
        values["not_before"] = parse_moment(not_before, time.time())
    if max_parallel is not None:
        values["max_parallel"] = max_parallel or None
    if hold_after is not None:
        values["hold_after"] = hold_after
    return answer(edit(name, values), as_json=as_json)
