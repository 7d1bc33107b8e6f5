"""The one door to pidfds: a process held so that its number cannot come to mean another, also where there are none.

Three kinds of places have no `os.pidfd_open`: a Python that was built against old headers (conda's, uv's) on a kernel
that has the call, a kernel before 5.3, and a sandbox that refuses it (ENOSYS or EPERM). In the first the system call is
made without Python's help. In the others a process is known by its start time, compared right before each signal, and
its end is looked for every `LOOK_EVERY_S`. Between that look and the signal the number could in theory get a new owner;
no kernel without pidfds offers better.

No other module calls pidfd_open(2), pidfd_send_signal(2) or waitid(2) with P_PIDFD: a test holds that.
"""

from __future__ import annotations

import errno
import os
import select
import signal as signals
from collections.abc import Sequence

from holdfast.host.clock import is_other_boot, monotonic_s
from holdfast.model.identity import ProcessId

from . import libc
from .processes import ProcessStat, has_living_threads, read_stat

LOOK_EVERY_S = 0.1
"""How often a process is looked at whose end the kernel does not tell."""
LONGEST_POLL_S = 3600.0
"""poll(2) takes milliseconds in an int; a grace of a month is waited for in pieces."""
_GONE = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})
"""No such process; EINVAL, ENOENT on newer kernels (seen on 6.18): the number is now one of a thread."""
_NO_MORE_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_UNAVAILABLE = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EBADF})
P_PIDFD = 3
"""Source: include/uapi/linux/wait.h, since Linux 5.4; Pythons built against older headers have no name for it."""


class HeldProcess:
    """Exactly one process. Close it after use; `descriptor` is a pidfd, or None where there is none to be had."""

    def __init__(self, pid: int, start_ticks: int, descriptor: int | None) -> None:
        """Only `hold` makes one."""
        self.pid = pid
        self.start_ticks = start_ticks
        self.descriptor = descriptor

    def has_ended(self) -> bool:
        """Whether it has ended, reaped or not. Source: pidfd_open(2): readable then."""
        if self.descriptor is not None:
            poller = select.poll()
            poller.register(self.descriptor, select.POLLIN)
            return bool(poller.poll(0))
        try:
            stat = _look(self.pid)
        except OSError:
            return False
        if stat is None or stat.start_ticks != self.start_ticks:
            return True
        return stat.state in "ZX" and not has_living_threads(self.pid)

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended within a limit."""
        return not wait_for_ends([self], limit_s)

    def send(self, number: int) -> bool:
        """Signal it; False when it is gone.

        Raises:
            PermissionError: it belongs to somebody else.
            OSError: as `hold`.
        """
        try:
            if self.descriptor is not None and _send_by_descriptor(self.descriptor, number):
                return True
            stat = _look(self.pid)
            if stat is None or stat.start_ticks != self.start_ticks:
                return False
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def reap(self, *, block: bool) -> bool:
        """Take the status of a child of ours away; whether nothing is left to take, also because somebody else did.

        Never another child's: a number that was given away again has another start time.
        """
        flags = os.WEXITED | (0 if block else os.WNOHANG)
        if self.descriptor is not None:
            try:
                return os.waitid(P_PIDFD, self.descriptor, flags) is not None
            except ChildProcessError:
                return True
            except OSError as error:
                if error.errno not in _UNAVAILABLE:
                    raise
        stat = _look(self.pid)
        if stat is None or stat.start_ticks != self.start_ticks:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Give the descriptor back; a second time is nothing. Without one it goes on by its start time."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def hold(pid: int, start_ticks: int | None = None) -> HeldProcess | None:
    """The process that has this number now, or only the one that began at `start_ticks`; None when it is gone.

    Raises:
        OSError: too many files are open, which says nothing about the process.
    """
    try:
        descriptor = _open(pid)
    except OSError as error:
        if error.errno in _GONE:
            return None
        if error.errno in _NO_MORE_FILES:
            raise
        descriptor = None
    # After the descriptor is open, so that it cannot belong to a later user of the number.
    try:
        stat = _look(pid)
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        raise
    if stat is None or start_ticks not in (None, stat.start_ticks):
        if descriptor is not None:
            os.close(descriptor)
        return None
    return HeldProcess(pid, stat.start_ticks, descriptor)


def hold_process(process: ProcessId) -> HeldProcess | None:
    """Exactly this process, or None when it is gone. Raises: as `hold`."""
    return None if is_other_boot(process.boot_id) else hold(process.pid, process.start_ticks)


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal exactly this process; False when it is gone.

    Raises:
        PermissionError: it belongs to somebody else.
        OSError: as `hold`.
    """
    held = hold_process(process)
    if held is None:
        return False
    try:
        return held.send(number)
    finally:
        held.close()


def wait_for_ends(processes: Sequence[HeldProcess], limit_s: float) -> list[HeldProcess]:
    """Wait until all have ended or the time is over; those that have not."""
    left = {held.descriptor: held for held in processes if held.descriptor is not None}
    unseen = [held for held in processes if held.descriptor is None]
    poller = select.poll()
    for descriptor in left:
        poller.register(descriptor, select.POLLIN)
    end = monotonic_s() + limit_s
    while True:
        # At least one look, also when the time is up already.
        for descriptor, _ in poller.poll(0):
            poller.unregister(descriptor)
            del left[descriptor]
        unseen = [held for held in unseen if not held.has_ended()]
        rest_s = end - monotonic_s()
        if not (left or unseen) or rest_s <= 0:
            return [*left.values(), *unseen]
        poller.poll(int(min(rest_s, LOOK_EVERY_S if unseen else LONGEST_POLL_S) * 1000) + 1)


def _look(pid: int) -> ProcessStat | None:
    """As `read_stat`; raises OSError where too many files are open to look, which says nothing about the process."""
    stat = read_stat(pid)
    if stat is None:
        try:
            os.close(os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in _NO_MORE_FILES:
                raise
    return stat


def _open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return libc.pidfd_open(pid)


def _send_by_descriptor(descriptor: int, number: int) -> bool:
    """Whether it was sent; False where the call is not there or refused, which says nothing about the process.

    EPERM is also what a signal to another account's process gets: the caller tries the older call, which tells.
    """
    try:
        if hasattr(signals, "pidfd_send_signal"):
            signals.pidfd_send_signal(descriptor, number)
        else:
            libc.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        raise
    except OSError as error:
        if error.errno not in _UNAVAILABLE:
            raise
        return False
    return True
