"""How much longer jobs take, from what jobs like them took, in words that say what an estimate rests on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.core.queue.forecast import describe_estimate, estimate_rest, expect_seconds
from holdfast.model.queue import WAITING_STATES
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.queue import JobState, QueuedJob
    from holdfast.store.queue.queue import Queue


@record
class Estimate:
    """Seconds that something takes still, from how many done jobs (0: from a stated time)."""

    seconds: float
    samples: int
    stated: bool = False

    @property
    def words(self) -> str:
        """``about 3h20m (from 14 done jobs)``."""
        return describe_estimate(self.seconds, self.samples, stated=self.stated)


@record
class JobCost:
    """What one job is expected to take, and from how many measurements that is known."""

    seconds: float | None
    samples: int

    def left(self, job: QueuedJob, now: float) -> float | None:
        """How much longer a running job takes; 0 when it is over its time, None when nothing is known."""
        if self.seconds is None:
            return None
        begun = job.started_at if job.started_at is not None else now
        return max(0.0, self.seconds - max(0.0, now - begun))


def find_cost(queue: Queue, job: QueuedJob) -> JobCost:
    """The expected seconds of a job."""
    durations = queue.durations(job.id)
    return JobCost(expect_seconds(job.expected_s, durations), len(durations))


def estimate_jobs(
    queue: Queue, counts: Mapping[JobState, int], active: Sequence[QueuedJob], times: Sequence[float] = ()
) -> Estimate | None:
    """How long until all jobs of `counts` have ended, as many at a time as now; None where nothing is known.

    One waiting or running job stands for all of them. `times` are those before which one of them does not start.
    """
    waiting = sum(number for state, number in counts.items() if state in WAITING_STATES)
    if not active:
        # Nothing runs: when something will is what nobody can tell from durations.
        return None
    cost = find_cost(queue, active[0])
    now = time.time()
    lefts = [left for job in active if (left := cost.left(job, now)) is not None]
    if cost.seconds is None or len(lefts) < len(active):
        return None
    ready = [moment - now for moment in times if moment > now]
    seconds = estimate_rest(waiting, lefts, cost.seconds, len(active), ready)
    return None if seconds is None else Estimate(seconds, cost.samples, stated=not cost.samples)
