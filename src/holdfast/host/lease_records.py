"""Lease records: what a lessee publishes beside its locks, and whether a record still means anything.

Owns the files ``lease-<run-id>.<attempt>.json`` of an area. A record counts only if its file belongs to the user that
it names, and it is void when the box was restarted since, or when every process of it is provably gone. What cannot
be seen (another PID namespace, a hidden /proc) is not gone. The caller holds the card's lock, or knows that it is
held.

Records are not synced to disk: a record that a power loss takes would be void after the restart anyway.
"""

from __future__ import annotations

import itertools
import os
import stat
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from ..model import wire
from ..model.lease import Busy, LeaseRecord, Phase, Witness
from . import clock, lease_area, processes
from .files import read_bytes, remove_quietly, write_all

if TYPE_CHECKING:
    from ..model.identity import ProcessId
    from ..model.lease import LeasedDevice
    from .lease_area import Area

PREFIX, SUFFIX = "lease-", ".json"
MAX_BYTES = 1 << 20
LARGEST = 1 << 63
"""JSON knows larger numbers, and arithmetic with them fails."""
MOST_CGROUPS = 4096
"""Directories below one run's cgroup: a container's init may make some, no job makes so many."""

# Source: include/linux/proc_ns.h, PROC_PID_INIT_INO: the number of the initial PID namespace on every Linux.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


class Standing(str, Enum):
    """What a record says now."""

    LIVE = "live"
    DRAINING = "draining"
    UNSEEN = "unseen"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """One trusted record, where it lies, and the PID namespace in which its pids are meant."""

    path: str
    record: LeaseRecord
    pid_namespace: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a record still holds its cards: `why` for people, `pids` what is left of the run."""

    standing: Standing
    why: str
    pids: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the cards are not to be had because of this record."""
        return self.standing is not Standing.VOID


def record_name(record: LeaseRecord) -> str:
    """The name of a record's file."""
    return f"{PREFIX}{record.run_id}.{record.attempt}{SUFFIX}"


def publish(path: str, data: bytes) -> None:
    """Replace a public file (0644) in one step, without waiting for the disk.

    Raises:
        OSError: nothing was replaced.
    """
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o644)
    except FileExistsError:
        # Left by a process that had our pid before us; in a sticky directory only its owner can remove it.
        os.unlink(temporary)
        descriptor = os.open(temporary, flags, 0o644)
    try:
        try:
            write_all(descriptor, data)
            os.fchmod(descriptor, 0o644)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        remove_quietly(temporary)
        raise


def write_record(area: Area, record: LeaseRecord) -> tuple[str, ...]:
    """Publish a record in every directory of the area; answers the paths.

    Raises:
        OSError: it is published nowhere.
    """
    data = wire.to_bytes(record, pid_namespace=own_pid_namespace())
    written: list[str] = []
    try:
        for directory in area.directories:
            path = f"{directory}/{record_name(record)}"
            publish(path, data)
            written.append(path)
    except OSError:
        for path in written:
            remove_quietly(path)
        raise
    return tuple(written)


def own_pid_namespace() -> str:
    """The name of our PID namespace, empty when /proc does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_initial_pid_namespace() -> bool:
    """Whether we see every process of the box (hidepid aside)."""
    return own_pid_namespace() == _INITIAL_PID_NAMESPACE


def read_records(area: Area, *, about: frozenset[str] | None = None) -> tuple[tuple[SeenRecord, ...], tuple[str, ...]]:
    """Every trusted record (only those that name one of the cards in `about`), and what was wrong with the others.

    A record that lies in several directories is answered once for each of them.
    """
    seen: list[SeenRecord] = []
    wrong: list[str] = []
    cards = None if about is None else [uuid.encode() for uuid in about]
    for directory, name in lease_area.list_names(area):
        if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
            continue
        path = f"{directory}/{name}"
        try:
            found = _read_record(path, cards)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError) as error:
            wrong.append(f"{path}: {error}")
            continue
        if isinstance(found, SeenRecord):
            seen.append(found)
        elif found:
            wrong.append(f"{path}: {found}")
    return tuple(seen), tuple(wrong)


def _read_record(path: str, cards: list[bytes] | None) -> SeenRecord | str:
    """A trusted record; a text when it is none (empty: it is about other cards)."""
    before = os.lstat(path)
    if not stat.S_ISREG(before.st_mode):
        return "not a regular file: ignored"
    data = read_bytes(path, limit=MAX_BYTES)
    if cards is not None and not any(card in data for card in cards):
        return ""
    value = wire.parse_object(data, path)
    record = wire.decode(LeaseRecord, value, path)
    if before.st_uid != record.uid:
        owner = processes.user_name(before.st_uid)
        return f"names uid {record.uid} and was written by {owner} (uid {before.st_uid}): not trusted"
    if os.path.basename(path) != record_name(record):
        return f"names run {record.run_id}, attempt {record.attempt}: not trusted"
    if max(map(abs, (record.attempt, record.since_boot_ns, record.memory_bytes or 0))) >= LARGEST or (
        "\0" in record.run_dir
    ):
        return "says what no run says: not trusted"
    record = replace(record, user=processes.name_owner(before.st_uid, record.user))
    return SeenRecord(path, record, str(value.get("pid_namespace") or ""))


def judge(seen: SeenRecord) -> Judgement:
    """Whether the run behind a record is still there: its processes, its cgroup, its marker."""
    record = seen.record
    if record.supervisor.boot_id != clock.boot_id():
        return Judgement(Standing.VOID, "the box was restarted since")
    supervisor = _is_alive(record.supervisor, seen.pid_namespace)
    if supervisor:
        standing = Standing.DRAINING if record.phase is Phase.DRAINING else Standing.LIVE
        return Judgement(standing, f"its supervisor runs (pid {record.supervisor.pid})", (record.supervisor.pid,))
    members = {member.pid: _is_alive(member, seen.pid_namespace) for member in record.members}
    alive = {pid for pid, answer in members.items() if answer}
    populated = read_cgroup_pids(record.cgroup)
    alive.update(populated or ())
    if not alive:
        alive.update(process.pid for process in processes.find_marked(record.run_id, record.attempt))
    if alive:
        pids = tuple(sorted(alive))
        return Judgement(Standing.DRAINING, f"its supervisor is gone and {_name_pids(pids)} still runs", pids)
    if populated is None:
        return Judgement(Standing.UNSEEN, f"whether its cgroup {record.cgroup} is empty cannot be read from here")
    if supervisor is None or None in members.values():
        return Judgement(Standing.UNSEEN, "its processes cannot be seen from this PID namespace")
    return Judgement(Standing.VOID, "every process of it is gone")


def _name_pids(pids: tuple[int, ...]) -> str:
    listed = ", ".join(str(pid) for pid in pids[:8])
    return f"pid {listed}" + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")


def _is_alive(process: ProcessId, pid_namespace: str) -> bool | None:
    """Whether a recorded process lives; None when that cannot be seen from here."""
    ours = own_pid_namespace()
    if not pid_namespace or pid_namespace == ours:
        if processes.is_alive(process):
            return True
        return None if _is_hidden(process.pid) else False
    ticks = process.start_ticks
    for pid in processes.list_pids():
        found = processes.read_stat(pid)
        if found is not None and found.start_ticks == ticks and process.pid in _read_inner_pids(pid):
            return True
    # Only the initial namespace contains every other one; hidepid hides process 1 from us as it does the rest.
    complete = ours == _INITIAL_PID_NAMESPACE and os.path.exists("/proc/1/stat")
    return False if complete else None


def _is_hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show us (hidepid). Source: proc(5), hidepid=."""
    if os.path.exists(f"/proc/{pid}"):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    return os.path.exists("/proc/self") and not os.path.exists(f"/proc/{pid}")


def _read_inner_pids(pid: int) -> tuple[int, ...]:
    """The pids of one process, one for each PID namespace from ours inwards. Source: proc_pid_status(5), NSpid."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return tuple(int(field) for field in line.split()[1:])
    except OSError:
        return ()
    return ()


def read_cgroup_pids(path: str | None) -> tuple[int, ...] | None:
    """The processes in a cgroup directory and below; empty when there is none; None when it cannot be read.

    Works for both versions: each has ``cgroup.procs``. A pid 0 stands for a process of another PID namespace
    and is left out, unless nothing else is there: then the answer is None, since something lives there.

    The path comes from another account's record, so it may lead anywhere: to a pipe, to text that is no list of pids,
    to a tree without end. All of that is "cannot be read", and is found out without waiting.
    """
    if path is None or not os.path.isabs(path):
        return ()
    pids: set[int] = set()
    unseen = False
    pending, looked_at = [path], 0
    while pending:
        directory = pending.pop()
        looked_at += 1
        if looked_at > MOST_CGROUPS:
            return None
        try:
            data = read_bytes(f"{directory}/cgroup.procs", limit=MAX_BYTES)
            listed = {int(word) for word in data.split()}
            with os.scandir(directory) as entries:
                below = (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
                pending.extend(itertools.islice(below, MOST_CGROUPS))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == _ENODEV:
                continue
            return None
        unseen = unseen or 0 in listed
        pids.update(listed - {0})
    return None if unseen and not pids else tuple(sorted(pids))


_ENODEV = 19


def describe_holder(record: LeaseRecord, pids: tuple[int, ...] = ()) -> str:
    """Who holds a card, for people."""
    listed = _name_pids(pids or (record.supervisor.pid,))
    return f"{record.user}, run {record.run_id}, {listed}"


def conflicts(record: LeaseRecord, device: LeasedDevice, *, share: bool) -> bool:
    """Whether a live record stands in the way of a request for `device`."""
    for theirs in record.devices:
        if theirs.card_uuid != device.card_uuid:
            continue
        if (theirs.slice_uuid is None) != (device.slice_uuid is None):
            return True
        if theirs.slice_uuid == device.slice_uuid and not (share and record.share):
            return True
    return False


def busy_from(seen: SeenRecord, judgement: Judgement, device: LeasedDevice, witness: Witness) -> Busy:
    """The reason that a record gives for `device` being busy."""
    record = seen.record
    draining = judgement.standing is not Standing.LIVE
    return Busy(
        device=device.uuid,
        witness=witness,
        holder=describe_holder(record, judgement.pids),
        since=record.since,
        run_id=record.run_id,
        command=record.command or None,
        pids=judgement.pids,
        draining=draining,
    )
