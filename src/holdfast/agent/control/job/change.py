"""What a restart changes of a run's job: the job in force, what differs, and whether its job file was edited since.

The job that a run was created with stays in ``run.json``; what somebody changed is recorded with the attempt that it
begins with (``job.json``), and holds for all after it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.act import PUT_BACK, require_job
from holdfast.agent.view import observe
from holdfast.core.job.changes import list_changes
from holdfast.core.refuse_secrets import refuse_secrets
from holdfast.host.clock import utc_now
from holdfast.host.files.job_change import find_job
from holdfast.host.files.snapshot import hash_file
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.job import JobSpec
from holdfast.model.origin import FileCopy, JobChange, RunOrigin
from holdfast.model.record import record

from .code import copy_job_file

if TYPE_CHECKING:
    from holdfast.model.origin import KeyChange


@record
class RecordedJob:
    """The job of a run as it is in force, with the command as asked for.

    `job_file` is the copy of the job file that it was read from; None without one.
    """

    spec: JobSpec
    job_file: FileCopy | None = None


def read_recorded_job(run_dir: str) -> RecordedJob:
    """The job that the newest attempt of a run has.

    Raises:
        StorageError: its records cannot be read.
    """
    view = observe.observe_run(run_dir)
    require_job(view)
    try:
        origin = wire.decode(RunOrigin, view.record, wire.RUN)
        change = wire.decode(JobChange, view.change, wire.JOB) if view.change else None
        spec = wire.decode(JobSpec, find_job(view.record, view.change))
    except wire.WireError as error:
        raise StorageError(f"{run_dir}: its job cannot be read: {error}", hint=PUT_BACK) from error
    job_file = None if change is None else change.job_file
    return RecordedJob(spec, job_file or origin.job_file)


def find_edited_file(recorded: RecordedJob) -> str | None:
    """The job file that the run was begun with, where it is not what it was then; None where it is, or is gone."""
    copy = recorded.job_file
    if copy is None or copy.sha256 is None:
        return None
    try:
        return copy.source if hash_file(copy.source) != copy.sha256 else None
    except OSError:
        return None


def find_changes(recorded: RecordedJob, asked: JobSpec) -> tuple[KeyChange, ...]:
    """What `asked` changes of the recorded job.

    Raises:
        UsageError: it holds a secret, which would be recorded.
    """
    refuse_secrets(asked, recorded=recorded.spec)
    return list_changes(recorded.spec, asked)


def build_change(
    run_dir: str, recorded: RecordedJob, asked: JobSpec, *, by: str, job_file: str | None
) -> JobChange | None:
    """The record of a changed job, with its job file's copy, made anew or as before; None where nothing is changed.

    Raises:
        StorageError: the copy cannot be written.
    """
    changed = find_changes(recorded, asked)
    if not changed and job_file is None:
        return None
    try:
        copy = recorded.job_file if job_file is None else copy_job_file(os.path.abspath(job_file), run_dir)
    except OSError as error:
        raise StorageError(
            f"{error.filename or run_dir}: {error.strerror}", hint="see df and its permissions"
        ) from error
    return JobChange(asked, changed, by, utc_now(), copy)
