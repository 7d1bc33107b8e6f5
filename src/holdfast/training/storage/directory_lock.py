"""One run writes into a directory of checkpoints: a kernel lock that ends with the last process that holds it.

The trainer's writer holds it too: a trainer that starts while the writer of a killed one finishes its save waits for
that. Forked children (data loaders) let go of it at once. Where the file system has no locks there is only a word.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable

from holdfast.training.errors import DirectoryBusy, TrainingError

from . import layout
from .write.files import make_directory

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
WAIT_S = 300.0
"""How long what a killed trainer left behind (its writer) is waited for: some hundred gigabytes, or their copy."""
UNSEEN_WAIT_S = 100.0
"""How long a holder on another machine is waited for, whose life cannot be seen: a little more than an NFS lease."""
LOOK_S = 0.05


class DirectoryLock:
    """The lock of one directory, taken in the constructor, given back by `release` or the end of all its holders."""

    def __init__(self, directory: str, warn: Callable[[str], None], *, wait_s: float = WAIT_S) -> None:
        """Take it; waits for a writer whose trainer is dead, not for a living run.

        Raises:
            DirectoryBusy: another run writes here.
            OSError: the directory cannot be written.
        """
        self.path = os.path.join(directory, layout.LOCK)
        self.fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._take(directory, warn, wait_s)
        except BaseException:
            os.close(self.fd)
            raise
        os.register_at_fork(after_in_child=self._let_go)

    def _take(self, directory: str, warn: Callable[[str], None], wait_s: float) -> None:
        assert self.fd is not None
        deadline, said = time.monotonic() + wait_s, False
        unseen_deadline = time.monotonic() + min(wait_s, UNSEEN_WAIT_S)
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder, alive = self._read_holder()
                if alive or time.monotonic() > (unseen_deadline if alive is None else deadline):
                    raise DirectoryBusy(
                        f"{directory} is written by another run ({holder})",
                        "wait for it or stop it, or give this one a directory of its own",
                    ) from None
                if not said:
                    warn(f"{directory}: waiting for {holder}, or what it left behind, to finish its save")
                    said = True
                time.sleep(LOOK_S)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
                warn(f"{directory} is on a file system without locks: nothing keeps a second run from writing there")
                break
        self._write_holder()

    def _write_holder(self) -> None:
        assert self.fd is not None
        me = {"pid": os.getpid(), "start": _start_time(os.getpid()), "host": os.uname().nodename, "boot": _boot_id()}
        me["run"], me["space"] = os.environ.get("HOLDFAST_RUN_ID", ""), _process_space()
        data = json.dumps(me).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk: the run makes room later, and the lock holds without a name
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, data, 0)

    def _read_holder(self) -> tuple[str, bool | None]:
        """Who holds it, in words, and whether that process is alive; None when that cannot be seen from here."""
        assert self.fd is not None
        try:
            who = json.loads(os.pread(self.fd, 4096, 0))
            words = f"process {who['pid']} on {who['host']}" + (f", run {who['run']}" if who["run"] else "")
            if who["host"] != os.uname().nodename:
                # Another machine or container: its processes cannot be seen, only the lock itself speaks. A file
                # server keeps that of a crashed machine for a while (NFS: 90 s), so it is waited for.
                return words, None
            if who["boot"] and _boot_id() and who["boot"] != _boot_id():
                return words, False
            if who.get("space", "") != _process_space():
                return words, None  # a number there is another process here
            return words, _start_time(int(who["pid"])) == who["start"]
        except (OSError, ValueError, KeyError, TypeError):
            return "a process that left no name", False

    def _let_go(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def release(self) -> None:
        """Give it back; a writer that is still busy goes on holding it."""
        self._let_go()


def lock_directory(directory: str, warn: Callable[[str], None]) -> DirectoryLock:
    """Make a directory of checkpoints where it is missing, and take its lock.

    Raises:
        DirectoryBusy: another run writes there.
        TrainingError: it cannot be made or written.
    """
    try:
        make_directory(directory)
        return DirectoryLock(directory, warn)
    except OSError as error:
        at = f" (at {error.filename})" if error.filename not in (None, directory) else ""
        raise TrainingError(
            f"checkpoints cannot be saved in {directory}: {error.strerror or error}{at}",
            "give a directory that this account can make and write",
        ) from error


def _start_time(pid: int) -> str:
    """When a process began, in the kernel's clock ticks since boot; empty when there is no such process (or a zombie).

    Source: proc(5), field 22 of stat, counted behind the name in parentheses.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _process_space() -> str:
    """The namespace in which process numbers are counted (contained jobs have their own); source: namespaces(7)."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
