"""The entry ``slurm-task``: `batch` as one task of an array, whose run is that of the job with its number.

Words: ``--array DIR``, the array's own directory. A run that is missing, or torn by a power cut, is made again from the
sweep's record before it begins.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.login_environment import choose_environ
from holdfast.agent.queue.arrays.runs import ensure_run, is_whole
from holdfast.agent.queue.arrays.sweep import hold_sweep, name_array
from holdfast.agent.scheduler.slurm.arrays import read_tasks
from holdfast.agent.scheduler.slurm.files import read_record
from holdfast.agent.view.runs.sweeps import read_sweep
from holdfast.model.errors import HoldfastError, StorageError, UsageError

from . import batch

if TYPE_CHECKING:
    from holdfast.model.slurm import SlurmRecord

    from . import stand

TASK = "SLURM_ARRAY_TASK_ID"


def main(words: list[str], *, supervise: stand.Supervise) -> int:
    """Be the entry ``slurm-task``; the exit code of the run's outcome."""
    if len(words) != 2 or words[0] != "--array":
        raise UsageError(f"slurm-task does not take the words {words!r}")
    try:
        run_dir = find_task_run(os.path.abspath(words[1]), os.environ.get(TASK, ""))
    except HoldfastError as error:
        batch.say(str(error))
        return error.exit_code
    return batch.main(["--run", run_dir], supervise=supervise)


def find_task_run(array: str, task: str) -> str:
    """The run of a task, made again where it is not whole.

    Raises:
        UsageError: this array has no such task, or the run belongs to another array by now.
        HoldfastError: it cannot be read or made.
    """
    runs = read_tasks(array).runs
    if not (task.isascii() and task.isdigit() and int(task) < len(runs)):
        raise UsageError(f"{array} has no task {task!r}")
    directory = os.path.dirname(array)
    root = os.path.dirname(os.path.dirname(directory))
    number, run_dir = int(os.path.basename(array)), f"{root}/{runs[int(task)]}"
    record = _read(run_dir)
    if record is None:
        _make_again(root, directory, number, int(task))
        record = read_record(run_dir)
    if record is None or (record.array, record.task) != (name_array(root, directory, number), int(task)):
        raise UsageError(f"{run_dir} is not a task of this array any more: it was handed in again")
    return run_dir


def _read(run_dir: str) -> SlurmRecord | None:
    """What is recorded of a run that is whole; None where it is to be made again."""
    try:
        return read_record(run_dir) if is_whole(run_dir) else None
    except StorageError:
        return None


def _make_again(root: str, directory: str, number: int, task: int) -> None:
    with hold_sweep(directory):
        sweep = read_sweep(directory)
        jobs = () if sweep is None else sweep.jobs
        job = next((one for one in jobs if (one.array, one.task) == (number, task)), None)
        if sweep is None or job is None:
            raise UsageError(f"{directory} has no job for task {task} of array {number}")
        environ = choose_environ(sweep.orders[job.order].env_from, os.environ)
        ensure_run(root, directory, sweep, job, environ)
