"""Processes by identity: pid, start time and boot, read from /proc; signals only through a verified pidfd.

A `ProcessId` that does not match any more is dead; what cannot be read is neither. Nothing here finds a process by
name or pattern.
"""

from __future__ import annotations

import errno
import os
import signal as signals
from dataclasses import dataclass

from ..model.identity import ProcessId
from .clock import boot_id


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that matter here. Source: proc_pid_stat(5)."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    start_ticks: int
    threads: int


def read_stat(pid: int) -> Stat | None:
    """One process as it is now; None when there is none.

    The command name may hold spaces and parentheses, so the fields are counted from the last ``)``.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        comm=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        start_ticks=int(fields[19]),
        threads=int(fields[17]),
    )


def identify(pid: int, boot: str | None = None) -> ProcessId | None:
    """The identity of a process that exists now; None when it does not."""
    stat = read_stat(pid)
    return None if stat is None else ProcessId(pid, stat.start_ticks, boot or boot_id())


def identify_self() -> ProcessId:
    """Our own identity."""
    found = identify(os.getpid())
    assert found is not None, "a process can always read its own /proc entry"
    return found


def is_alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs. A zombie is dead unless threads of it live on."""
    if process.boot_id != boot_id():
        return False
    stat = read_stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        return False
    return stat.state not in "ZX" or has_living_threads(process.pid)


def has_living_threads(pid: int) -> bool:
    """Whether a process whose main thread is a zombie still runs in another thread (seen: leader did pthread_exit)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state not in (b"Z", b"X"):
            return True
    return False


def open_pidfd(process: ProcessId) -> int | None:
    """A pidfd of exactly this process (the caller closes it), or None when it is gone.

    The start time is compared after opening, so the descriptor cannot belong to a later user of the pid.

    Raises:
        OSError: there is no pidfd to be had (too many open files, a sandbox without the call), which says nothing about
            the process. Source: pidfd_open(2): ESRCH is no such process, EINVAL (ENOENT on newer kernels, seen on
            6.18) that the number is now one of a thread.
    """
    if process.boot_id != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise
    stat = read_stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        os.close(descriptor)
        return None
    return descriptor


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal exactly this process; False when it is gone.

    Raises:
        PermissionError: it belongs to somebody else.
        OSError: as `open_pidfd`.
    """
    descriptor = open_pidfd(process)
    if descriptor is None:
        return False
    try:
        signals.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def list_pids() -> list[int]:
    """Every pid in our PID namespace that /proc shows us."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_environ(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None when we may not read it or it is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def find_marked(run_id: str, attempt: int | None = None) -> list[ProcessId]:
    """Every living process whose environment carries the run's marker and which we may read."""
    boot, marker, found = boot_id(), f"HOLDFAST_RUN_ID={run_id}".encode(), []
    wanted = None if attempt is None else f"HOLDFAST_ATTEMPT={attempt}".encode()
    for pid in list_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            continue
        if marker in entries and (wanted is None or wanted in entries):
            process = identify(pid, boot)
            if process is not None and is_alive(process):
                found.append(process)
    return found


def read_command(pid: int) -> str | None:
    """The command line for people, arguments joined by spaces; the kernel's name in brackets for a kernel thread."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read()
    except OSError:
        return None
    if data:
        return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    stat = read_stat(pid)
    return None if stat is None else f"[{stat.comm}]"


def read_uid(pid: int) -> int | None:
    """The user id a process runs under; None when it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def user_name(uid: int) -> str:
    """The account's name, or the number as text when the box does not know it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def name_owner(uid: int, stated: str) -> str:
    """Who wrote a file that everybody can write: the owner's name here; else what it says, with the number.

    A box does not know the accounts of its containers, whose names are only stated.
    """
    known = user_name(uid)
    return f"{stated[:32]} (uid {uid})" if known == str(uid) and stated not in {"", known} else known


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal now: after an exec it is gone, and the signal would end it.

    Unreadable is no: then it is not to be sent. Source: proc_pid_status(5), SigCgt: hexadecimal, bit n - 1 for n.
    """
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    for line in lines:
        if line.startswith("SigCgt:"):
            return 1 <= number <= 64 and bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
