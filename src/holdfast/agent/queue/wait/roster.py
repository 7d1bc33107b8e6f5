"""What is waited for, and how far it is: counted from the queue anew at each look, never from events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.model.errors import UsageError
from holdfast.model.queue import ACTIVE_STATES, CLOSED_STATES, WAITING_STATES, JobState
from holdfast.model.record import record

from .stuck import find_stuck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue


@record
class AwaitedJobs:
    """What is waited for: whole groups, with every job that they get meanwhile, single jobs, or everything."""

    groups: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    everything: bool = False

    def holds(self, job: QueuedJob) -> bool:
        """Whether a job is on it."""
        return self.everything or job.group in self.groups or job.label in self.labels


@record
class WaitState:
    """Where the roster stands: how many jobs in each state, and why nothing of it goes on by itself (else empty).

    `gone` jobs were on it and are not in the queue any more: how they ended cannot be told.
    """

    counts: dict[JobState, int]
    stuck: str = ""
    gone: int = 0

    @property
    def total(self) -> int:
        """How many jobs are on the roster."""
        return sum(self.counts.values()) + self.gone

    @property
    def done(self) -> int:
        """How many are proven done."""
        return self.counts.get(JobState.DONE, 0)

    @property
    def open(self) -> int:
        """How many are not closed."""
        return sum(number for state, number in self.counts.items() if state not in CLOSED_STATES)

    def describe(self) -> str:
        """``3 of 12 done, 2 running, 1 failed, 6 waiting``."""
        numbers = {
            "running": sum(self.counts.get(state, 0) for state in ACTIVE_STATES),
            "failed": self.counts.get(JobState.FAILED, 0),
            "cancelled": self.counts.get(JobState.CANCELLED, 0),
            "elsewhere": self.counts.get(JobState.ELSEWHERE, 0),
            "waiting": sum(self.counts.get(state, 0) for state in WAITING_STATES),
            "taken out of the list": self.gone,
        }
        return ", ".join([f"{self.done} of {self.total} done", *(f"{n} {word}" for word, n in numbers.items() if n)])


def look(queue: Queue, roster: AwaitedJobs) -> WaitState:
    """Count the roster, and see whether it can go on."""
    counts: dict[JobState, int] = {}
    every = queue.counts()
    for group, numbers in every.items():
        if roster.everything or group in roster.groups:
            for state, number in numbers.items():
                counts[state] = counts.get(state, 0) + number
    for job in _find_known(queue, roster.labels):
        if job.group not in roster.groups:
            counts[job.state] = counts.get(job.state, 0) + 1
    seen = WaitState({state: number for state, number in counts.items() if number})
    if not seen.open:
        return seen
    stuck = find_stuck(queue, roster, every)
    # These are several readings. When a job moved on between them they fit together badly, and another look is due,
    # which the same move wakes us for.
    return WaitState(seen.counts, stuck if queue.counts() == every else "")


def _find_known(queue: Queue, labels: Sequence[str]) -> Iterator[QueuedJob]:
    """The jobs of these labels that are still in the queue."""
    try:
        yield from queue.find(labels)
    except UsageError:
        for label in labels:
            with contextlib.suppress(UsageError):
                yield from queue.find([label])
