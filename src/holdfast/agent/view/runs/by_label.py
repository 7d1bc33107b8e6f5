"""The run of a job by its label, GROUP/NAME: of this account's queue, or of a sweep that a scheduler runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from holdfast.model.errors import HoldfastError, NoSuchRun, UsageError
from holdfast.model.queue import CLOSED_STATES
from holdfast.store.paths import queue_directory

from .of_queue import open_queue
from .sweeps import find_sweep, read_sweep


def find_labelled(label: str, roots: Iterable[str]) -> tuple[str, str, str | None] | None:
    """Runs root and id of the run of the job GROUP/NAME, and a notice about how; None when there is no such job.

    Raises:
        NoSuchRun: the job has no run yet, or its run was removed.
        HoldfastError: the queue, or the sweep, cannot be read.
    """
    return _find_queued(label) or _find_in_sweep(label, roots)


def is_group(name: str, roots: Iterable[str]) -> bool:
    """Whether a group of the queue, or a sweep, is called so; what cannot be read has none."""
    if os.path.isdir(queue_directory()):
        # It only makes a refusal more precise; the plain one stands without it.
        with contextlib.suppress(HoldfastError, OSError), open_queue() as queue:
            if name in queue.groups():
                return True
    return find_sweep(name, roots) is not None


def _find_queued(label: str) -> tuple[str, str, str | None] | None:
    if not os.path.isdir(queue_directory()):
        return None
    try:
        with open_queue() as queue:
            job, notice = queue.find([label])[0], queue.notice
    except UsageError:
        return None
    if job.run_id is None:
        raise NoSuchRun(
            f"the job {job.label} has no run yet: it is {job.state.value}",
            hint=f"holdfast queue show {job.label} says why; holdfast queue cancel {job.label} takes it out",
        )
    if job.state in CLOSED_STATES and _is_removed(job.runs_root, job.run_id):
        again = f"holdfast queue retry {job.label} runs it once more"
        raise _removed(job.label, f"holdfast queue show {job.label} says how it ended; {again}")
    return job.runs_root, job.run_id, notice or None


def _find_in_sweep(label: str, roots: Iterable[str]) -> tuple[str, str, None] | None:
    group, _, name = label.partition("/")
    found = find_sweep(group, roots)
    sweep = None if found is None else read_sweep(found.directory)
    if found is None or sweep is None:
        return None
    job = next((job for job in sweep.jobs if job.given.name == name), None)
    if job is None:
        return None
    if _is_removed(found.root, job.run_id):
        raise _removed(label, f"holdfast sweep show {group} shows the others")
    return found.root, job.run_id, None


def _is_removed(root: str, run_id: str) -> bool:
    """Whether it is not there while its root is: a disk that is not mounted has removed nothing."""
    return os.path.isdir(root) and not os.path.lexists(f"{root}/{run_id}")


def _removed(label: str, hint: str) -> NoSuchRun:
    return NoSuchRun(f"the run of the job {label} was removed (holdfast rm)", hint=hint)
