"""What is asked of a scheduler about runs that it starts, whichever it is. One package for each, by its name.

A run's ``run.json`` names its scheduler (`RunOrigin.scheduler`). What the scheduler says of a run is never the run's
state: the exit record is the truth, and the scheduler's word counts only where there can be no exit record any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import Unsupported
from holdfast.model.scheduler import SchedulerReport

if TYPE_CHECKING:
    from holdfast.core.slurm.arrays import ArrayPlan
    from holdfast.model.finding import Finding
    from holdfast.model.job import JobSpec

PACKAGES = {"slurm": "holdfast.agent.scheduler.slurm.scheduler"}


class Scheduler(Protocol):
    """One scheduler, as seen from this machine. Each call may take as long as its limit, and no longer."""

    def look(self, run_dirs: Iterable[str]) -> dict[str, SchedulerReport]:
        """What it says of these runs, by directory, in one look; a run of which nothing can be said is left out.

        Raises:
            PlaceError: it does not answer; nothing follows for any run.
        """
        ...

    def cancel(self, run_dirs: Iterable[str], words: Mapping[str, SchedulerReport] | None = None) -> None:
        """Have it end the jobs of runs, or never start them, by one command; what is over stays as it is.

        `words` are those of a look that was made just now, which is then not made again.

        Raises:
            PlaceError: it does not answer, or whether it did is not known.
            HoldfastError: it refuses.
        """
        ...

    def hold(self, run_dir: str, *, held: bool) -> str:
        """Have it not start the job of a run that waits, or else let it go on; its own name for the job.

        Raises:
            UsageError: the job does not wait.
            PlaceError: it does not answer.
            HoldfastError: it refuses.
        """
        ...

    def check_attempt(self, run_dir: str, environ: Mapping[str, str], now_epoch_s: float) -> Iterable[Finding]:
        """What it has to say of an attempt that its job, which has this environment, is about to begin. Asks nobody."""
        ...

    def begin_again(self, run_dir: str, job: JobSpec, after: Sequence[str]) -> str:
        """Have it start the newest attempt of a run, which nobody has taken up, by a new job; that job's own name.

        `job` is the run's in force, `after` are jobs of the scheduler that are to succeed before. The caller holds the
        run's lock, and has seen that the job before is over. A call that was cut off goes on with what it has done:
        there are never two jobs.

        Raises:
            PlaceError: it does not answer; the same call goes on.
            HoldfastError: it refuses; the run has no job.
        """
        ...

    def read_most_tasks(self) -> int:
        """How many runs one array may have.

        Raises:
            PlaceError, PreflightFailed: it does not answer, or its commands are not there.
        """
        ...

    def submit_array(self, directory: str, plan: ArrayPlan, options: Mapping[str, str], env_from: str) -> str:
        """Have it take an array of the sweep above its directory, which is its alone; its own name for it.

        Raises:
            PreflightFailed: it refuses; there is no such array.
            PlaceError: no answer; `find_array` tells later.
            StorageError: it cannot be written.
        """
        ...

    def find_array(self, directory: str) -> str | None:
        """What it calls an array, which is recorded when it was not yet; None: it never had it, or it was cancelled.

        Raises:
            PlaceError: it does not answer.
            StorageError: it cannot be read or written.
        """
        ...

    def note_task(self, run_dir: str, array: str, task: int) -> None:
        """Record that a run is this task of an array. Not synced: the sweep's own record has it, too.

        Raises:
            StorageError: it cannot be written.
        """
        ...


def open_scheduler(name: str) -> Scheduler:
    """The scheduler of this name.

    Raises:
        Unsupported: this holdfast has none of that name.
    """
    if name not in PACKAGES:
        raise Unsupported(f"runs of the scheduler {name[:40]!r} are not known here", hint="use a newer holdfast")
    found: Scheduler = import_module(PACKAGES[name]).open_here()
    return found
