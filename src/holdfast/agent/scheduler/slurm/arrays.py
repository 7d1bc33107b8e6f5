"""From runs that are there to arrays of Slurm: the same steps as for one run (`submit`), once for all runs.

Each array has a directory of its own, with ``array.json`` (the run of each task), ``batch.sh`` and ``slurm.json``. It
is found again by its script, as the job of a run is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.agent.detached import build_command
from holdfast.core.slurm.arrays import MOST_ARRAY, ArrayPlan, plan_script
from holdfast.core.slurm.script import render_script
from holdfast.core.slurm.texts import read_config
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.record import record, replace
from holdfast.model.slurm import SlurmRecord

from .commands import call
from .files import read_record, write_record, write_script
from .submit import find_job, submit

TASKS = "array.json"
LARGEST_BYTES = 16 << 20


@record
class ArrayTasks:
    """The content of an array's ``array.json``: its sweep, and the run of each task in their order."""

    sweep: str
    runs: tuple[str, ...]


def read_most_tasks() -> int:
    """How many tasks an array of this Slurm may have.

    Raises:
        PlaceError, PreflightFailed: it does not answer, or its commands are not there.
    """
    config = read_config(call(("scontrol", "show", "config")))
    most = config.get("MaxArraySize", "")
    return int(most) if most.isdigit() else MOST_ARRAY


def submit_array(directory: str, plan: ArrayPlan, options: Mapping[str, str], env_from: str) -> str:
    """Have Slurm take an array of the sweep above its directory, which is its alone; the id of its job.

    Raises:
        PreflightFailed: Slurm refuses it; it has no job.
        PlaceError: no answer; `find_array` tells later.
        StorageError: it cannot be written.
    """
    sweep, number = os.path.basename(os.path.dirname(directory)), os.path.basename(directory)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        files.commit(f"{directory}/{TASKS}", wire.to_bytes(ArrayTasks(sweep, plan.runs)))
    except OSError as error:
        raise StorageError(f"{directory}: {error.strerror}", hint="see df there") from error
    known = SlurmRecord("", "", dict(options), env_from)
    command = build_command("slurm-task", "--array", directory)
    script = plan_script(sweep, int(number), directory, plan, known, command)
    write_script(directory, render_script(script))
    write_record(directory, script.record)
    job_id = submit(directory, script.record, os.environ).job_id
    assert job_id is not None
    return job_id


def find_array(directory: str) -> str | None:
    """The job of an array, which is recorded when it was not yet; None: Slurm was never given it, or it was cancelled.

    Raises:
        PlaceError: Slurm does not answer.
        StorageError: it cannot be read or written.
    """
    known = read_record(directory)
    if known is None or known.job_id is not None:
        return None if known is None else known.job_id
    found = find_job(directory, known)
    return None if found is None else found.job_id


def read_tasks(directory: str) -> ArrayTasks:
    """Which runs the tasks of an array are.

    Raises:
        StorageError: it cannot be read.
    """
    path = f"{directory}/{TASKS}"
    try:
        return wire.from_bytes(ArrayTasks, files.read_bytes(path, limit=LARGEST_BYTES), path)
    except (OSError, wire.WireError) as error:
        raise StorageError(f"{path}: {error}", hint="it says which run each task is") from error


def note_task(run_dir: str, array: str, task: int) -> None:
    """Record that a run is this task of an array. Not synced: the sweep's own record has it, too.

    Raises:
        StorageError: it cannot be written.
    """
    write_record(run_dir, replace(SlurmRecord("", ""), array=array, task=task), durable=False)
