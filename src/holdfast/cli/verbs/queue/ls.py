"""``holdfast queue ls``: groups, what runs, what waits and why."""

from __future__ import annotations

import click

from holdfast.agent.queue.view.listing import list_queue
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.runs.sweeps import list_sweeps
from holdfast.cli.completion import complete_groups
from holdfast.cli.render import note, print_record
from holdfast.cli.render.queue import print_queue

from . import VERBS
from .options import JSON

EPILOG = """\b
Examples:
  holdfast queue ls night --state failed
  holdfast queue ls --all --json
"""

MOST_SWEEPS = 5


@click.command("ls", short_help=VERBS["ls"], epilog=EPILOG)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these: queued, held, failed, waiting...")
@click.option("--all", "everything", is_flag=True, help="Every job, not only the first that wait.")
@JSON
def command(*, group: str | None, states: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """List the queue, or GROUP: counts, what runs with its progress, what waits next with the reason."""
    seen = list_queue(group, states=states, everything=everything)
    print_record(seen) if as_json else print_queue(seen)
    if group is None and not as_json and (sweeps := list_sweeps(list_roots())):
        named = ", ".join(sweeps[:MOST_SWEEPS]) + (", ..." if len(sweeps) > MOST_SWEEPS else "")
        note(f"in Slurm's own queue, and not in this one: {named}; `holdfast sweep show {sweeps[0]}` has its jobs")
    return 0
