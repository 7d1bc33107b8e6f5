"""What was handed in at a place, or would be, for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.core.queue.words import count_jobs
from holdfast.model.queue import WAITING_STATES, GroupKind, JobState
from holdfast.model.units import format_bytes, format_count

from . import clean, heading, note, pairs, table
from .dry_run import list_job
from .order import UNKNOWN
from .submit import LONGEST_COMMAND, SHOWN_JOBS, describe_way

if TYPE_CHECKING:
    from holdfast.desk.orders.enqueue import JobsPlan, TakenThere
    from holdfast.model.queue_order import TakenJob


def print_taken(taken: TakenThere, kind: GroupKind) -> None:
    """The job's name, or how many there are, on standard output; the rest beside it, as it is typed at this desk."""
    place = taken.place
    for text in taken.notes:
        note(text)
    if not taken.fresh:
        note(f"{place} had taken this order already; nothing is there twice")
    if len(taken.jobs) == 1:
        _print_one(taken, taken.jobs[0])
    elif taken.jobs:
        known = f" ({taken.known} of them handed in before)" if taken.known else ""
        more = f", which has {taken.total} now" if taken.total > len(taken.jobs) else ""
        print(f"{count_jobs(len(taken.jobs))} in group {taken.group} of {place}{known}{more}", flush=True)
        look = "sweep show" if kind is GroupKind.SWEEP else "queue ls"
        note(f"look: holdfast {look} {taken.group} --on {place}    wait: holdfast wait {place}:{taken.group}/")
    for text in taken.stops:
        note(text)
    if not taken.worker:
        note(f"no worker is at work at {place}: nothing starts until one is; holdfast queue resume --on {place}")


def _print_one(taken: TakenThere, job: TakenJob) -> None:
    place = taken.place
    print(f"{place}:{job.job}", flush=True)
    if taken.known:
        way = describe_way(job.state, f"{job.job} --on {place}")
        note(f"{job.job} was handed in before, with the same configuration: it is {job.state.value}{way}")
    elif job.state in WAITING_STATES:
        note(f"{job.state.value}: {job.why}" if job.why else job.state.value)
    else:
        note("claimed: it is being started" if job.state is JobState.CLAIMED else job.state.value)
    note(f"look: holdfast queue show {job.job} --on {place}    wait: holdfast wait {place}:{job.job}")


def print_jobs_plan(plan: JobsPlan) -> None:
    """The plan for people."""
    heading("place")
    where = "this machine" if plan.host is None else plan.host
    pairs([("name", plan.place), ("host", where), ("runs", plan.root or UNKNOWN)], indent=2)
    heading("code")
    if plan.code is None:
        print("  none is sent: the working directory is the box's own")
    else:
        print(f"  {format_count(plan.code.files, 'file')}, {format_bytes(plan.code.bytes)}, tree {plan.code.tree[:16]}")
        print(f"  {_say_copies(plan)}; what is there already is not sent again")
    heading("job")
    pairs(list_job(plan.base), indent=2)
    for line in plan.setup:
        print(f"  before it: {line}")
    heading(f"{count_jobs(len(plan.jobs))} for group {plan.group}")
    rows = [(job.job, _shorten(shlex.join(job.command))) for job in plan.jobs[:SHOWN_JOBS]]
    table(("job", "command"), rows)
    if len(plan.jobs) > SHOWN_JOBS:
        print(f"and {len(plan.jobs) - SHOWN_JOBS} more; --json shows them all")
    for number, array in enumerate(plan.arrays, 1):
        limit = "" if array.limit is None else f", at most {array.limit} at once"
        heading(f"array {number} of {len(plan.arrays)}: {count_jobs(array.jobs)}{limit}")
        print(clean(array.script, keep_newlines=True), end="")
    heading("checks")
    for check in plan.checks:
        print(f"  {check}")
    print("nothing was sent (dry run)")


def _say_copies(plan: JobsPlan) -> str:
    if plan.shares_tree:
        return "all jobs run in the one read-only tree: copies for each would be too large"
    return "each run gets a copy of its own"


def _shorten(text: str) -> str:
    return clean(text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]}...")
