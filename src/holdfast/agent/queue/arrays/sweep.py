"""A sweep's record while its jobs are handed in: held by one at a time, committed whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast.agent.control.run_lock import hold_run_lock
from holdfast.agent.scheduler.base import Scheduler, open_scheduler
from holdfast.agent.view.runs.sweeps import SWEEP, ArraySweep
from holdfast.host.files import files
from holdfast.host.process.wait import wait_briefly
from holdfast.model import wire
from holdfast.model.errors import ResourceBusy, StorageError
from holdfast.model.slurm import SLURM

LOCK_WAIT_S = 60.0


def open_arrays() -> Scheduler:
    """The scheduler that sweeps become arrays of: so far there is one that has any."""
    return open_scheduler(SLURM)


@contextmanager
def hold_sweep(directory: str) -> Iterator[None]:
    """Hold a sweep while its jobs are handed in, from the look to the answer; whoever is at it is waited for.

    Raises:
        ResourceBusy: somebody is at it all the time.
        OSError: there is no such directory.
    """
    with ExitStack() as held:

        def take() -> bool:
            try:
                held.enter_context(hold_run_lock(directory, what="hand it in"))
            except ResourceBusy:
                return False
            return True

        if not wait_briefly(take, LOCK_WAIT_S):
            words = f"somebody hands jobs of {os.path.basename(directory)} in, for more than {LOCK_WAIT_S:g} s"
            raise ResourceBusy(words, hint="the same command goes on, later")
        yield


def write_sweep(directory: str, sweep: ArraySweep) -> None:
    """Commit the sweep.

    Raises:
        StorageError: it cannot be written; what was there stands.
    """
    try:
        files.commit(f"{directory}/{SWEEP}", wire.to_bytes(sweep))
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}", hint="see df there") from error


def find_last_array(directory: str) -> int:
    """The highest number of an array in a sweep's directory, whose record may be gone; 0 without one."""
    return max((int(name) for name in os.listdir(directory) if name.isascii() and name.isdigit()), default=0)


def name_array(root: str, directory: str, number: int) -> str:
    """An array's directory as a run names it: relative to the runs root."""
    return f"{os.path.relpath(directory, root)}/{number}"
