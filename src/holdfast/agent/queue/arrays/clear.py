"""A sweep forgotten, so that its name is free again; its runs stay, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.control.create import take_back_run
from holdfast.core.queue.words import count_jobs
from holdfast.host.files import files
from holdfast.model.errors import StorageError, UsageError

from .look import look_at_jobs, require_sweep
from .sweep import hold_sweep
from .wait import OPEN

if TYPE_CHECKING:
    from holdfast.agent.view.runs.sweeps import ArraySweep, FoundSweep


def require_closed(found: FoundSweep) -> ArraySweep:
    """The sweep.

    Raises:
        UsageError: something of it waits or runs, or may do so.
        StorageError: it cannot be read.
    """
    sweep = require_sweep(found)
    left = [look for look in look_at_jobs(found, sweep) if look.job.state in OPEN]
    if left:
        hint = f"holdfast wait {sweep.name}/, or holdfast queue cancel {sweep.name}/ --running"
        raise UsageError(f"{sweep.name}: {count_jobs(len(left))} wait or run", hint=hint)
    return sweep


def clear_sweep(found: FoundSweep) -> None:
    """Remove the record of a sweep of which nothing waits or runs, and its jobs that were never begun.

    Raises:
        UsageError: something of it waits or runs, or may do so.
        StorageError: it cannot be read or removed.
    """
    with hold_sweep(found.directory):
        sweep = require_closed(found)
        try:
            for job in sweep.jobs:
                take_back_run(f"{found.root}/{job.run_id}")
            files.take_away(found.directory)
        except OSError as error:
            raise StorageError(f"{found.directory}: {error.strerror}", hint="see df there") from error
