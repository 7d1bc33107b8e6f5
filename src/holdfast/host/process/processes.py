"""Processes by identity: pid, start time and boot, read from /proc. `pidfd` holds, signals and waits for them.

A `ProcessId` that does not match any more is dead; what cannot be read is neither. Nothing here finds a process by
name or pattern.
"""

from __future__ import annotations

import os
import pwd
from functools import cache
from typing import TYPE_CHECKING

from holdfast.host.clock import boot_id, is_other_boot
from holdfast.model.identity import ProcessId
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBUID = "/etc/subuid"
RUN_ID, ATTEMPT = b"HOLDFAST_RUN_ID", b"HOLDFAST_ATTEMPT"
"""What every process of a job has in its environment."""
MOST_ENVIRONMENT = 6 << 20
"""No program is given more, its arguments with it. Source: execve(2), "Limits on size of arguments and environment"."""
MOST_OF_ACCOUNT = 64 << 20
_CHUNK = 1 << 17
_MOST_VARIABLES = 1 << 16
_MOST_VALUES = 4
PEOPLE = range(1000, 65534)
"""Uids of people. Source: systemd, UIDS-GIDS ("Distributions generally": 1000 on; 65534 is nobody)."""
WORKS_S = 60.0
"""A process that has used so much of a core works; a login, an editor or a monitor mostly has not."""


@record
class ProcessStat:
    """The fields of ``/proc/PID/stat`` that matter here. Source: proc_pid_stat(5)."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    sid: int
    start_ticks: int
    threads: int


_MOST_COMMAND = 1 << 16


def read_stat(pid: int) -> ProcessStat | None:
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
    return ProcessStat(
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
    if is_other_boot(process.boot_id):
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


def list_pids() -> list[int]:
    """Every pid in our PID namespace that /proc shows us."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_environment(pid: int, most: int = MOST_ENVIRONMENT) -> bytes | None:
    """What is the environment of a process, at most so many bytes; None when we may not read it or it is gone.

    Any process can say that gigabytes of its memory are that, and write what it likes there. Source: PR_SET_MM(2const).
    """
    parts = []
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            while most > 0 and (part := file.read(min(most, _CHUNK))):
                parts.append(part)
                most -= len(part)
    except OSError:
        return None
    return b"".join(parts)


def read_environ(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None when we may not read it or it is gone."""
    data = read_environment(pid)
    if data is None:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0", _MOST_VARIABLES)[:_MOST_VARIABLES] if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def iterate_environments(unread: set[int] | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Pid, uid and environment of every process that we may read: of each other account so many bytes in all.

    Root may read everybody's; who has more of it than that hides nobody's processes but its own. Such accounts are
    added to `unread`.
    """
    left: dict[int, int] = {}
    for pid in list_pids():
        uid = read_uid(pid)
        if uid is None:
            continue
        account = None if uid == os.geteuid() else find_account(uid)
        most = MOST_ENVIRONMENT if account is None else min(left.setdefault(account, MOST_OF_ACCOUNT), MOST_ENVIRONMENT)
        data = read_environment(pid, most)
        if account is not None and data is not None:
            left[account] -= len(data)
            if left[account] <= 0 and unread is not None:
                unread.add(account)
        if data:
            yield pid, uid, data


def list_values(environment: bytes, name: bytes) -> list[bytes]:
    """The values of a variable, the first few: its name can stand in an environment more than once."""
    data, key = b"\0" + environment + b"\0", b"\0" + name + b"="
    found: list[bytes] = []
    at = data.find(key)
    while at >= 0 and len(found) < _MOST_VALUES:
        begin = at + len(key)
        found.append(data[begin : data.index(b"\0", begin)])
        at = data.find(key, begin)
    return found


def find_marked(run_id: str, attempt: int | None = None) -> list[ProcessId]:
    """Every living process whose environment carries the run's marker and which we may read."""
    boot, marker, found = boot_id(), run_id.encode(), []
    for pid, _, data in iterate_environments():
        if marker not in data or marker not in list_values(data, RUN_ID):
            continue
        if attempt is None or str(attempt).encode() in list_values(data, ATTEMPT):
            process = identify(pid, boot)
            if process is not None and is_alive(process):
                found.append(process)
    return found


def iterate_marked(uid: int) -> Iterator[int]:
    """Processes of that account whose environment carries any run's marker: one read each, nothing is decoded."""
    for pid in list_pids():
        data = read_environment(pid) if read_uid(pid) == uid else None
        if data and list_values(data, RUN_ID):
            yield pid


def read_command(pid: int) -> str | None:
    """The command line for people, arguments joined by spaces; the kernel's name in brackets for a kernel thread.

    Of a very long one the beginning: any process can say that gigabytes are its arguments. Source: PR_SET_MM(2const).
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            data = file.read(_MOST_COMMAND)
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
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find_account(uid: int) -> int:
    """The account that answers for a uid: its own, or whoever may use it in user namespaces.

    Many boxes lend each account tens of thousands of uids, and it can make files in the name of each.
    Source: subuid(5).
    """
    return next((owner for owner, first, count in _read_lent_uids() if first <= uid < first + count), uid)


@cache
def _read_lent_uids() -> tuple[tuple[int, int, int], ...]:
    """Owner, first and count of each range of uids that an account was lent, read once."""
    found = []
    try:
        with open(SUBUID, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ()
    for line in lines:
        name, *numbers = line.split(":")
        if len(numbers) == 2 and all(text.isascii() and text.isdigit() for text in numbers):
            uid = _find_uid(name)
            if uid is not None:
                found.append((uid, int(numbers[0]), int(numbers[1])))
    return tuple(found)


def _find_uid(name: str) -> int | None:
    """The uid of an account that is given by its name or its number."""
    try:
        return int(name) if name.isascii() and name.isdigit() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


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
    return _is_set(pid, ("SigCgt:",), number)


def has_pending(pid: int, number: int) -> bool:
    """Whether a signal waits at a process that blocks it; unreadable is no. Source: as `handles_signal`, ShdPnd."""
    return _is_set(pid, ("SigPnd:", "ShdPnd:"), number)


def _is_set(pid: int, names: tuple[str, ...], number: int) -> bool:
    """Whether one of these masks of a process has the signal's bit."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    masks = (int(line.split()[1], 16) for line in lines if line.startswith(names))
    return 1 <= number <= 64 and any(mask >> (number - 1) & 1 for mask in masks)


def find_other_accounts(root: str = "") -> tuple[int, ...] | None:
    """The uids of other people whose processes work here; None where others' processes cannot be seen (hidepid).

    Source: proc(5): the owner of ``/proc/PID``, fields 14 and 15 of ``stat``.
    """
    own, found = os.geteuid(), set()
    ticks = os.sysconf("SC_CLK_TCK")
    if own != 0 and not os.path.exists(f"{root}/proc/1/stat"):
        return None
    for name in os.listdir(f"{root}/proc"):
        if not name.isdecimal():
            continue
        try:
            uid = os.stat(f"{root}/proc/{name}").st_uid
            if uid == own or uid not in PEOPLE or uid in found:
                continue
            with open(f"{root}/proc/{name}/stat", "rb") as file:
                fields = file.read(4096).rpartition(b")")[2].split()
            if (int(fields[11]) + int(fields[12])) / ticks >= WORKS_S:
                found.add(uid)
        except (OSError, ValueError, IndexError):
            continue
    return tuple(sorted(found))
