"""Starting a worker for a queue when none is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.detached import start_detached
from holdfast.agent.queue.presence import LOCK, LOG, read_worker
from holdfast.host.process.processes import RUN_ID
from holdfast.model.errors import HoldfastError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.store.queue.queue import Queue

VARIABLE = "HOLDFAST_QUEUE"
LARGEST_LOG_BYTES = 1 << 20
NEUTRAL = ("HOME", "PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
"""What a worker keeps of the environment of whoever started it, beside `OWN_PREFIXES`; each run gets its own."""
OWN_PREFIXES = ("HOLDFAST_", "XDG_")


def start_worker(queue: Queue, notes: list[str]) -> bool:
    """See that a worker looks after what was committed; True when one was started.

    That none can be had loses nothing: what was handed in is on the disk. So it is added to `notes` and no error.
    """
    try:
        return ensure_worker(queue.directory, os.environ)
    except (HoldfastError, OSError) as error:
        notes.append(f"no worker could be started: {error}; nothing is lost, `holdfast queue resume` tries again")
        return False


def ensure_worker(directory: str, environ: Mapping[str, str]) -> bool:
    """See that a worker looks after the queue in `directory`: start a detached one if there is none; True if so.

    A submission or order must be committed before: a worker that is about to leave looks once more after it has let go
    of the lock, so one of the two sees the other.

    Inside of a job of holdfast none is started: it would be a part of that job, and with all that it had started it
    would be ended with it. The next command from outside that changes the queue or waits for it starts one.

    Raises:
        StorageError: the lock cannot be looked at, or no process can be had.
    """
    if read_worker(directory) is not None or RUN_ID.decode() in environ:
        return False
    _spawn(directory, environ)
    return True


def restart_worker(log: Callable[[str], None]) -> None:
    """For a run of the queue that is over: start a worker if the last one was killed. Never raises.

    The worker has told every run which queue it is of (``HOLDFAST_QUEUE``).
    """
    directory = os.environ.get(VARIABLE)
    if not directory or not os.path.exists(f"{directory}/{LOCK}"):
        return
    try:
        ensure_worker(directory, os.environ)
    except (StorageError, OSError) as error:
        log(f"no worker for the queue: {error}")


def _spawn(directory: str, environ: Mapping[str, str]) -> None:
    """Start a worker; it takes the lock itself, or leaves."""
    kept = {name: value for name, value in environ.items() if name in NEUTRAL or name.startswith(OWN_PREFIXES)}
    log = _open_log(directory)
    try:
        start_detached(("queue-worker", directory), kept, output=log)
    except OSError as error:
        raise StorageError(f"no worker could be started: {error.strerror}", hint="see `ulimit -u`") from error
    finally:
        os.close(log)


def _open_log(directory: str) -> int:
    path = f"{directory}/{LOG}"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
        if os.fstat(descriptor).st_size > LARGEST_LOG_BYTES:
            os.ftruncate(descriptor, 0)
        os.utime(descriptor)
    except OSError:
        # A worker without a log is better than none.
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return descriptor
