"""Waiting for a sweep that a scheduler runs: for one run after the other, which takes as long as the last of them."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.agent.queue.wait.roster import WaitState
from holdfast.agent.queue.wait.run import wait_for_run
from holdfast.host.clock import monotonic_s
from holdfast.model.errors import StorageError
from holdfast.model.queue import JobState, QueuedJob
from holdfast.model.record import record

from .look import find_rerun, look_at_jobs, require_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.agent.view.runs.sweeps import FoundSweep

OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})


@record
class WaitedSweep:
    """The last look at a sweep, and whether the time was up. `missing` are the jobs that are not done.

    `commands` hand in again what has failed or was cancelled, what has failed alone, and what was cancelled, with which
    goes what has failed (empty: nothing).
    """

    seen: WaitState
    late: bool
    missing: tuple[QueuedJob, ...]
    commands: tuple[str, str, str]


def wait_for_sweep(found: FoundSweep, *, deadline: float | None, tell: Callable[[WaitState], None]) -> WaitedSweep:
    """Sleep until no job waits or runs, those too that are added meanwhile.

    Raises:
        StorageError: the sweep cannot be read.
    """
    given_up: set[str] = set()
    while True:
        looks = look_at_jobs(found, require_sweep(found))
        seen = WaitState(dict(Counter(look.job.state for look in looks)))
        tell(seen)
        left = [look for look in looks if look.job.state in OPEN and look.view.run_dir not in given_up]
        late = deadline is not None and monotonic_s() >= deadline
        if late or not left:
            missing = tuple(look.job for look in looks if look.job.state is not JobState.DONE)
            return WaitedSweep(seen, late, missing, _list_commands(os.path.basename(found.directory), missing))
        for look in left:
            try:
                wait_for_run(look.view.run_dir, deadline=deadline)
            except StorageError:
                # Somebody removed it, or nobody can read it: that is no end, and nothing to wait for.
                given_up.add(look.view.run_dir)


def _list_commands(sweep: str, missing: Sequence[QueuedJob]) -> tuple[str, str, str]:
    cancelled = [job for job in missing if job.state is JobState.CANCELLED]
    failed = [job for job in missing if job.state is not JobState.CANCELLED]
    whole, part, rest = (find_rerun(sweep, jobs) or "" for jobs in (missing, failed, cancelled))
    return whole, part, rest
