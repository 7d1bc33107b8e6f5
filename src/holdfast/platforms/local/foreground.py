"""A run that is typed where everything ends with the process that was started: that process supervises it itself.

A detached supervisor would be killed with the container, or go on with cards that the scheduler has given to others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from holdfast.agent.control.create import create_run
from holdfast.agent.detached import build_command
from holdfast.host.process.signals import hold_back
from holdfast.host.process.surroundings import find_allocation, is_container_init
from holdfast.model.errors import Unsupported

if TYPE_CHECKING:
    from holdfast.model.job import JobSpec

    from .start import SubmitContext


def find_reason(environ: Mapping[str, str]) -> str:
    """Why a run that is started here is supervised by this process; empty where it is not."""
    job = find_allocation(environ)
    if job is not None:
        return f"this is inside job {job.job_id} of Slurm ({job.proof}), and ends with it"
    if is_container_init():
        return "this is the first process of a container, which ends with it"
    return ""


def refuse_detached(reason: str) -> None:
    """Refuse to detach a run from a process that it cannot outlive.

    Raises:
        Unsupported: always.
    """
    raise Unsupported(
        f"a run cannot be detached here: {reason}",
        hint="leave -d out: `holdfast run` then supervises the job itself and exits with its code",
    )


def become_supervisor(spec: JobSpec, root: str, call: SubmitContext, *, as_json: bool) -> NoReturn:
    """Take a job and become its supervisor, in a clean interpreter; signals wait until that listens.

    Raises:
        HoldfastError: it was not taken; nothing runs.
    """
    hold_back()
    run_dir, _ = create_run(spec, root, argv=call.argv, cwd=call.cwd, environ=call.environ, job_file=call.job_file)
    command = build_command("stand", "--run", run_dir, *(("--json",) if as_json else ()))
    os.execve(command[0], command, dict(call.environ))
