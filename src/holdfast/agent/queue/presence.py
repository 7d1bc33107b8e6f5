"""Whether a worker is there: the lock that it holds while it is at work, and who it is.

The lock is a POSIX record lock on ``worker.lock``: it belongs to the process alone, so a supervisor forked by a worker
does not hold on to it, and whether it is held can be asked without taking it for a moment, which would turn away a
worker that is just coming up. The kernel drops it when the worker ends, however. Source: fcntl(2), F_SETLK, F_GETLK.

Who holds it stands in the file, for people only; what counts is the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct

from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.process.processes import identify_self
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

LOCK = "worker.lock"
LOG = "worker.log"
COMES_UP_S = 2.0
"""Within which a worker has taken its lock, on a box that is not overloaded."""
_FLOCK = "hhqqi4x"
"""``struct flock`` of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. Source: fcntl(2), asm-generic/fcntl.h."""


@record
class WorkerFacts:
    """The worker that holds the lock: who it is, and since when (ISO UTC); unknown parts are None."""

    process: ProcessId | None
    since: str | None


def log_line(words: str) -> None:
    """A line for the worker's log, which is its standard error. Never raises.

    Past Python's buffer: on a full disk the log cannot be written either, and that must not end the worker, which is
    to go on when there is room; nor may what was not written be in the way of the next line.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"{utc_now()} {words}\n".encode("utf-8", "backslashreplace"))


def read_worker(directory: str) -> WorkerFacts | None:
    """The worker at work; None when nobody holds the lock.

    Raises:
        StorageError: the lock file cannot be opened.
    """
    try:
        descriptor = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{directory}/{LOCK}: {error.strerror}", hint="see the queue directory's owner") from error
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0]
        return None if kind == fcntl.F_UNLCK else _parse_facts(os.pread(descriptor, 4096, 0))
    except OSError as error:
        raise StorageError(f"{directory}/{LOCK}: {error.strerror}", hint="its disk takes no locks") from error
    finally:
        os.close(descriptor)


def was_just_started(directory: str) -> bool:
    """Whether somebody started a worker a moment ago: it has the lock only when its image is loaded."""
    try:
        started_s = os.stat(f"{directory}/{LOG}", follow_symlinks=False).st_mtime
    except OSError:
        return False
    return 0.0 <= epoch_s() - started_s < COMES_UP_S


def _parse_facts(data: bytes) -> WorkerFacts:
    try:
        facts = wire.parse_object(data.rstrip(b"\0"), LOCK)
        return WorkerFacts(wire.decode(ProcessId, facts["process"]), str(facts["since"]))
    except (wire.WireError, KeyError):
        # It has just taken the lock and not said who it is yet.
        return WorkerFacts(None, None)


class WorkerLock:
    """The lock of one queue, for the worker itself.

    Nothing else in the worker may open the file: closing any descriptor of it would drop the lock (fcntl(2)).
    """

    def __init__(self, directory: str) -> None:
        """Open the file; the lock is not taken yet."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(f"{directory}/{LOCK}", flags, 0o600)

    def take(self) -> bool:
        """Take it and say who we are; False when another worker has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # Source: fcntl(2): EAGAIN or EACCES, as the system likes.
            return False
        facts = wire.to_bytes({"process": wire.encode(identify_self()), "since": utc_now()})
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, facts, 0)
        return True

    def is_stale(self) -> bool:
        """Whether the file was removed, with the whole queue most likely: then the lock keeps nobody away."""
        return os.fstat(self._descriptor).st_nlink == 0

    def release(self) -> None:
        """Let go; the file stays."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go and close."""
        os.close(self._descriptor)
