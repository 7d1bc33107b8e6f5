"""Who has the other end of what a thread waits on, where that is proven to be the job itself or nobody.

Links in ``fd`` are read, never followed. Source: pipe(7), fifo(7); proc_pid_fd(5): the mode of a link says how it was
opened; proc_pid_net(5), ``tcp``: a connection that nobody has accepted yet has inode 0.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from holdfast.core.control_characters import clean
from holdfast.diagnosis.live.detect.waits import Wait, name_call
from holdfast.model.record import record

from .snapshot import ProcessFacts, ThreadFacts

MOST_LINKS = 100_000
MOST_PATH_BYTES = 4096
MOST_HOLDERS = 8
"""Processes with a pipe open that are looked into: of those that inherit it there may be hundreds."""
MOST_LOCKS_BYTES = 1024**2
LOCK_FIELDS = 8
MOST_LOCKING = 1024
"""Open files of a process of which it is looked whether they have a lock."""
_LISTENS = "0A"
_HERE = 0xFFFFFF9C
"""AT_FDCWD, as the lower half of the argument. Source: openat(2), linux/fcntl.h."""


@record
class OtherEnd:
    """Both for people: `text` says who has it, `look` what to look at; ``{deep}`` in it is a command to type."""

    text: str
    look: str


def find_pipes_end(
    process: ProcessFacts, thread: ThreadFacts, target: str, tree: tuple[ProcessFacts, ...], proc: str
) -> OtherEnd | None:
    """Who has the other end of a pipe in which it waits: only the process itself, or which other one of the job.

    None where neither is proven. Of an end that it has itself those of `tree` that have it open are looked into first:
    of workers by the dozen, which inherit both ends of their own pipe, it would be a walk over the whole box for each.
    """
    does, needs = {
        "read": ("write to", stat.S_IWUSR), "readv": ("write to", stat.S_IWUSR),
        "write": ("read from", stat.S_IRUSR), "writev": ("read from", stat.S_IRUSR),
    }.get(name_call(thread.syscall), ("", 0))  # fmt: skip
    own = f"{proc}/{process.pid}/fd"
    if not needs or not target.startswith("pipe:["):
        return None
    if not _holds(own, _list(own), target, needs):
        return _find_holder(process, target, needs, tree, proc)
    for near in tree:
        if near.pid != process.pid and any(file.target == target for file in near.files.value or ()):
            directory = f"{proc}/{near.pid}/fd"
            if _holds(directory, _list(directory), target, needs):
                return None
    left = MOST_LINKS
    for directory in (f"{proc}/{name}/fd" for name in _list(proc) if name.isdecimal() and name != str(process.pid)):
        # What may not be listed is another account's, or has ended.
        links = _list(directory)
        left -= len(links)
        if left < 0 or _holds(directory, links, target, needs):
            return None
    return OtherEnd(
        f"both ends of {target} are the job's own (pid {process.pid}), and no other process that may be looked into "
        f"has it open: nobody else can {does} it",
        f"find in its stacks (`{{deep}}`) what should {does} {target}: nobody but pid {process.pid} itself can",
    )


def _find_holder(
    process: ProcessFacts, target: str, needs: int, tree: tuple[ProcessFacts, ...], proc: str
) -> OtherEnd | None:
    """Which other process of `tree` has the other end of a pipe, the nearest ancestor first; None where none has it.

    A shell that waits for its children has the ends that these use, too (``exec > >(tee log)``): of several who have it
    one that does not wait for a child counts first, and no deadlock is claimed.
    """
    above = _list_ancestors(process, tree)
    pids = {process.pid, *(other.pid for other in above)}
    near = [*above, *(other for other in tree if other.pid not in pids)]
    open_there = [other for other in near if any(file.target == target for file in other.files.value or ())]
    holders = [
        other
        for other in open_there[:MOST_HOLDERS]
        if _holds(f"{proc}/{other.pid}/fd", _list(f"{proc}/{other.pid}/fd"), target, needs)
    ]
    if not holders:
        return None
    holder = next((other for other in holders if not _waits_for_children(other)), holders[0])
    is_only = len(holders) == 1 and len(open_there) <= MOST_HOLDERS
    is_awaited = is_only and holder.pid in pids and _awaits(holder, {process.pid, *(other.pid for other in above)})
    return _describe_holder(process, holder, target, needs, is_awaited=is_awaited)


def _waits_for_children(process: ProcessFacts) -> bool:
    """Whether none of its threads does anything but wait for a child."""
    return bool(process.living) and all(thread.wait in (Wait.CHILD, Wait.VFORK) for thread in process.living)


def _awaits(process: ProcessFacts, pids: set[int]) -> bool:
    """Whether it does nothing but wait for a child, which may be one of these. Source: wait4(2), the first argument."""
    if not _waits_for_children(process):
        return False
    thread = process.living[0]
    awaited = thread.arguments[0] & 0xFFFFFFFF if name_call(thread.syscall) == "wait4" and thread.arguments else 0
    return not 0 < awaited < 1 << 31 or awaited in pids


def _list_ancestors(process: ProcessFacts, tree: tuple[ProcessFacts, ...]) -> list[ProcessFacts]:
    """Those of `tree` from which a process descends, its parent first."""
    by_pid = {other.pid: other for other in tree}
    found: list[ProcessFacts] = []
    parent = by_pid.get(process.ppid)
    while parent is not None and parent.pid != process.pid and parent not in found:
        found.append(parent)
        parent = by_pid.get(parent.ppid)
    return found


def _describe_holder(
    process: ProcessFacts, holder: ProcessFacts, target: str, needs: int, *, is_awaited: bool
) -> OtherEnd:
    """What a process with the other end does; that it waits for the end of who waits for it is a deadlock."""
    reads = needs == stat.S_IRUSR
    end, does = ("reading", "read") if reads else ("writing", "write")
    whose = "its parent" if holder.pid == process.ppid else "a process of the job itself"
    who = f"{whose} (pid {holder.pid}, {holder.name})"
    waits = holder.living[0].wait if holder.living else Wait.DEAD
    if not is_awaited:
        state = "runs, or could" if waits is Wait.RUNNING else f"waits for {waits.value}"
        has = f"has the {end} end of {target}"
        return OtherEnd(f"{who} {has} and {state}", f"look at pid {holder.pid} ({holder.name}): it {has} and {state}")
    how = "for room in the pipe" if reads else "for what comes through the pipe, or for its end"
    must = f"read {target}" if reads else f"write to {target}, or close that end,"
    return OtherEnd(
        f"{who} has the {end} end of {target}, waits for {waits.value} and does not {does}",
        f"have pid {holder.pid} ({holder.name}) {must} before it waits for its child or while it does (Python: "
        f"`communicate()` in place of `wait()`, or `{does}` before it): each waits for the other, pid {process.pid} "
        f"{how}, and {'its parent' if holder.pid == process.ppid else 'the other'} for its end",
    )


def find_lock(
    process: ProcessFacts, thread: ThreadFacts, target: str, tree: tuple[ProcessFacts, ...], proc: str
) -> OtherEnd | None:
    """Who holds the lock of a file for which a thread waits; None where the kernel's table of locks does not tell.

    A pid that is not positive is of another namespace, or of a lock that no single process has; one that took the lock
    may have it no more.
    Source: proc_locks(5): who waits stands with an arrow below what he waits for, with the same number.
    """
    shown = clean(target.encode("utf-8", "replace").decode())
    if thread.wait is not Wait.FILE_LOCK:
        return None
    try:
        with open(f"{proc}/locks", encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file.read(MOST_LOCKS_BYTES).splitlines()]
    except OSError:
        return None
    # The rows name files by numbers alone: of a process whose threads wait for several locks it is not told which.
    waits = [row for row in rows if "->" in row and row[-4:-3] == [str(process.pid)]]
    held = next((row for row in rows if len(waits) == 1 and row[0] == waits[0][0] and "->" not in row), [])
    if len(held) < LOCK_FIELDS or not held[-4].isdecimal() or held[-4] == "0":
        return None
    pid = int(held[-4])
    if not _may_have(pid, held, proc):
        return None
    if pid == process.pid:
        return OtherEnd(
            f"the lock of {shown} for which it waits is held by this very process (pid {pid})",
            f"find in its stacks (`{{deep}}`) where it locks {shown}: it waits for a lock that it has itself, by "
            "another open file, and nobody else can give that up",
        )
    who = f"pid {pid} ({_name(pid, tree, proc)})"
    whose = "a process of the job itself, " if any(other.pid == pid for other in tree) else ""
    return OtherEnd(
        f"the lock of {shown} for which it waits is held by {whose}{who}",
        f"look at {who}, which holds the lock of {shown}: it goes on when that is given up, or that process ends",
    )


def _may_have(pid: int, row: list[str], proc: str) -> bool:
    """Whether a process may have the open file of a lock; False where it is seen that it has not.

    The lock stays while any process has that open file, and its row keeps the pid of who took it: that one may have
    ended, or closed it, and a child that inherited it goes on. Source: flock(2); proc_pid_fdinfo(5), ``lock:``.
    """
    directory = f"{proc}/{pid}/fdinfo"
    try:
        names = os.listdir(directory)
    except OSError as error:
        return isinstance(error, PermissionError)
    for name in names[:MOST_LOCKING]:
        try:
            with open(f"{directory}/{name}", encoding="ascii", errors="replace") as file:
                if any(line.startswith("lock:") and line.split()[2:] == row[1:] for line in file):
                    return True
        except OSError as error:
            if isinstance(error, PermissionError):
                return True
    return len(names) > MOST_LOCKING


def _name(pid: int, tree: tuple[ProcessFacts, ...], proc: str) -> str:
    known = next((other.name for other in tree if other.pid == pid), "")
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return known or clean(file.read().rstrip("\n"))
    except OSError:
        return known or "its name could not be read"


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _holds(directory: str, links: list[str], target: str, needs: int) -> bool:
    """Whether one of these links of a process points there and was opened so."""
    for name in links:
        link = os.path.join(directory, name)
        try:
            if os.readlink(link) == target and os.lstat(link).st_mode & needs:
                return True
        except OSError:
            continue
    return False


def find_fifo(process: ProcessFacts, thread: ThreadFacts, proc: str) -> tuple[str, OtherEnd] | None:
    """The FIFO that a thread waits to open, and that nobody has its other end; None when it opens none.

    It waits just because of that: to open it for reading takes a process that has it open for writing, and reverse.
    """
    if thread.wait is not Wait.PIPE or name_call(thread.syscall) != "openat" or len(thread.arguments) < 3:
        return None
    at, address, flags = thread.arguments[:3]
    directory = "cwd" if at & 0xFFFFFFFF == _HERE else f"fd/{at}"
    path = _read_path(process.pid, address, directory, proc) or "a FIFO (its name could not be read)"
    other = "reading" if flags & os.O_ACCMODE == os.O_WRONLY else "writing"
    return path, OtherEnd(
        f"it waits to open {path}, a FIFO that no process has open for {other}",
        f"start what should open {path} for {other}, which no process does",
    )


def _read_path(pid: int, address: int, directory: str, proc: str) -> str:
    """The path in a process's memory, absolute: `directory` is the link to what it is relative to. Empty if unread.

    Made harmless here: an action may have several lines, which a name must not begin.
    """
    try:
        descriptor = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        # Not beyond its page: the next one may not be there.
        page = os.sysconf("SC_PAGESIZE")
        data = os.pread(descriptor, page - address % page, address)
        if b"\0" not in data:
            data += os.pread(descriptor, MOST_PATH_BYTES, address + len(data))
        path = os.fsdecode(data.partition(b"\0")[0])
        base = "" if path.startswith("/") else os.readlink(f"{proc}/{pid}/{directory}")
    except (OSError, OverflowError):
        return ""
    finally:
        os.close(descriptor)
    shown = os.path.normpath(os.path.join(base, path)) if path else ""
    return clean(shown.encode("utf-8", "replace").decode())


def find_connections_end(
    process: ProcessFacts, row: list[str], rows: list[list[str]], tree: tuple[ProcessFacts, ...], where: str
) -> OtherEnd | None:
    """Which process of `tree` has the other end of a TCP connection; None where none of them is seen with it.

    `row` is the connection among the `rows` of the kernel's tables, `where` its other end for people.
    """
    for kind, inode in _find_inodes(row, rows):
        if inode == "0":
            continue
        for holder in (process, *tree):
            if all(file.target != f"socket:[{inode}]" for file in holder.files.value or ()):
                continue
            own = holder.pid == process.pid
            who = f"{'this very process' if own else 'a process of the job itself'} (pid {holder.pid}, {holder.name})"
            why = ", which listens there and has not accepted it" if kind == _LISTENS else ""
            look = f"look at pid {holder.pid} ({holder.name})"
            return OtherEnd(
                f"the other end of the connection, {where}, is {who}{why}",
                f"{'find in its stacks (`{deep}`) why nothing is sent' if own else look}: {where} is {who}{why}",
            )
    return None


def _find_inodes(row: list[str], rows: list[list[str]]) -> Iterator[tuple[str, str]]:
    """State and inode of the other end; then, while that has none, of who listens for it."""
    ours, theirs = map(_canonical, row[1:3])
    ends = [other for other in rows if (_canonical(other[1]), _canonical(other[2])) == (theirs, ours)]
    yield from ((end[3], end[9]) for end in ends)
    if any(end[9] == "0" for end in ends):
        for other in rows:
            address, _, port = _canonical(other[1]).partition(":")
            here = address == theirs.partition(":")[0] or not address.strip("0")
            if other[3] == _LISTENS and here and port == theirs.partition(":")[2]:
                yield other[3], other[9]


def _canonical(address: str) -> str:
    """An IPv4 address that is written as IPv6 is that IPv4 address; as the kernel writes both, in words of the host."""
    mapped = {"0000000000000000FFFF0000", "00000000000000000000FFFF"}
    return address[24:] if address[:24] in mapped else address
