"""Who shares a device, and which processes on it are theirs: from the public records of the leases.

A run's mark in a process's environment can be read by its own account only, so a card that several accounts share is
read through what every lessee publishes: supervisor, keeper, leader and cgroup. A process is a run's when it is in that
list or cgroup, or descends from one in the list. What has left all of them, or lives in another PID namespace, stays
unattributed; that counts against whoever wants to join, never for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.host.process import processes
from holdfast.host.process.table import own_pid_namespace
from holdfast.model.lease import LeasedDevice, LeaseRecord
from holdfast.model.record import record

from . import records
from .area import LeaseArea
from .records import RecordStatus

MOST_ANCESTORS = 64
"""So far up a process's line of parents is looked at."""


@record
class SharingLease:
    """A living lease of a run that shares. `here`: its pids are those of our PID namespace. `ending`: it is over."""

    record: LeaseRecord
    here: bool
    ending: bool

    def is_on(self, device: LeasedDevice) -> bool:
        """Whether it is about this very card or slice."""
        return any(
            (theirs.card_uuid, theirs.slice_uuid) == (device.card_uuid, device.slice_uuid)
            for theirs in self.record.devices
        )


def read_sharing(
    area: LeaseArea, cards: frozenset[str], *, own: tuple[str, int, int] | None = None
) -> tuple[SharingLease, ...]:
    """The living leases of runs that share on these cards, once each, oldest first; without the attempt `own`."""
    found: dict[tuple[str, int, int], SharingLease] = {}
    namespace, judge = own_pid_namespace(), records.Judge()
    for seen in records.read_records(area, about=cards)[0]:
        record, key = seen.record, seen.key
        if not record.share or key == own or key in found:
            continue
        standing = judge.judge(seen).standing
        if standing is not RecordStatus.VOID:
            here = seen.pid_namespace in {"", namespace}
            found[key] = SharingLease(record, here, ending=standing is RecordStatus.DRAINING)
    return tuple(sorted(found.values(), key=lambda lease: (lease.record.since, lease.record.run_id)))


def find_owners(leases: Iterable[SharingLease], pids: Iterable[int]) -> dict[int, str]:
    """Which of these processes belong to which of the runs: pid to run id; others are left out."""
    # A record names what its author wants: a process of another account is none of its run, unless root's (containers).
    members: dict[int, str] = {}
    roots: dict[int, tuple[int, str]] = {}
    uids = {pid: processes.read_uid(pid) for pid in pids}
    judge = records.Judge()
    for lease in leases:
        if not lease.here:
            continue
        record = lease.record
        within = (pid for pid in judge.read_cgroup(record) or () if uids.get(pid) in {0, record.uid})
        members.update(dict.fromkeys(within, record.run_id))
        named = (item for item in (record.supervisor, *record.members) if processes.read_uid(item.pid) == record.uid)
        roots.update({item.pid: (item.start_ticks, record.run_id) for item in named})
    owners = {pid: members.get(pid) or _climb(pid, roots) for pid in uids} if members or roots else {}
    return {pid: run_id for pid, run_id in owners.items() if run_id is not None}


def _climb(pid: int, roots: dict[int, tuple[int, str]]) -> str | None:
    """The run whose process `pid` is or descends from; None when its parents lead to none."""
    for _ in range(MOST_ANCESTORS):
        stat = processes.read_stat(pid) if pid > 1 else None
        if stat is None:
            return None
        start_ticks, run_id = roots.get(pid, (None, ""))
        if start_ticks == stat.start_ticks:
            return run_id
        pid = stat.ppid
    return None
