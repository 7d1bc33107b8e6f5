"""Who holds a kernel lock: by open descriptors where we may look, by ``/proc/locks`` otherwise.

Owns the reading of ``/proc/PID/fd``, ``/proc/PID/fdinfo`` and ``/proc/locks``; takes no lock and signals nobody. A
lock belongs to an open file description, which any number of processes share; ``/proc/locks`` names the one that took
it, alive or not, and inside a PID namespace it leaves out everybody outside. So an empty answer is "not seen", never
"nobody".

Reading ``/proc/locks`` stops every lock operation of the box for a moment (measured up to 9 ms), so it is for people's
questions; on the way to a lease only where a lock has stood in the way for some time. Source: proc_locks(5),
proc_pid_fdinfo(5), locks_start() in fs/locks.c.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable

from holdfast.core.control_characters import one_line
from holdfast.host.files.files import read_beginning
from holdfast.host.files.filesystems import filesystem_of
from holdfast.host.process import libc, pidfd, processes
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

Inode = tuple[int, int]
MOST_BYTES = 1 << 20
"""Of the kernel's list, about 17,000 locks. Anybody can make any number, and for each page that is read of it the
kernel walks it from its beginning."""

MOST_DESCRIPTORS = 1 << 15
"""Of one other account in one look: a second, when all of them bear the name of a lock file."""


@record
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
    return _find_locked(pid, wanted, _list_descriptors(pid))


def _list_descriptors(pid: int, most: int | None = None) -> list[str]:
    """The numbers of the descriptors that a process has, up to so many; none where we may not look."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return [entry.name for entry in itertools.islice(entries, most)]
    except OSError:
        return []


def _find_locked(pid: int, wanted: dict[Inode, str], descriptors: Iterable[str]) -> dict[Inode, int]:
    found: dict[Inode, int] = {}
    names = {os.path.basename(path) for path in wanted.values()}
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
    """The processes that hold a lock on one of these files, as far as we may look into them.

    Root may look into everybody's: so many descriptors of each other account are looked at, small pids first.
    """
    wanted = {inode: path for path in paths if (inode := read_inode(path)) is not None}
    found, looked = [], Counter[int]()
    for pid in processes.list_pids():
        uid = processes.read_uid(pid)
        if uid is None:
            continue
        account = processes.find_account(uid)
        left = None if uid == os.geteuid() else MOST_DESCRIPTORS - looked[account]
        descriptors = _list_descriptors(pid, left)
        looked[account] += len(descriptors)
        if _find_locked(pid, wanted, descriptors):
            found.append(pid)
    return tuple(found)


def copy_descriptors(paths: Iterable[str], holders: Iterable[ProcessId]) -> dict[str, int]:
    """Copies of the locked descriptors that `holders` have of these files; what could not be had is left out.

    A copy is the same open file description, so it holds the same lock.
    """
    wanted = {inode: path for path in paths if (inode := read_inode(path)) is not None}
    copies: dict[str, int] = {}
    for holder in holders:
        held = pidfd.hold_process(holder)
        if held is None:
            continue
        try:
            for inode, descriptor in find_locked_descriptors(holder.pid, wanted).items():
                if wanted[inode] not in copies and held.descriptor is not None:
                    copy = _copy(held.descriptor, descriptor, inode)
                    copies.update({} if copy is None else {wanted[inode]: copy})
        finally:
            held.close()
    return copies


def _copy(process: int, descriptor: int, inode: Inode) -> int | None:
    try:
        copy = libc.pidfd_getfd(process, descriptor)
    except OSError:
        return None
    seen = os.fstat(copy)
    if (seen.st_dev, seen.st_ino) == inode:
        return copy
    # The holder closed it and opened something else in between.
    os.close(copy)
    return None


def read_kernel_locks(warnings: list[str] | None = None) -> tuple[KernelLock, ...] | None:
    """Every flock (and lease of a file, F_SETLEASE) that the kernel shows us; None when the list cannot be read.

    Of a list that somebody has made very long only the beginning is read; `warnings` then says so, and who did.
    """
    try:
        data = read_beginning("/proc/locks", MOST_BYTES)
    except OSError:
        return None
    found, owners = [], Counter[str]()
    for line in data[: data.rfind(b"\n") + 1].decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) < 6:
            continue
        owners[fields[4]] += 1
        # A waiter for a lock has "->" in the second column.
        if fields[1] not in {"FLOCK", "LEASE"}:
            continue
        major, minor, inode = fields[5].split(":")
        device = f"{int(major, 16)}:{int(minor, 16)}"
        found.append(KernelLock(device, int(inode), fields[3] == "WRITE", int(fields[4])))
    if len(data) >= MOST_BYTES and warnings is not None:
        pid, _ = owners.most_common(1)[0]
        who = describe_pids([int(pid)] if pid.isdigit() else [])
        words = f"{who} has the most locks; a lock without a record may not be seen from here"
        warnings.append(f"/proc/locks is too long to be read whole: {words}")
    return tuple(found)


def locks_on(path: str, locks: Iterable[KernelLock]) -> tuple[KernelLock, ...]:
    """Those of `locks` that are on the file at `path`."""
    inode = read_inode(path)
    if inode is None:
        return ()
    device = filesystem_of(path)[1]
    return tuple(lock for lock in locks if lock.inode == inode[1] and lock.device == device)


def name_holders(path: str, locks: Iterable[KernelLock]) -> str:
    """Who holds a lock on the file at `path`, for people; `locks` are those of the kernel's list."""
    return describe_pids(find_holders((path,)) or (lock.pid for lock in locks_on(path, locks)))


def _find_left(pid: int) -> list[int]:
    """The processes in the session or process group of one that is gone: anybody may see these."""
    stats = map(processes.read_stat, processes.list_pids())
    return [stat.pid for stat in stats if stat is not None and stat.state != "Z" and pid in (stat.sid, stat.pgid)]


def describe_pids(pids: Iterable[int]) -> str:
    """Processes for people: user, command and pid of the first, and how many more."""
    listed = sorted(set(pids) - {0})
    if not listed:
        return "a process that cannot be seen from here"
    uid = processes.read_uid(listed[0])
    if uid is None:
        left = _find_left(listed[0])
        words = f"it left {describe_pids(left)}" if left else "a process that it started holds on, and root sees which"
        return f"pid {listed[0]}, which is gone; {words}"
    command = one_line(processes.read_command(listed[0]) or "?", 80)
    more = f" and {len(listed) - 1} more" if len(listed) > 1 else ""
    return f"{processes.user_name(uid)}, pid {listed[0]} ({command}){more}"
