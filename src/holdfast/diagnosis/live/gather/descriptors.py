"""What the descriptors are that a thread waits on, without following a link or stopping anybody.

An epoll descriptor lists what it watches in ``/proc/P/fdinfo`` (proc_pid_fdinfo(5), ``tfd``); the array of a poll(2) is
read from the thread's memory where we may (the same right as ptrace; the thread is not stopped). Where neither is
possible and the process has descriptors of one kind only, it is that kind; else the answer is None.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys

from holdfast.diagnosis.live.detect.waits import Wait, epoll_descriptor, first_descriptor, poll_array
from holdfast.host.files.filesystems import find_mount, read_mounts
from holdfast.model.pattern import compile_later
from holdfast.model.record import record, replace
from holdfast.model.units import format_count

from .other_end import OtherEnd, find_connections_end, find_fifo, find_lock, find_pipes_end
from .snapshot import ProcessFacts, ThreadFacts

MOST_POLLED = 64
_TFD = compile_later(r"^tfd:\s*(\d+)", re.MULTILINE)


@record
class WaitedOn:
    """What a thread waits on: link targets (``pipe:[1]``), and for files the mount they lie on.

    `silence` says of the connection to `peer` that what was sent is not acknowledged; empty when nothing is open.
    `other_end` is known only where it is proven who has it.
    """

    targets: tuple[str, ...]
    mount_point: str = ""
    mount_kind: str = ""
    mount_source: str = ""
    peer: str = ""
    silence: str = ""
    other_end: OtherEnd | None = None

    @property
    def kind(self) -> Wait:
        """PIPE or SOCKET when all are of that kind, STORAGE for a path, else POLL."""
        if self.targets and all(target.startswith("pipe:") for target in self.targets):
            return Wait.PIPE
        if self.targets and all(target.startswith("socket:") for target in self.targets):
            return Wait.SOCKET
        # An event descriptor or a signal descriptor beside one kind does not change what is waited for.
        rest = {t for t in self.targets if not t.startswith("anon_inode:")}
        if rest and rest != set(self.targets):
            return WaitedOn(tuple(rest)).kind
        if len(self.targets) == 1 and self.targets[0].startswith("/") and not self.targets[0].startswith("/dev/"):
            return Wait.STORAGE
        return Wait.POLL


def find_waited_on(
    process: ProcessFacts, thread: ThreadFacts, tree: tuple[ProcessFacts, ...] = (), *, proc: str = "/proc"
) -> WaitedOn | None:
    """What one thread waits on; None when it waits on no descriptor, or that cannot be told.

    `tree` are the processes of the job: one of them may have the other end.
    """
    fifo = find_fifo(process, thread, proc)
    if fifo is not None:
        return WaitedOn((fifo[0],), other_end=fifo[1])
    numbers = _numbers(process, thread, proc)
    if numbers:
        targets = tuple(target for number in numbers if (target := process.target_of(number)) is not None)
    elif thread.wait is Wait.POLL:
        targets = _only_kind(process)
    else:
        targets = ()
    targets = tuple(target for target in targets if not _is_own_pair(process, target, proc))
    if not targets:
        return None
    peer, silence, other_end = _find_peer(process, targets, tree, proc)
    if len(targets) == 1 and other_end is None:
        other_end = find_pipes_end(process, thread, targets[0], tree, proc)
    path = next((target for target in targets if target.startswith("/") and not target.startswith("/dev/")), "")
    if not path:
        return WaitedOn(targets, peer=peer, silence=silence, other_end=other_end)
    found = _with_mount(targets, path, process.pid, proc)
    return replace(found, other_end=find_lock(process, thread, path, tree, proc))


def _with_mount(targets: tuple[str, ...], path: str, pid: int, proc: str) -> WaitedOn:
    # By the process's own table: it may live in a mount namespace of its own. No path is touched.
    mount = find_mount(path, read_mounts(f"{proc}/{pid}/mountinfo"))
    if mount is None:
        return WaitedOn(targets)
    return WaitedOn(targets, mount.mount_point, mount.kind, mount.source)


def slow_mounts(process: ProcessFacts, *, proc: str = "/proc") -> tuple[WaitedOn, ...]:
    """Network and FUSE mounts on which the process has files open: suspects where the call names no descriptor."""
    found: dict[str, WaitedOn] = {}
    for file in process.files.value or ():
        if file.target.startswith("/") and not file.target.startswith(("/dev/", "/proc/", "/sys/")):
            place = _with_mount((file.target,), file.target, process.pid, proc)
            if place.mount_kind.startswith(("nfs", "fuse", "cifs", "ceph", "lustre", "9p")):
                found.setdefault(place.mount_point, place)
    return tuple(found.values())


def _numbers(process: ProcessFacts, thread: ThreadFacts, proc: str) -> tuple[int, ...]:
    single = first_descriptor(thread.syscall, thread.arguments)
    if single is not None:
        return (single,)
    epoll = epoll_descriptor(thread.syscall, thread.arguments)
    if epoll is not None:
        try:
            with open(f"{proc}/{process.pid}/fdinfo/{epoll}", encoding="ascii", errors="replace") as file:
                return tuple(int(number) for number in _TFD.findall(file.read()))[:MOST_POLLED]
        except OSError:
            return ()
    array = poll_array(thread.syscall, thread.arguments)
    return () if array is None else _read_poll_array(process.pid, array[0], array[1], proc)


def _read_poll_array(pid: int, address: int, count: int, proc: str) -> tuple[int, ...]:
    if not 0 < count <= MOST_POLLED:
        return ()
    try:
        descriptor = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        data = os.pread(descriptor, 8 * count, address)
    except (OSError, OverflowError):
        return ()
    finally:
        os.close(descriptor)
    if len(data) != 8 * count:
        return ()
    return tuple(number for number, _, _ in struct.iter_unpack("=ihh", data) if number >= 0)


def _only_kind(process: ProcessFacts) -> tuple[str, ...]:
    # Standard streams are open everywhere and say nothing.
    files = [file.target for file in process.files.value or () if file.number > 2]
    sockets = tuple(target for target in files if target.startswith("socket:"))
    pipes = tuple(target for target in files if target.startswith("pipe:"))
    return sockets if sockets and not pipes else pipes if pipes and not sockets else ()


def _is_own_pair(process: ProcessFacts, target: str, proc: str) -> bool:
    """Whether a socket is one of a pair whose other end the process has too: how event loops wake themselves.

    Both ends of a socketpair(2) get their inodes in one go, one after the other.
    """
    number = target[8:-1] if target.startswith("socket:[") else ""
    if not number.isdecimal():
        return False
    near = {f"socket:[{int(number) + step}]" for step in (-1, 1)}
    if not any(file.target in near for file in process.files.value or ()):
        return False
    try:
        with open(f"{proc}/{process.pid}/net/unix", encoding="ascii", errors="replace") as file:
            return any(number in line.split() for line in file)
    except OSError:
        return False


def _find_peer(
    process: ProcessFacts, targets: tuple[str, ...], tree: tuple[ProcessFacts, ...], proc: str
) -> tuple[str, str, OtherEnd | None]:
    """Of the first connected TCP socket among `targets` the other end (``address:port``), its silence, and who has it.

    Source: proc_pid_net(5), ``tcp``: the fields local, remote, state, queues, timer, how often what is not acknowledged
    was sent again (seventh) and, tenth, the inode.
    """
    wanted = {target[8:-1] for target in targets if target.startswith("socket:[")}
    if not wanted:
        return "", "", None
    rows: list[list[str]] = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/{process.pid}/net/{table}", encoding="ascii", errors="replace") as file:
                lines = file.read().splitlines()[1:4097]
        except OSError:
            continue
        rows += [words for line in lines if len(words := line.split()) > 9]
    row = next((words for words in rows if words[9] in wanted), None)
    if row is None:
        return "", "", None
    peer = _address(row[2])
    return peer, _describe_silence(row), find_connections_end(process, row, rows, tree, peer) if peer else None


def _describe_silence(words: list[str]) -> str:
    try:
        unsent, again = int(words[4].partition(":")[0], 16), int(words[6], 16)
    except ValueError:
        return ""
    times = format_count(again, "time")
    return f", which has not acknowledged {unsent} bytes (sent again {times})" if unsent and again else ""


def _address(text: str) -> str:
    address, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(address)
        if sys.byteorder == "little":
            raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
        shown = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
        number = int(port, 16)
    except (ValueError, OSError):
        return ""
    return f"{shown}:{number}" if number else ""
