"""How jobs are named and counted in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.queue import JobState
from holdfast.model.run import Outcome
from holdfast.model.units import format_count
from holdfast.model.verdict import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.queue import QueuedJob

SHOWN_LABELS = 5
SAME_AGAIN = frozenset(
    kind.value
    for kind in (
        *(FailureClass.BUG, FailureClass.NATIVE_CRASH, FailureClass.DIVERGED, FailureClass.EXEC_FAILED),
        *(FailureClass.ENVIRONMENT, FailureClass.RESULT_MISSING, FailureClass.REFUSED, FailureClass.TIMED_OUT),
        *(FailureClass.OUT_OF_MEMORY, FailureClass.RESOURCE_LIMIT, FailureClass.SHARED_MEMORY, FailureClass.DISK_FULL),
    )
)
"""Failures after which the same job would most likely end the same way."""


def name_jobs(jobs: Sequence[QueuedJob]) -> str:
    """``a, b, c and 7 more``, by their labels."""
    return name_labels([job.label for job in jobs])


def name_labels(labels: Sequence[str], most: int = SHOWN_LABELS) -> str:
    """``a, b, c and 7 more``."""
    shown = ", ".join(labels[:most])
    return f"{shown} and {len(labels) - most} more" if len(labels) > most else shown


def count_jobs(number: int) -> str:
    """``1 job``, ``2 jobs``."""
    return format_count(number, "job")


def find_way_on(job: QueuedJob, waits: QueuedJob | None = None) -> str:
    """The command for a job that does not go on by itself; empty for others, and where its note has the command.

    `waits` is a job that needs it: of what was cancelled it is said how that goes without it.
    """
    if "`holdfast queue " in job.note:
        return ""
    if job.state is JobState.HELD:
        return f"holdfast queue resume {job.label}"
    if job.state not in (JobState.FAILED, JobState.CANCELLED):
        return ""
    in_doubt = job.outcome == Outcome.SUCCEEDED.value and bool(job.failure)
    accept = f" (or, as it is: holdfast queue accept {job.label})" if in_doubt else ""
    again = f"holdfast queue retry {job.label}{accept}"
    if job.state is JobState.CANCELLED and waits is not None:
        # One that has run keeps its name, and what it needs.
        name = "again" if waits.run_id is None else "under another name"
        rest = "with --after the others" if waits.open_needs > 1 else "without --after"
        return f"{again}; without it: holdfast queue cancel {waits.label}, then submit it {name} {rest}"
    return f"{again} (once its cause is mended)" if job.failure in SAME_AGAIN and not in_doubt else again
