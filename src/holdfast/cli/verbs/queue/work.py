"""``holdfast queue work``: see that a worker looks after the queue; for a clock, not for people."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.work import see_to_work
from holdfast.cli.render import note
from holdfast.core.queue.words import count_jobs

from . import VERBS


@click.command("work", short_help=VERBS["work"], hidden=True)
@click.option("--boot", is_flag=True, help="Say what was found, for the entry of `queue install`.")
def command(*, boot: bool) -> int:
    """See that a worker looks after the queue, and leave."""
    found = see_to_work()
    for text in found.notes:
        note(text)
    if boot:
        done = "no worker was needed" if not found.left else "a worker is there"
        done = "a worker was started" if found.started else done
        print(f"{found.at} {count_jobs(found.left)} not over; {done}")
    return 0
