"""Who shares a device, and which processes on it are theirs: from the public records of the leases.

A run's mark in a process's environment can be read by its own account only, so a card that several accounts share is
read through what every lessee publishes: supervisor, keeper, leader and cgroup. A process is a run's when it is in that
list or cgroup, or descends from one in the list. What has left all of them, or lives in another PID namespace, stays
unattributed; that counts against whoever wants to join, never for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import lease_records, processes
from .lease_records import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.lease import LeasedDevice, LeaseRecord
    from .lease_area import Area

MOST_ANCESTORS = 64
"""So far up a process's line of parents is looked at."""


@dataclass(frozen=True, slots=True)
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


def read_sharing(area: Area, cards: frozenset[str], *, own: tuple[str, int] | None = None) -> tuple[SharingLease, ...]:
    """The living leases of runs that share on these cards, once each, oldest first; without the attempt `own`."""
    found: dict[tuple[str, int], SharingLease] = {}
    namespace = lease_records.own_pid_namespace()
    for seen in lease_records.read_records(area, about=cards)[0]:
        record = seen.record
        key = record.run_id, record.attempt
        if not record.share or key == own or key in found:
            continue
        standing = lease_records.judge(seen).standing
        if standing is not Standing.VOID:
            here = seen.pid_namespace in {"", namespace}
            found[key] = SharingLease(record, here, ending=standing is Standing.DRAINING)
    return tuple(sorted(found.values(), key=lambda lease: (lease.record.since, lease.record.run_id)))


def find_owners(leases: Iterable[SharingLease], pids: Iterable[int]) -> dict[int, str]:
    """Which of these processes belong to which of the runs: pid to run id; others are left out."""
    members: dict[int, str] = {}
    roots: dict[int, tuple[int, str]] = {}
    for lease in leases:
        if not lease.here:
            continue
        record = lease.record
        members.update(dict.fromkeys(lease_records.read_cgroup_pids(record.cgroup) or (), record.run_id))
        roots.update({item.pid: (item.start_ticks, record.run_id) for item in (record.supervisor, *record.members)})
    owners = {pid: members.get(pid) or _climb(pid, roots) for pid in pids} if members or roots else {}
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
