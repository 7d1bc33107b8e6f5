"""Starts a detached supervisor process for an attempt.

Nothing here waits for the job. A supervisor gets a session of its own, no terminal, and no parent that could take it
along. It is a fresh interpreter that loads the standard library and what it needs of ours, and keeps that image for
life (docs/adr/0019). Only the queue's worker forks supervisors, from its own clean image: `supervisor_process`.

Must not import the supervisor: what commands load is not what supervisors load.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError

from .detached import start_detached
from .prestart import PRESTARTED

if TYPE_CHECKING:
    from collections.abc import Mapping


class StartSupervisor(Protocol):
    """A way to give an attempt a supervisor: `start_supervisor`, or `supervisor_process.fork_supervisor`."""

    def __call__(self, run_dir: str, attempt: int, *, environ: Mapping[str, str], reason: str) -> None:
        """Start it; returns before it has done anything."""


def start_supervisor(run_dir: str, attempt: int, *, environ: Mapping[str, str], reason: str = "start") -> None:
    """Start a detached supervisor in a clean interpreter; returns when it is on its own, not when it has done anything.

    `environ` is what the job's environment is made from: it is handed over in memory and never stored. `reason` is
    ``start``, ``restart``, ``retry`` or ``adopt``. This process's umask is the job's.

    Raises:
        StorageError: its log cannot be opened, or no process can be had.
    """
    words = (run_dir, str(attempt), reason)
    log = open_log(run_dir, attempt)
    try:
        if not PRESTARTED.hand_over(words, environ):
            start_detached(("supervise", *words), environ, output=log)
    except OSError as error:
        raise StorageError(f"no supervisor could be started: {error.strerror}", hint="see `ulimit -u`") from error
    finally:
        os.close(log)


def open_log(run_dir: str, attempt: int) -> int:
    """The supervisor's log; /dev/null when the run directory takes no file (the run goes on without).

    Raises:
        StorageError: the attempt does not exist.
    """
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.SUPERVISOR_LOG}"
    try:
        return files.open_log(path)
    except FileNotFoundError as error:
        raise StorageError(f"{os.path.dirname(path)} does not exist", hint="the run directory has gone") from error
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
