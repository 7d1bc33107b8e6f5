"""The runs that the jobs of a group have, and whether more are to come: of the queue, or of a sweep on a scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.open import describe_absence, look_at_queue, look_for_worker
from holdfast.agent.queue.presence import was_just_started
from holdfast.agent.queue.wait.roster import AwaitedJobs, look
from holdfast.agent.view.runs.sweeps import find_sweep, read_sweep
from holdfast.model.errors import NoSuchRun
from holdfast.model.queue import CLOSED_STATES
from holdfast.model.record import record
from holdfast.store.paths import queue_directory

if TYPE_CHECKING:
    from collections.abc import Iterable


@record
class GroupRuns:
    """The directories of the runs, in the order of the jobs.

    `open` jobs have not ended, so that more runs may come; `stuck`: why none comes without a person (else empty).
    `removed` jobs have ended and their runs are not there any more.
    """

    run_dirs: tuple[str, ...]
    open: int = 0
    stuck: str = ""
    removed: int = 0


def find_group_runs(word: str, roots: Iterable[str]) -> GroupRuns:
    """Look at the group that ``GROUP/`` means.

    Raises:
        NoSuchRun: there is no such group.
        HoldfastError: the queue, or the sweep, cannot be read.
    """
    group = word.rstrip("/")
    found = _find_queued(group) or _find_sweep(group, roots)
    if found is None:
        raise NoSuchRun(
            f"there is no group {word}", hint="holdfast queue lists the groups; of a place: holdfast queue --on PLACE"
        )
    return found


def _find_queued(group: str) -> GroupRuns | None:
    if not os.path.isdir(queue_directory()):
        return None
    with look_at_queue() as queue:
        if group not in queue.groups():
            return None
        jobs = queue.jobs(group=group)
        still = sum(job.state not in CLOSED_STATES for job in jobs)
        stuck = look(queue, AwaitedJobs(frozenset({group}))).stuck if still else ""
        if still and not stuck:
            worker, problem = look_for_worker(queue)
            absent = worker is None and not was_just_started(queue.directory)
            stuck = problem or (describe_absence(queue) if absent else "")
        ran = [(job.run_dir, job.state) for job in jobs if job.run_dir is not None]
        there = {run_dir: None for run_dir, _ in ran if os.path.isdir(run_dir)}
        removed = sum(state in CLOSED_STATES for run_dir, state in ran if run_dir not in there)
        return GroupRuns(tuple(there), still, stuck, removed)


def _find_sweep(group: str, roots: Iterable[str]) -> GroupRuns | None:
    sweep = find_sweep(group, roots)
    if sweep is None:
        return None
    record = read_sweep(sweep.directory)
    paths = [] if record is None else [f"{sweep.root}/{job.run_id}" for job in record.jobs]
    # A scheduler's runs are all there from the hand-in on.
    there = tuple(path for path in paths if os.path.isdir(path))
    return GroupRuns(there, removed=len(paths) - len(there))
