"""How jobs are named and counted in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.model.queue import QueuedJob

SHOWN_LABELS = 5


def name_jobs(jobs: Sequence[QueuedJob]) -> str:
    """``a, b, c and 7 more``, by their labels."""
    return name_labels([job.label for job in jobs])


def name_labels(labels: Sequence[str]) -> str:
    """``a, b, c and 7 more``."""
    shown = ", ".join(labels[:SHOWN_LABELS])
    return f"{shown} and {len(labels) - SHOWN_LABELS} more" if len(labels) > SHOWN_LABELS else shown


def count_jobs(number: int) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} job{'' if number == 1 else 's'}"
