"""``holdfast queue clear``: take closed groups out of the list."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.clear import clear, plan_clear
from holdfast.cli.completion import complete_groups
from holdfast.cli.consent import confirm

from . import VERBS
from .options import JSON, YES, answer


@click.command("clear", short_help=VERBS["clear"])
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@YES
@click.option("--dry-run", is_flag=True, help="Show what would be taken out, and take out nothing.")
@JSON
def command(*, groups: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool) -> int:
    """Take GROUPs out of the list; without one, all that have no open job, and closed jobs of the default group.

    Their runs stay. The table of a sweep goes; `sweep export` keeps it in a file. It is asked for on a terminal;
    elsewhere --yes is needed.
    """
    plan = plan_clear(groups)
    if plan.question and not dry_run:
        confirm(plan.question, yes=yes, as_json=as_json, refusal="nothing was taken out", plan=plan.jobs or plan.groups)
    return answer(clear(plan, dry_run=dry_run), as_json=as_json)
