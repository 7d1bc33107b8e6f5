"""Looking at every lease of the box without touching one: for `holdfast gpus` and for messages.

Reads records, tickets, hand-written lock files and the kernel's list of locks. Takes no lock on a lock file, opens
none and creates nothing, so it can never make somebody's try fail. What cannot be seen from here is said as a
warning.
"""

from __future__ import annotations

import time

from holdfast.host.process.table import is_initial_pid_namespace
from holdfast.model.lease import BusyReason, LeasedDevice, Witness
from holdfast.model.record import record

from . import foreign_locks, holders, lock_files, records, tickets
from .area import LeaseArea, describe_crowds
from .holders import KernelLock
from .records import FoundRecord, RecordJudgement
from .tickets import FoundTicket

PASSING_S = 0.05


@record
class ObservedLease:
    """One trusted record with what it is worth now."""

    seen: FoundRecord
    judgement: RecordJudgement


@record
class LeaseSurvey:
    """All leases at one moment. `busy` has an entry for every device asked about, empty when nothing holds it.

    `leases` are the records once each, void ones included; `waiting` the line in order; `warnings` for people.
    """

    busy: dict[str, tuple[BusyReason, ...]]
    leases: tuple[ObservedLease, ...]
    waiting: tuple[FoundTicket, ...]
    warnings: tuple[str, ...]


def survey_leases(area: LeaseArea, devices: tuple[LeasedDevice, ...]) -> LeaseSurvey:
    """Who holds what, as seen from here and now."""
    seen_records, wrong = records.read_records(area)
    found: dict[tuple[str, int, int], ObservedLease] = {}
    judge = records.Judge()
    for seen in seen_records:
        if seen.key not in found:
            found[seen.key] = ObservedLease(seen, judge.judge(seen))
    leases = tuple(found.values())
    warnings = [*area.warnings, *describe_crowds(area), *wrong]
    locks = holders.read_kernel_locks(warnings)
    if locks is None:
        warnings.append("/proc/locks cannot be read: a lock without a record is not seen from here")
    elif not is_initial_pid_namespace():
        warnings.append("inside a PID namespace: locks that processes outside took are not listed here")
    busy = {device.uuid: _reasons(area, device, leases, locks or ()) for device in devices}
    gates = _find_blocked_gates(area, devices, locks or ())
    for device in devices:
        gate = gates.get(device.card_uuid)
        if gate is not None and device.slice_uuid is not None:
            busy[device.uuid] += (BusyReason(device.uuid, Witness.LOCK, gate),)
        elif gate is not None:
            warnings.append(f"card {device.index} cannot be shared now: {gate} stands in the way")
    living = (tickets.read_living(ticket) for ticket in tickets.list_earlier(area, None))
    waiting: dict[tuple[str, int], FoundTicket] = {}
    for ticket in living:
        if ticket is not None:
            waiting.setdefault((ticket.ticket.run_id, ticket.uid), ticket)
    return LeaseSurvey(busy, leases, tuple(waiting.values()), tuple(warnings))


def _find_blocked_gates(
    area: LeaseArea, devices: tuple[LeasedDevice, ...], locks: tuple[KernelLock, ...]
) -> dict[str, str]:
    """Cards (UUID) that nobody can share or take a slice of now, with who stands in the way of that.

    A gate is held for milliseconds while a lease is decided: only who holds one at two looks is told of.
    """
    blocked: dict[str, str] = {}
    held: dict[str, tuple[str, frozenset[int]]] = {}
    for card in dict.fromkeys(device.card_uuid for device in devices):
        for path in _paths(area, [lock_files.gate_name(card)]):
            if holder := lock_files.find_obstacle(path):
                blocked[card] = holder
            elif pids := frozenset(lock.pid for lock in holders.locks_on(path, locks)):
                held[card] = path, pids
    if held:
        time.sleep(PASSING_S)
        again = holders.read_kernel_locks() or ()
        for card, (path, pids) in held.items():
            if not pids.isdisjoint(lock.pid for lock in holders.locks_on(path, again)):
                blocked[card] = f"{holders.name_holders(path, again)}, who has {path} locked"
    return blocked


def _reasons(
    area: LeaseArea, device: LeasedDevice, leases: tuple[ObservedLease, ...], locks: tuple[KernelLock, ...]
) -> tuple[BusyReason, ...]:
    names = [lock_files.lock_name(uuid) for uuid in dict.fromkeys((device.uuid, device.card_uuid))]
    on_device, on_card = (
        [lock for directory in area.directories for lock in holders.locks_on(f"{directory}/{name}", locks)]
        for name in (names[0], names[-1])
    )
    # A slice's lessee locks the card too, but shared: that says nothing about the other slices.
    obstacles = filter(None, map(lock_files.find_obstacle, _paths(area, names)))
    if obstacle := next(obstacles, None):
        return (BusyReason(device.uuid, Witness.LOCK, obstacle),)
    held = on_device or [lock for lock in on_card if lock.exclusive or device.slice_uuid is None]
    reasons = []
    for lease in leases:
        if _touches(lease, device) and lease.judgement.holds:
            witness = Witness.LOCK if held else Witness.RECORD
            reasons.append(records.busy_from(lease.seen, lease.judgement, device, witness))
    if held and not reasons:
        pids = tuple(sorted({lock.pid for lock in held}))
        reasons.append(BusyReason(device.uuid, Witness.LOCK, holders.describe_pids(pids), pids=pids))
    lock = foreign_locks.read_lock(area.hand_written, device.index)
    if lock is not None and lock.run_id is None:
        reasons.append(BusyReason(device.uuid, Witness.FOREIGN_LOCK, lock.text, since=lock.since or None))
    return tuple(reasons)


def _paths(area: LeaseArea, names: list[str]) -> list[str]:
    return [f"{directory}/{name}" for directory in area.directories for name in names]


def _touches(lease: ObservedLease, device: LeasedDevice) -> bool:
    """Whether a lease is on this device: on the slice or its whole card, and for a card on any of its slices."""
    return any(
        theirs.card_uuid == device.card_uuid
        and (theirs.slice_uuid is None or device.slice_uuid is None or theirs.slice_uuid == device.slice_uuid)
        for theirs in lease.seen.record.devices
    )
