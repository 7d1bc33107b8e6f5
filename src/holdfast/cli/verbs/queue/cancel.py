"""``holdfast queue cancel``: take jobs out of the queue."""

from __future__ import annotations

import click

from holdfast.agent.queue.change.cancel import cancel, plan_cancel
from holdfast.cli.completion import complete_jobs
from holdfast.cli.consent import confirm

from . import VERBS
from .options import JSON, answer


@click.command("cancel", short_help=VERBS["cancel"])
@click.argument("names", nargs=-1, required=True, metavar="JOB|GROUP/...", shell_complete=complete_jobs)
@click.option("--running", is_flag=True, help="Also stop those at work; without it they go on.")
@click.option("--now", is_flag=True, help="With --running: KILL at once, without grace.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@JSON
def command(*, names: tuple[str, ...], running: bool, now: bool, yes: bool, as_json: bool) -> int:
    """Take waiting JOBs out of the queue; with --running stop the runs of those at work, too.

    More than one job, or one that runs, is asked for on a terminal; elsewhere --yes is needed. `queue retry` takes
    them back.
    """
    plan = plan_cancel(names, running=running)
    if plan.question:
        jobs = tuple((job.label, job.state) for job in plan.jobs)
        confirm(plan.question, yes=yes, as_json=as_json, refusal=plan.refusal, plan=jobs)
    return answer(cancel(plan, now=now), as_json=as_json)
