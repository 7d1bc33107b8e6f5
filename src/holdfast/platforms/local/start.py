"""Taking a job that is typed here: it needs no order, and keeps the paths and the environment that it has here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.agent.control.create import create_run
from holdfast.agent.launch import start_supervisor
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

FIRST_ATTEMPT = 1


@record
class SubmitContext:
    """The circumstances of a submission: the command line as typed, from which directory, with which environment.

    `job_file` is the file that the job was read from; None without one.
    """

    argv: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]
    job_file: str | None = None


@record
class SubmittedRun:
    """A run that was taken: its id and the directory by which it is reached from here."""

    run_id: str
    run_dir: str


def start_here(spec: JobSpec, root: str, call: SubmitContext) -> SubmittedRun:
    """Take a job that was typed here: on return its run directory exists and its supervisor has been started.

    Raises:
        HoldfastError: it was not taken; nothing runs.
    """
    run_dir, run_id = create_run(spec, root, argv=call.argv, cwd=call.cwd, environ=call.environ, job_file=call.job_file)
    start_supervisor(run_dir, FIRST_ATTEMPT, environ=call.environ, reason="start")
    return SubmittedRun(run_id, run_dir)
