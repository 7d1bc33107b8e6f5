"""Who may write what of a queue at a time, across processes: flock(2) on files that are never removed.

``journal.lock`` is held by whoever adds to the journal. ``database.lock`` is held shared during each change of the
database and exclusively while another database is put in its place, so that nobody commits into one that is being
replaced. Always taken in this order. The kernel frees both with their holder, however that ends. Waiting has a bound;
whoever waited in vain says who holds the lock, as far as ``/proc/locks`` tells (proc_locks(5)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from holdfast.host.files.files import read_beginning
from holdfast.host.process.processes import read_command
from holdfast.model.errors import StorageError

LOCK_WAIT_S = 10.0
"""How long another process is waited for. What is done under a lock takes milliseconds; a rebuild may take seconds, and
so do twenty hand-ins at once on a busy box."""
MOST_BYTES = 1 << 20
"""Of the kernel's list of locks: any account can make it so long that reading it takes minutes."""
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.02


class LockFile:
    """One lock file, opened when it is first needed; re-entrant within its process."""

    def __init__(self, path: str) -> None:
        """Name it; nothing is opened."""
        self.path = path
        self._descriptor = -1
        self._depth = 0

    @contextlib.contextmanager
    def hold(self, *, shared: bool = False, wait_s: float | None = None) -> Iterator[None]:
        """Hold it inside the block. A block inside a block has what the outer one has.

        Raises:
            StorageError: it cannot be opened, or somebody else held it all the time.
        """
        if self._depth == 0:
            self._take(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, LOCK_WAIT_S if wait_s is None else wait_s)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, mode: int, wait_s: float) -> None:
        try:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self.path, flags, 0o600)
            self._wait(mode, wait_s)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and self._descriptor >= 0:
                raise StorageError(
                    f"the queue has been locked for {wait_s:g} s by {describe_holders(self.path)}",
                    hint="Try again; a process that is stopped goes on after `kill -CONT PID`.",
                ) from error
            raise StorageError(
                f"the queue's lock {self.path} cannot be used: {error.strerror}",
                hint="Look at the disk and at who owns the directory; HOLDFAST_QUEUE names another one.",
            ) from error

    def _wait(self, mode: int, wait_s: float) -> None:
        # flock(2) has no time limit of its own, and an alarm would be the whole process's.
        end, pause_s = time.monotonic() + wait_s, _FIRST_PAUSE_S
        while True:
            late = time.monotonic() >= end
            try:
                fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                if late:
                    raise
            else:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def describe_holders(*paths: str) -> str:
    """Who holds locks on files, for people: ``pid 4711 (holdfast submit ...)``."""
    pids = sorted(_find_holders(paths))[:3]
    if not pids:
        return "another process (/proc/locks does not say which: another box or container?)"
    return ", ".join(f"pid {pid} ({(read_command(pid) or 'its command cannot be read')[:80]})" for pid in pids)


def _find_holders(paths: tuple[str, ...]) -> set[int]:
    inodes = set()
    for path in paths:
        with contextlib.suppress(OSError):
            inodes.add(str(os.stat(path).st_ino))
    try:
        data = read_beginning("/proc/locks", MOST_BYTES)
    except OSError:
        return set()
    lines = [line.split() for line in data.decode("ascii", "replace").splitlines()]
    # 1: FLOCK ADVISORY WRITE 4711 08:01:131097 0 EOF; "->" marks who waits; pid 0 or -1 is out of our sight.
    found = {fields[4] for fields in lines if len(fields) > 5 and fields[5].rpartition(":")[2] in inodes}
    return {int(pid) for pid in found if pid.isdigit() and int(pid) not in (0, os.getpid())}
