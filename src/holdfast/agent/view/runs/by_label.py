"""The run of a job by its label, GROUP/NAME: of this account's queue, or of a sweep that a scheduler runs."""

from __future__ import annotations

import os
from collections.abc import Iterable

from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.store.paths import queue_directory

from .of_queue import open_queue
from .sweeps import find_sweep, read_sweep


def find_labelled(label: str, roots: Iterable[str]) -> tuple[str, str, str | None] | None:
    """Runs root and id of the run of the job GROUP/NAME, and a notice about how; None when there is no such job.

    Raises:
        NoSuchRun: the job has no run yet.
        HoldfastError: the queue, or the sweep, cannot be read.
    """
    return _find_queued(label) or _find_cell(label, roots)


def _find_queued(label: str) -> tuple[str, str, str | None] | None:
    if not os.path.isdir(queue_directory()):
        return None
    try:
        with open_queue() as queue:
            job, notice = queue.find([label])[0], queue.notice
    except UsageError:
        return None
    if job.run_id is None:
        raise NoSuchRun(f"{label} has no run yet: it is {job.state.value}", hint=f"holdfast queue show {label}")
    return job.runs_root, job.run_id, notice or None


def _find_cell(label: str, roots: Iterable[str]) -> tuple[str, str, None] | None:
    group, _, name = label.partition("/")
    found = find_sweep(group, roots)
    sweep = None if found is None else read_sweep(found.directory)
    if found is None or sweep is None:
        return None
    cell = next((cell for cell in sweep.cells if cell.job.name == name), None)
    return None if cell is None else (found.root, cell.run_id, None)


def find_runs_of_group(word: str, roots: Iterable[str]) -> list[str]:
    """The directories of the runs that jobs of ``GROUP/`` have, in the order of the jobs: of the queue, or of a sweep.

    Raises:
        NoSuchRun: there is no such group, or no job of it was started.
        HoldfastError: the queue, or the sweep, cannot be read.
    """
    found: list[str] = []
    if os.path.isdir(queue_directory()):
        try:
            with open_queue() as queue:
                found = [job.run_dir for job in queue.find([word]) if job.run_dir is not None]
        except UsageError:
            found = []
    if not found and (sweep := find_sweep(word.rstrip("/"), roots)) is not None:
        record = read_sweep(sweep.directory)
        names = () if record is None else (f"{sweep.root}/{cell.run_id}" for cell in record.cells)
        found = [path for path in names if os.path.isdir(path)]
    if not found:
        raise NoSuchRun(f"no job of {word} has a run", hint="holdfast queue, or holdfast sweep show, has the groups")
    return found
