"""Lease records: what a lessee publishes beside its locks, and whether a record still means anything.

Owns the files ``lease-<run-id>.<attempt>.<random>.json`` of an area. Run and attempt are what the content says, the
account is the file's owner, and the three together name a lease: anybody can write anybody's run id. A record is void
when the box was restarted since, or when every process of it is provably gone. What cannot be seen (another PID
namespace, a hidden /proc) is not gone. The caller holds the card's lock, or knows that it is held.

Everybody reads what anybody writes, also with a card's lock held: so of each account there is a bound to the records,
their bytes, and the processes and cgroups that they name.

Records are not synced to disk: a record that a power loss takes would be void after the restart anyway.
"""

from __future__ import annotations

import errno
import math
import os
from enum import Enum

from holdfast.core.control_characters import one_line
from holdfast.host.files.files import read_bytes, remove_quietly
from holdfast.host.files.filesystems import read_mounts
from holdfast.host.files.public_files import Complaint, PublicFile, list_public, publish, random_name, tell
from holdfast.host.process import processes
from holdfast.host.process.table import ProcessTable, own_pid_namespace
from holdfast.model import wire
from holdfast.model.ids import is_run_id
from holdfast.model.lease import BusyReason, LeasedDevice, LeasePhase, LeaseRecord, Witness
from holdfast.model.record import record, replace

from . import area as lease_area
from .area import LeaseArea
from .lock_files import is_device_uuid

PREFIX, SUFFIX = "lease-", ".json"
MAX_BYTES = 32 * 1024
"""A hundred slices with the longest paths; a record of eight cards has 2 KiB."""
MOST_RECORDS, MOST_BYTES = 256, 1 << 20
"""Of one account in one directory, the newest by name: no box has so many leases."""
MOST_MEMBERS = 64
MOST_DEVICES = 256
MOST_ATTEMPTS = 1_000_000
MOST_PIDS = 1 << 22
"""Source: include/linux/threads.h, PID_MAX_LIMIT."""
MOST_PROCESSES = 1024
MOST_CGROUPS, MOST_CGROUP_BYTES = 512, 1 << 20
"""Of all records of one account in one look. A container's init may make some cgroups, no job makes so many."""
LARGEST = 1 << 63
"""JSON knows larger numbers, and arithmetic with them fails."""
LONGEST_TEXT, LONGEST_NAME, LONGEST_PATH = 200, 80, 4096


class RecordStatus(str, Enum):
    """What a record says now."""

    LIVE = "live"
    DRAINING = "draining"
    UNSEEN = "unseen"
    VOID = "void"


@record
class FoundRecord:
    """One trusted record, where it lies, and the PID namespace in which its pids are meant."""

    path: str
    record: LeaseRecord
    pid_namespace: str

    @property
    def key(self) -> tuple[str, int, int]:
        """Which lease it is: run, attempt, account."""
        return key_of(self.record)


@record
class RecordJudgement:
    """Whether a record still holds its cards: `why` for people, `pids` what is left of the run."""

    standing: RecordStatus
    why: str
    pids: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the cards are not to be had because of this record."""
        return self.standing is not RecordStatus.VOID


def key_of(record: LeaseRecord) -> tuple[str, int, int]:
    """Which lease a record is about: run, attempt, account."""
    return record.run_id, record.attempt, record.uid


def write_record(area: LeaseArea, record: LeaseRecord, before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Publish a record in every directory of the area, in place of `before` (what this answered last); its paths.

    Raises:
        OSError: it is not published everywhere; what `before` names stands, as it was or renewed.
    """
    data = wire.to_bytes(record, pid_namespace=own_pid_namespace())
    if len(data) > MAX_BYTES:
        data = wire.to_bytes(replace(record, run_dir="", config=None), pid_namespace=own_pid_namespace())
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"the record of {len(record.devices)} devices is larger than others would read")
    known = {os.path.dirname(path): path for path in before}
    written: list[str] = []
    try:
        for directory in area.directories:
            path = known.get(directory) or f"{directory}/{_new_name(record)}"
            try:
                publish(path, data)
            except OSError:
                if path not in before:
                    raise
                # Whoever owns the directory can put something in our place: then beside it.
                path = f"{directory}/{_new_name(record)}"
                publish(path, data)
            written.append(path)
    except OSError:
        for path in written:
            if path not in before:
                remove_quietly(path)
        raise
    for path in before:
        if path not in written:
            remove_quietly(path)
    return tuple(written)


def _new_name(record: LeaseRecord) -> str:
    return random_name(f"{PREFIX}{record.run_id}.{record.attempt}", SUFFIX)


def read_records(
    area: LeaseArea, *, about: frozenset[str] | None = None
) -> tuple[tuple[FoundRecord, ...], tuple[str, ...]]:
    """Every trusted record (only those that name one of the cards in `about`), and what was wrong with the others.

    A record that lies in several directories is answered once for each of them.
    """
    seen: list[FoundRecord] = []
    cards = None if about is None else [uuid.encode() for uuid in about]
    names = lease_area.list_names(area, PREFIX)
    files, wrong = list_public(names, PREFIX, SUFFIX, most=MOST_RECORDS, most_bytes=MOST_BYTES, last=True)
    for file in files:
        try:
            found = _read_record(file, cards)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError) as error:
            wrong.append(Complaint(file.uid, file.path, str(error)))
            continue
        if isinstance(found, FoundRecord):
            seen.append(found)
        elif found:
            wrong.append(Complaint(file.uid, file.path, found))
    return tuple(seen), tell(wrong)


def _read_record(file: PublicFile, cards: list[bytes] | None) -> FoundRecord | str:
    """A trusted record; a text when it is none (empty: it is about other cards)."""
    data = read_bytes(file.path, limit=MAX_BYTES)
    if cards is not None and not any(card in data for card in cards):
        return ""
    value = wire.parse_object(data, file.path)
    try:
        record = wire.decode(LeaseRecord, value, file.path)
    except wire.WireError:
        wire.require_format(value, file.path)
        raise
    if file.uid != record.uid:
        owner = processes.user_name(file.uid)
        return f"names uid {record.uid} and was written by {owner} (uid {file.uid}): not trusted"
    if not _is_sound(record):
        return "says what no run says: not trusted"
    namespace = str(value.get("pid_namespace") or "")[:LONGEST_NAME]
    return FoundRecord(file.path, _tidy(record), namespace)


def _is_sound(record: LeaseRecord) -> bool:
    """Whether a run can have written it: what is not so could not be reckoned with, or would cost too much."""
    counts = (record.since_boot_ns, record.memory_bytes or 0, *(device.index for device in record.devices))
    running_s = record.running_since_s or 0.0
    return (
        is_run_id(record.run_id)
        and 1 <= record.attempt <= MOST_ATTEMPTS
        and all(0 <= count < LARGEST for count in counts)
        and math.isfinite(running_s)
        and 0 <= running_s < LARGEST
        and 1 <= len(record.devices) <= MOST_DEVICES
        and len(record.members) <= MOST_MEMBERS
        and all(is_device_uuid(device.card_uuid) and is_device_uuid(device.uuid) for device in record.devices)
        and all(
            0 < process.pid <= MOST_PIDS and 0 <= process.start_ticks < LARGEST
            for process in (record.supervisor, *record.members)
        )
    )


def _tidy(record: LeaseRecord) -> LeaseRecord:
    """The record with texts that can be shown: one line each, and no longer than what holdfast writes."""
    devices = record.devices
    if not all(device.name.isprintable() and len(device.name) <= LONGEST_NAME for device in devices):
        devices = tuple(replace(device, name=one_line(device.name, LONGEST_NAME)) for device in devices)
    return replace(
        record,
        user=processes.name_owner(record.uid, one_line(record.user, LONGEST_NAME)),
        host=one_line(record.host, LONGEST_NAME),
        since=one_line(record.since, LONGEST_NAME),
        until=None if record.until is None else one_line(record.until, LONGEST_NAME),
        devices=devices,
        command=one_line(record.command, LONGEST_TEXT),
        config=None if record.config is None else one_line(record.config, LONGEST_PATH),
        run_dir=record.run_dir if record.run_dir.isprintable() and len(record.run_dir) <= LONGEST_PATH else "",
    )


class Judge:
    """Judges records by one look at the box: what is read of it is read once for all of them.

    Of each account so many processes and cgroups are looked at; a record beyond that is unseen.
    """

    def __init__(self) -> None:
        """Nothing has been looked at."""
        self._table = ProcessTable()
        self._processes: dict[int, int] = {}
        self._cgroups: dict[int, CgroupReader] = {}

    def judge(self, seen: FoundRecord) -> RecordJudgement:
        """Whether the run behind a record is still there: its processes, its cgroup, its marker."""
        record = seen.record
        if self._table.is_other_boot(record.supervisor.boot_id):
            return RecordJudgement(RecordStatus.VOID, "the box was restarted since")
        account = processes.find_account(record.uid)
        looked = self._processes.get(account, 0) + 1 + len(record.members)
        if looked > MOST_PROCESSES:
            return RecordJudgement(RecordStatus.UNSEEN, f"the records of {record.user} name too many processes")
        self._processes[account] = looked
        supervisor = self._table.is_alive(record.supervisor, seen.pid_namespace)
        if supervisor:
            standing = RecordStatus.DRAINING if record.phase is LeasePhase.DRAINING else RecordStatus.LIVE
            pid = record.supervisor.pid
            return RecordJudgement(standing, f"its supervisor runs (pid {pid})", (pid,))
        members = {member.pid: self._table.is_alive(member, seen.pid_namespace) for member in record.members}
        alive = {pid for pid, answer in members.items() if answer}
        populated = self.read_cgroup(record)
        alive.update(populated or ())
        if not alive:
            alive.update(self._table.find_marked(record.run_id, record.attempt, record.uid))
        if alive:
            pids = tuple(sorted(alive))
            words = f"its supervisor is gone and {_name_pids(pids)} still runs"
            return RecordJudgement(RecordStatus.DRAINING, words, pids)
        if self._table.is_unread(record.uid):
            words = f"the processes of {record.user} have more environment than is read of one account"
            return RecordJudgement(RecordStatus.UNSEEN, words)
        if populated is None:
            words = (
                f"whether its cgroup {one_line(record.cgroup or '', LONGEST_PATH)} is empty cannot be read from here"
            )
            return RecordJudgement(RecordStatus.UNSEEN, words)
        if supervisor is None or None in members.values():
            return RecordJudgement(RecordStatus.UNSEEN, "its processes cannot be seen from this PID namespace")
        if not (record.supervisor.boot_id and self._table.boot_id):
            # Of another kernel, perhaps, that shares this area and tells no boot id: its processes never showed here.
            words = "no boot id tells whether its processes could be seen from here"
            return RecordJudgement(RecordStatus.UNSEEN, words)
        return RecordJudgement(RecordStatus.VOID, "every process of it is gone")

    def read_cgroup(self, record: LeaseRecord) -> tuple[int, ...] | None:
        """The processes in the record's cgroup, as `CgroupReader.read_pids`, within what its account may cost."""
        reader = self._cgroups.setdefault(processes.find_account(record.uid), CgroupReader())
        return reader.read_pids(record.cgroup)


def judge_record(seen: FoundRecord) -> RecordJudgement:
    """Whether the run behind one record is still there, by a look of its own."""
    return Judge().judge(seen)


def _name_pids(pids: tuple[int, ...]) -> str:
    listed = ", ".join(str(pid) for pid in pids[:8])
    return f"pid {listed}" + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")


class CgroupReader:
    """Reads who is in the cgroups that other accounts name, no more than `MOST_CGROUPS` and `MOST_CGROUP_BYTES`."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self._directories, self._bytes = MOST_CGROUPS, MOST_CGROUP_BYTES
        self._mounts: tuple[str, ...] | None = None

    def read_pids(self, path: str | None) -> tuple[int, ...] | None:
        """The processes in a cgroup directory and below; empty when there is none; None when it cannot be read.

        Works for both versions: each has ``cgroup.procs``. A pid 0 stands for a process of another PID namespace and is
        left out, unless nothing else is there: then the answer is None, since something lives there. What is not below
        a mounted cgroup file system is not opened: it may be a tree without end, or a disk that hangs.
        """
        if path is None or not os.path.isabs(path):
            return ()
        if not self._is_cgroup(path):
            return None
        pids: set[int] = set()
        pending = [path]
        while pending:
            directory = pending.pop()
            self._directories -= 1
            if self._directories < 0 or self._bytes < 0:
                return None
            try:
                data = read_bytes(f"{directory}/cgroup.procs", limit=max(self._bytes, 0))
                self._bytes -= len(data)
                pids.update(map(int, data.split()))
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                        if len(pending) > self._directories:
                            return None
            except ValueError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    return None
        return None if pids == {0} else tuple(sorted(pids - {0}))

    def _is_cgroup(self, path: str) -> bool:
        """Whether a path is below the mount of a cgroup file system, told without opening it; it has no links."""
        if self._mounts is None:
            self._mounts = list_cgroup_mounts()
        return os.path.normpath(path) == path and any(path.startswith(f"{point}/") for point in self._mounts)


def list_cgroup_mounts() -> tuple[str, ...]:
    """Where cgroup file systems are mounted."""
    return tuple(mount.mount_point for mount in read_mounts() if mount.kind in ("cgroup", "cgroup2"))


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


def busy_from(seen: FoundRecord, judgement: RecordJudgement, device: LeasedDevice, witness: Witness) -> BusyReason:
    """The reason that a record gives for `device` being busy."""
    record = seen.record
    draining = judgement.standing is not RecordStatus.LIVE
    return BusyReason(
        device=device.uuid,
        witness=witness,
        holder=describe_holder(record, judgement.pids),
        since=record.since,
        run_id=record.run_id,
        command=record.command or None,
        pids=judgement.pids,
        draining=draining,
    )
