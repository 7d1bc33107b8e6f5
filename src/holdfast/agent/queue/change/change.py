"""What an order to the queue came to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.queue import JobState
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.queue import QueuedJob


@record
class ChangedJob:
    """A job that an order was about, as it is now; `job` is its label, `note` why it is as it is."""

    id: int
    job: str
    state: JobState
    note: str


@record
class QueueChange:
    """What an order did: the word for it, its group and jobs, sentences beside it, and the command's exit code.

    `active` counts the jobs still at work after a pause or drain, `cpu_slots` are those that were set (None: auto),
    `groups` those that were cleared.
    """

    did: str
    group: str | None = None
    jobs: tuple[ChangedJob, ...] = ()
    notes: tuple[str, ...] = ()
    exit_code: int = 0
    active: int | None = None
    cpu_slots: int | None = None
    groups: tuple[str, ...] = ()


def describe_jobs(jobs: Iterable[QueuedJob]) -> tuple[ChangedJob, ...]:
    """Jobs as a change names them."""
    return tuple(ChangedJob(job.id, job.label, job.state, job.note) for job in jobs)
