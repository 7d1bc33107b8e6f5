"""What ``holdfast submit`` says: what was taken, or would be, and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.queue.words import count_jobs
from holdfast.model.queue import WAITING_STATES, JobState

from . import clean, note, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.queue.submit.preview import Preview
    from holdfast.model.queue_order import Submitted, TakenJob

SHOWN_JOBS = 20
HASH_DIGITS = 12
LONGEST_COMMAND = 100


def describe_taken(group: str, jobs: Sequence[TakenJob], place: str = "") -> str:
    """What was handed in, in a few words, with what may be typed to look at it; `place` as ``NAME:``."""
    if len(jobs) == 1:
        job = f"{place}{jobs[0].job}"
        return f"{job} was handed in; holdfast queue show {job} says where it stands"
    return f"{count_jobs(len(jobs))} of group {place}{group} were handed in; holdfast queue shows it"


def print_submitted(taken: Submitted) -> None:
    """The job's name, or how many there are, on standard output; the rest beside it."""
    for text in taken.notes:
        note(text)
    if len(taken.jobs) == 1:
        _print_one(taken, taken.jobs[0])
        return
    known = f" ({taken.known} of them handed in before)" if taken.known else ""
    print(f"{count_jobs(len(taken.jobs))} in group {taken.group}{known}")
    note(f"look: holdfast queue ls {taken.group}    wait: holdfast wait {taken.group}/")
    for text in taken.stops:
        note(text)


def _print_one(taken: Submitted, job: TakenJob) -> None:
    print(job.job, flush=True)
    if taken.known:
        way = describe_way(job.state, job.job)
        note(f"{job.job} was handed in before, with the same configuration: it is {job.state.value}{way}")
    elif job.state in WAITING_STATES:
        note(f"{job.state.value}: {job.why}" if job.why else job.state.value)
    else:
        word = "claimed: it is being started" if job.state is JobState.CLAIMED else job.state.value
        note(f"{job.state.value}: {job.note}" if job.note else word)
    for text in taken.stops:
        note(text)
    note(f"look: holdfast queue show {job.job}    wait: holdfast wait {job.job}")


def describe_way(state: JobState, name: str) -> str:
    """How a job goes on that was handed in before and is over without having been done; empty for others."""
    return f"; once more: holdfast queue retry {name}" if state in {JobState.FAILED, JobState.CANCELLED} else ""


def print_preview(planned: Preview) -> None:
    """What would be handed in, and what it would wait for."""
    print(f"{count_jobs(len(planned.jobs))} for group {planned.group}")
    shown = planned.jobs[:SHOWN_JOBS]
    rows = [(job.job, job.cards or None, job.sha256[:HASH_DIGITS], _shorten(job.command)) for job in shown]
    table(("job", "cards", "hash", "command"), rows, right=(1,))
    if len(planned.jobs) > len(shown):
        print(f"and {len(planned.jobs) - len(shown)} more; --json shows them all")
    for text in planned.notes:
        note(text)
    waits = "; ".join(planned.waits_for)
    print(f"would wait: {waits}" if waits else "would start as soon as there is room")
    print("nothing was handed in (dry run)")


def _shorten(text: str) -> str:
    return clean(text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]}...")
