"""Looking at every lease of the box without touching one: for `holdfast gpus` and for messages.

Reads records, tickets, hand-written lock files and the kernel's list of locks. Takes no lock on a lock file, opens
none and creates nothing, so it can never make somebody's try fail. What cannot be seen from here is said as a
warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.lease import Busy, Witness
from . import foreign_locks, lease_holders, lease_records, lock_files, tickets

if TYPE_CHECKING:
    from ..model.lease import LeasedDevice, Ticket
    from .lease_area import Area
    from .lease_holders import KernelLock
    from .lease_records import Judgement, SeenRecord


@dataclass(frozen=True, slots=True)
class Lease:
    """One trusted record with what it is worth now."""

    seen: SeenRecord
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Survey:
    """All leases at one moment. `busy` has an entry for every device asked about, empty when nothing holds it.

    `leases` are the records once each, void ones included; `waiting` the line in order; `warnings` for people.
    """

    busy: dict[str, tuple[Busy, ...]]
    leases: tuple[Lease, ...]
    waiting: tuple[Ticket, ...]
    warnings: tuple[str, ...]


def survey(area: Area, devices: tuple[LeasedDevice, ...]) -> Survey:
    """Who holds what, as seen from here and now."""
    seen_records, wrong = lease_records.read_records(area)
    found: dict[tuple[str, int], Lease] = {}
    for seen in seen_records:
        key = seen.record.run_id, seen.record.attempt
        if key not in found:
            found[key] = Lease(seen, lease_records.judge(seen))
    leases = tuple(found.values())
    locks = lease_holders.read_kernel_locks()
    warnings = [*area.warnings, *wrong]
    if locks is None:
        warnings.append("/proc/locks cannot be read: a lock without a record is not seen from here")
    elif not lease_records.is_initial_pid_namespace():
        warnings.append("inside a PID namespace: locks that processes outside took are not listed here")
    busy = {device.uuid: _reasons(area, device, leases, locks or ()) for device in devices}
    living = (tickets.read_living(path) for path in tickets.list_earlier(area, None))
    waiting = {ticket.ticket: None for ticket in living if ticket is not None}
    return Survey(busy, leases, tuple(waiting), tuple(warnings))


def is_sound(area: Area, device: LeasedDevice) -> bool:
    """Whether the device's lock files are what holdfast makes, so that waiting for them makes sense."""
    names = [lock_files.lock_name(uuid) for uuid in dict.fromkeys((device.uuid, device.card_uuid))]
    return not any(lock_files.is_planted(path) for path in _paths(area, names))


def _reasons(
    area: Area, device: LeasedDevice, leases: tuple[Lease, ...], locks: tuple[KernelLock, ...]
) -> tuple[Busy, ...]:
    names = [lock_files.lock_name(uuid) for uuid in dict.fromkeys((device.uuid, device.card_uuid))]
    on_device, on_card = (
        [lock for directory in area.directories for lock in lease_holders.locks_on(f"{directory}/{name}", locks)]
        for name in (names[0], names[-1])
    )
    # A slice's lessee locks the card too, but shared: that says nothing about the other slices.
    planted = [path for path in _paths(area, names) if lock_files.is_planted(path)]
    if planted:
        return (Busy(device.uuid, Witness.LOCK, f"{planted[0]} is not a lock file"),)
    held = on_device or [lock for lock in on_card if lock.exclusive or device.slice_uuid is None]
    reasons = []
    for lease in leases:
        if _touches(lease, device) and lease.judgement.holds:
            witness = Witness.LOCK if held else Witness.RECORD
            reasons.append(lease_records.busy_from(lease.seen, lease.judgement, device, witness))
    if held and not reasons:
        pids = tuple(sorted({lock.pid for lock in held}))
        reasons.append(Busy(device.uuid, Witness.LOCK, lease_holders.describe_pids(pids), pids=pids))
    lock = foreign_locks.read_lock(area.hand_written, device.index)
    if lock is not None and lock.run_id is None:
        reasons.append(Busy(device.uuid, Witness.FOREIGN_LOCK, lock.text, since=lock.since or None))
    return tuple(reasons)


def _paths(area: Area, names: list[str]) -> list[str]:
    return [f"{directory}/{name}" for directory in area.directories for name in names]


def _touches(lease: Lease, device: LeasedDevice) -> bool:
    """Whether a lease is on this device: on the slice or its whole card, and for a card on any of its slices."""
    return any(
        theirs.card_uuid == device.card_uuid
        and (theirs.slice_uuid is None or device.slice_uuid is None or theirs.slice_uuid == device.slice_uuid)
        for theirs in lease.seen.record.devices
    )
