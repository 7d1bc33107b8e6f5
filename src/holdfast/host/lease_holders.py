"""Who holds a kernel lock: by open descriptors where we may look, by ``/proc/locks`` otherwise.

Owns the reading of ``/proc/PID/fd``, ``/proc/PID/fdinfo`` and ``/proc/locks``; takes no lock and signals nobody. A
lock belongs to an open file description, which any number of processes share; ``/proc/locks`` names the one that took
it, alive or not, and inside a PID namespace it leaves out everybody outside. So an empty answer is "not seen", never
"nobody".

Reading ``/proc/locks`` stops every lock operation of the box for a moment (measured up to 9 ms), so it is for people's
questions and never on the way to a lease. Source: proc_locks(5), proc_pid_fdinfo(5), locks_start() in fs/locks.c.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import lease_area, libc, processes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.identity import ProcessId

Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KernelLock:
    """One flock as ``/proc/locks`` lists it; `pid` took it and may be gone (0: not in our PID namespace)."""

    device: str
    inode: int
    exclusive: bool
    pid: int


def read_inode(path: str) -> Inode | None:
    """Device and inode of a lock file; None when it does not exist."""
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def find_locked_descriptors(pid: int, wanted: dict[Inode, str]) -> dict[Inode, int]:
    """The descriptors of `pid` that hold a lock on one of these files; empty when it has none or we may not look.

    Only what bears the name of a lock file is looked at closely: stat on any other file could hang on a dead server.
    """
    found: dict[Inode, int] = {}
    names = {os.path.basename(path) for path in wanted.values()}
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for descriptor in descriptors:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if os.path.basename(link).removesuffix(" (deleted)") not in names:
                continue
            seen = os.stat(f"/proc/{pid}/fd/{descriptor}")
            inode = seen.st_dev, seen.st_ino
            if inode not in wanted:
                continue
            with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as file:
                if b"FLOCK" in file.read():
                    found[inode] = int(descriptor)
        except OSError:
            continue
    return found


def find_holders(paths: Iterable[str]) -> tuple[int, ...]:
    """The processes that hold a lock on one of these files, as far as we may look into them."""
    wanted = {inode: path for path in paths if (inode := read_inode(path)) is not None}
    return tuple(pid for pid in processes.list_pids() if find_locked_descriptors(pid, wanted))


def copy_descriptors(paths: Iterable[str], holders: Iterable[ProcessId]) -> dict[str, int]:
    """Copies of the locked descriptors that `holders` have of these files; what could not be had is left out.

    A copy is the same open file description, so it holds the same lock.
    """
    wanted = {inode: path for path in paths if (inode := read_inode(path)) is not None}
    copies: dict[str, int] = {}
    for holder in holders:
        pidfd = processes.open_pidfd(holder)
        if pidfd is None:
            continue
        try:
            for inode, descriptor in find_locked_descriptors(holder.pid, wanted).items():
                if wanted[inode] not in copies:
                    copy = _copy(pidfd, descriptor, inode)
                    copies.update({} if copy is None else {wanted[inode]: copy})
        finally:
            os.close(pidfd)
    return copies


def _copy(pidfd: int, descriptor: int, inode: Inode) -> int | None:
    try:
        copy = libc.pidfd_getfd(pidfd, descriptor)
    except OSError:
        return None
    seen = os.fstat(copy)
    if (seen.st_dev, seen.st_ino) == inode:
        return copy
    # The holder closed it and opened something else in between.
    os.close(copy)
    return None


def read_kernel_locks() -> tuple[KernelLock, ...] | None:
    """Every flock that the kernel shows us; None when the list cannot be read."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        fields = line.split()
        # A waiter for a lock has "->" in the second column.
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        major, minor, inode = fields[5].split(":")
        device = f"{int(major, 16)}:{int(minor, 16)}"
        found.append(KernelLock(device, int(inode), fields[3] == "WRITE", int(fields[4])))
    return tuple(found)


def locks_on(path: str, locks: Iterable[KernelLock]) -> tuple[KernelLock, ...]:
    """Those of `locks` that are on the file at `path`."""
    inode = read_inode(path)
    if inode is None:
        return ()
    device = lease_area.filesystem_of(path)[1]
    return tuple(lock for lock in locks if lock.inode == inode[1] and lock.device == device)


def describe_pids(pids: Iterable[int]) -> str:
    """Processes for people: user, command and pid of the first, and how many more."""
    listed = sorted(set(pids))
    if not listed:
        return "a process that cannot be seen from here"
    uid = processes.read_uid(listed[0])
    if uid is None:
        return f"pid {listed[0]}, which is gone; a process that it started holds on"
    command = processes.read_command(listed[0]) or "?"
    more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
    return f"{processes.user_name(uid)}, pid {listed[0]} ({command[:80]}){more}"
