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
    """That only the process itself has the other end of a pipe in which it waits; None where it is not proven.

    Those of `tree` that have it open are looked into first: of workers by the dozen, which inherit both ends of their
    own pipe, it would be a walk over the whole box for each.
    """
    does, needs = {
        "read": ("write to", stat.S_IWUSR), "readv": ("write to", stat.S_IWUSR),
        "write": ("read from", stat.S_IRUSR), "writev": ("read from", stat.S_IRUSR),
    }.get(name_call(thread.syscall), ("", 0))  # fmt: skip
    own = f"{proc}/{process.pid}/fd"
    if not needs or not target.startswith("pipe:[") or not _holds(own, _list(own), target, needs):
        return None
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
