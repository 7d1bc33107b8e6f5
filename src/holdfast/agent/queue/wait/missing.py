"""The jobs that are not proven done when a wait ends, each with what became of it or why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.view.runs.row import read_row
from holdfast.model.queue import ACTIVE_STATES, CLOSED_STATES, WAITING_STATES, JobState, QueuedJob
from holdfast.model.record import record, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.queue.queue import Queue

    from .roster import AwaitedJobs

MOST_EXPLAINED = 20
"""Waiting jobs whose reasons are looked for, and jobs at work whose runs are looked at."""


@record
class MissingJob:
    """A job that is not proven done. `seconds` is how long its last attempt took, None while it is not over.

    `note` is what became of it, or why it waits; `condition` how the run of a job at work stands, None if not read.
    """

    job: str
    state: JobState
    failure: str
    outcome: str | None
    exit_code: int | None
    seconds: float | None
    note: str
    run_id: str | None
    condition: str | None = None


def list_missing(queue: Queue, roster: AwaitedJobs) -> list[QueuedJob]:
    """The jobs of the roster that are not proven done."""
    states = [state for state in JobState if state is not JobState.DONE]
    return [job for job in queue.jobs(states=states) if roster.holds(job)]


def describe_missing(job: QueuedJob) -> MissingJob:
    """What the queue knows of one."""
    seconds = job.ended_at - job.started_at if job.ended_at and job.started_at else None
    return MissingJob(
        job=job.label,
        state=job.state,
        failure=job.failure,
        outcome=job.outcome,
        exit_code=job.exit_code,
        seconds=seconds if job.state in CLOSED_STATES else None,
        note=job.note,
        run_id=job.run_id,
    )


def describe_waiting(queue: Queue, jobs: Sequence[QueuedJob]) -> list[MissingJob]:
    """What is known of each, with why it waits; of many the first of those that do not start by themselves."""
    # What they need a desk that is no Linux has not, and it has no queue.
    from holdfast.agent.queue.view.reasons import explain_each  # lazy: for jobs that wait alone

    waiting = sorted((job for job in jobs if job.state in WAITING_STATES), key=lambda job: job.state is JobState.QUEUED)
    reasons = explain_each(queue, waiting[:MOST_EXPLAINED])
    looked_at = {job.id for job in [job for job in jobs if job.state in ACTIVE_STATES][:MOST_EXPLAINED]}
    found = []
    for job in jobs:
        one = describe_missing(job)
        if job.id in looked_at and job.run_id is not None:
            row = read_row(job.runs_root, job.run_id)
            one = one if row.ended else replace(one, condition=row.condition, note=one.note or row.note)
        found.append(replace(one, note=one.note or reasons.get(job.id, "")))
    return found
