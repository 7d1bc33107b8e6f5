"""Killing the worker of a queue, or the supervisor that it forks, just before its n-th call that changes something.

The next worker must put everything in line: `find_faults_of` lists what it has not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.agent.detached import start_detached
from holdfast.model.ids import is_run_id
from holdfast.model.job import IsolationLevel
from holdfast.model.queue import JobState
from tests.agent.driving import Driven
from tests.agent.killing import SCENARIOS, find_faults, is_busy, settle
from tests.agent.queue.working import Work
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive
    from tests.agent.killing import Killer

SCENARIO = SCENARIOS["fails"]
JOB = "a"


@dataclass(frozen=True, slots=True)
class QueueKiller:
    """Starts jobs of a queue, each in a queue of its own."""

    killer: Killer
    drive: Drive

    def start(self, who: str, directory: Path, at: int, count: str = "") -> Work:
        """A queue of one job whose worker (``worker``) or supervisor (``queued``) was killed; nobody is at it now."""
        directory.mkdir(mode=0o700)
        given = {**self.drive.environ, "HOLDFAST_QUEUE": str(directory)}
        work = Work(str(directory), f"{directory}-runs", self.drive.workdir, given)
        work.submit({JOB: SCENARIO.command}, start=False, containment=IsolationLevel.SUBREAPER)
        environ = self.killer.environ(who, at, count)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # As `ensure_worker`, which gives no worker a library.
            start_detached(("queue-worker", str(directory)), {**given, **environ}, output=null)
        finally:
            os.close(null)
        wait_until(lambda: os.path.exists(environ["KILL_SEEN"]), what="the worker is there")
        # Of a worker that was killed the supervisor goes on, and calls the next.
        wait_until(lambda: not is_busy(str(directory), self.killer.library), what="its worker is no more")
        # One that was killed gives its memory back before its files: its lock is held for a moment.
        work.wait_left()
        return work


def finish(work: Work) -> list[Driven]:
    """Have the next worker go on until nothing is left to do; the runs of the queue."""
    work.ensure()
    work.wait_left()
    runs = [
        Driven(f"{work.runs}/{name}", name, work.environ)
        for name in (os.listdir(work.runs) if os.path.isdir(work.runs) else [])
        if is_run_id(name)
    ]
    for run in runs:
        wait_until(lambda run=run: not is_busy(run.run_dir), what=f"{run.run_id} stands still")  # type: ignore[misc]
    return runs


def find_faults_of(work: Work, *, started: bool = True) -> list[str]:
    """What is wrong with the job of a queue and its run; without `started` it may have been called off."""
    runs = finish(work)
    job = work.jobs()[JOB]
    if len(runs) != 1 or job.run_id != runs[0].run_id:
        return [f"its run is {job.run_id}, and there are {[run.run_id for run in runs]}"]
    # What a killed maker left is removed by whoever calls `reconcile`; there is nothing else for it to do.
    done = [repair for report in settle(runs[0]) for repair in report.repairs if repair.kind.value != "rest"]
    faults = [f"the next worker has left {done}"] if done else []
    faults += find_faults(runs[0], SCENARIO)
    ran = os.path.exists(f"{runs[0].run_dir}/artifacts/ran-1")
    if (job.state, job.exit_code) != (JobState.FAILED, SCENARIO.code) and (started or ran):
        faults.append(f"it is {job.state.value} ({job.exit_code}): {job.note}")
    return faults
