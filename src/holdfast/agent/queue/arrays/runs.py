"""The runs of a sweep's jobs: made from its record, cheaply, and made again where one is missing or torn.

Nothing of a job is synced: the record is on the disk. So a power cut may take runs that were never begun, and whoever
needs one makes it again, under the same id: the next submit, and the job's own task.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.create import RunExists, create_run, next_attempt
from holdfast.agent.queue.start import build_spec, describe_ordered
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.run_view import is_never_taken
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM

from .sweep import name_array, open_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent.view.runs.sweeps import ArraySweep, SweepJob
    from holdfast.model.queue import Submission


def spec_of(sweep: ArraySweep, job: SweepJob) -> JobSpec:
    """What a job of a sweep runs.

    Raises:
        WireError: it is none.
    """
    return build_spec(submission_of(sweep, job))


def job_in_force(root: str, sweep: ArraySweep, job: SweepJob) -> JobSpec:
    """What the next attempt of a job runs: as it was handed in, or as a restart has changed it since.

    Raises:
        WireError: it is none.
    """
    run_dir = f"{root}/{job.run_id}"
    if os.path.isdir(wire.attempt_dir(run_dir, 2)) and (view := observe_run(run_dir)).change:
        return wire.decode(JobSpec, view.spec)
    return spec_of(sweep, job)


def submission_of(sweep: ArraySweep, job: SweepJob) -> Submission:
    """What a job was handed in with, as if it were the only one."""
    return replace(sweep.orders[job.order].submission, jobs=(job.given,))


def ensure_run(root: str, directory: str, sweep: ArraySweep, job: SweepJob, environ: Mapping[str, str]) -> str:
    """The run of a job, ready for its task to begin: made where it is not whole, with another attempt where it ended.

    Raises:
        HoldfastError: it cannot be made.
    """
    run_dir = f"{root}/{job.run_id}"
    if not is_whole(run_dir):
        files.remove_tree(run_dir)
        submission = submission_of(sweep, job)
        ordered = describe_ordered(submission, environ)
        assert ordered is not None
        try:
            create_run(
                build_spec(submission),
                root,
                argv=submission.argv,
                cwd=submission.cwd,
                environ=environ,
                run_id=job.run_id,
                ordered=replace(ordered, scheduler=SLURM),
                durable=False,
            )
        except RunExists:
            pass  # its task, or another submit, was quicker
    else:
        view = observe_run(run_dir)
        if view.over:
            next_attempt(run_dir, "retry")
        elif view.desired is not None and is_never_taken(view):
            # Somebody had its job cancelled; that wish is withdrawn with this.
            files.remove_quietly(f"{run_dir}/{wire.DESIRED}")
    open_arrays().note_task(run_dir, name_array(root, directory, job.array), job.task)
    return run_dir


def is_whole(run_dir: str) -> bool:
    """Whether there is a run; one that was begun is never taken for torn, whatever of it cannot be read."""
    try:
        wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        wire.parse_object(files.read_bytes(f"{wire.attempt_dir(run_dir, 1)}/{wire.STATE}"), wire.STATE)
    except (OSError, wire.WireError):
        return os.path.lexists(f"{wire.attempt_dir(run_dir, 1)}/{wire.NATIVE}")
    return True
