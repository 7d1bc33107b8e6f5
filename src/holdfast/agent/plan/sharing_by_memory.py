"""Sharing of cards by memory: who is on each device, what they reserved and use, whether this run fits.

`core.cards.packing` judges; here the facts are put together: the records of the runs that share (public, of every
account), and the driver's list of processes. Imported only by runs that share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.core.cards import packing
from holdfast.host import clock
from holdfast.host.lease import sharers as lease_sharing
from holdfast.host.lease.area import LeaseArea
from holdfast.host.lease.records import read_records
from holdfast.host.lease.sharers import SharingLease
from holdfast.model.gpu import CardRules, GpuProcess, Inventory
from holdfast.model.lease import HOLDING, BusyReason, LeasedDevice, Witness
from holdfast.model.packing import DeviceMemory, Sharer, SharingRoom
from holdfast.model.record import record, replace

if TYPE_CHECKING:
    from holdfast.host.lease.survey import LeaseSurvey
    from holdfast.model.job import GpuOptions, JobSpec


@record
class SharingRequest:
    """Who wants to share: the attempt, so that its own lease does not count, and what it reserves."""

    run_id: str
    attempt: int
    memory_bytes: int | None


@record
class SharingSurvey:
    """The reading with every process put down to its run, and the room on each device (by UUID)."""

    inventory: Inventory
    rooms: dict[str, SharingRoom]
    runs: frozenset[tuple[str, str]] = frozenset()
    """Each device with each run that shares it."""

    def busy(self, devices: Iterable[LeasedDevice]) -> tuple[BusyReason, ...]:
        """Why these devices do not have the room, for people; nothing for those that have."""
        return tuple(
            BusyReason(device.uuid, Witness.CARD, describe_full(self.rooms[device.uuid]), index=device.index)
            for device in devices
            if device.uuid in self.rooms and not self.rooms[device.uuid].fits
        )

    def recheck_s(self, devices: Iterable[LeasedDevice]) -> float | None:
        """When looking again at these devices can be worth while though nobody has left; None: never."""
        rooms = [self.rooms[device.uuid] for device in devices if device.uuid in self.rooms]
        return min((room.recheck_s for room in rooms if room.recheck_s is not None), default=None)

    def list_runs(self, devices: Iterable[LeasedDevice]) -> frozenset[tuple[str, str]]:
        """The runs that share these devices, by device."""
        wanted = {device.uuid for device in devices}
        return frozenset((uuid, run_id) for uuid, run_id in self.runs if uuid in wanted)

    def order(self, device: LeasedDevice) -> tuple[bool, int]:
        """Sorts devices as `core.cards.choose.choose_cards` prefers them: the fullest shared one first."""
        room = self.rooms.get(device.uuid)
        return (False, room.free_bytes) if room is not None and room.shared else (True, 0)


def describe_full(room: SharingRoom) -> str:
    """Who has what of a device that has no room, as a holder in words."""
    return f"{'runs that share it' if room.shared else 'others'} ({room.words})"


def survey_sharing(area: LeaseArea, inventory: Inventory, asker: SharingRequest, rules: CardRules) -> SharingSurvey:
    """Who shares which device now, and whether the asker fits. Under a card's gate the answer for it stays true."""
    everything = list_memory(inventory)
    cards = frozenset(device.card_uuid for device, _ in everything)
    leases = lease_sharing.read_sharing(area, cards, own=(asker.run_id, asker.attempt, os.geteuid()))
    limits = packing.packing_rules(rules)
    marked = mark_owners(inventory, leases, accounted=asker.memory_bytes is not None)
    rooms = {}
    for device, memory in list_memory(marked):
        sharers = list_sharers(device, memory.processes, leases)
        rooms[device.uuid] = packing.judge_room(memory, sharers, asker.memory_bytes, limits)
    runs = ((device.uuid, lease.record.run_id) for lease in leases for device in lease.record.devices)
    return SharingSurvey(marked, rooms, frozenset(runs))


def mark_owners(inventory: Inventory, leases: tuple[SharingLease, ...], *, accounted: bool) -> Inventory:
    """The reading with the processes of these leases marked as theirs, also where their environment is not readable.

    `accounted`: the request is one whose room is reckoned, so what may be a sharer's out of sight is counted instead of
    refused.
    """
    listed = {process.pid for _, memory in list_memory(inventory) for process in memory.processes or ()}
    owners = lease_sharing.find_owners(leases, listed)
    shared = {device.card_uuid for lease in leases for device in lease.record.devices}
    cards = (packing.mark_sharers(card, owners, sharing=accounted and card.uuid in shared) for card in inventory.cards)
    return replace(inventory, cards=tuple(cards))


def list_memory(inventory: Inventory) -> list[tuple[LeasedDevice, DeviceMemory]]:
    """Every leasable device of a reading with its memory: cards, and the slices of cards that have such."""
    found = []
    for card in inventory.cards:
        found.append((LeasedDevice(card.uuid, card.index, card.name), packing.memory_of(card)))
        found += [
            (LeasedDevice(card.uuid, card.index, card.name, part.uuid), packing.memory_of(card, part))
            for part in card.mig_slices
        ]
    return found


def list_sharers(
    device: LeasedDevice, processes: Iterable[GpuProcess] | None, leases: Iterable[SharingLease]
) -> tuple[Sharer, ...]:
    """The runs on one device with what the driver says that they use of it."""
    now_s = clock.boottime_ns() / 1e9
    listed = None if processes is None else tuple(processes)
    return tuple(
        Sharer(
            lease.record.run_id,
            lease.record.user,
            lease.record.since,
            reserved_bytes=lease.record.memory_bytes,
            used_bytes=packing.sum_use(listed, lease.record.run_id),
            running_s=None if lease.record.running_since_s is None else max(0.0, now_s - lease.record.running_since_s),
            ending=lease.ending,
        )
        for lease in leases
        if lease.is_on(device)
    )


def drop_sharers(survey: LeaseSurvey) -> dict[str, tuple[BusyReason, ...]]:
    """Who is in the way of a run that shares: the survey without the runs that share the same device."""
    sharing = {
        (device.uuid, lease.seen.record.run_id)
        for lease in survey.leases
        if lease.seen.record.share
        for device in lease.seen.record.devices
    }
    return {
        uuid: tuple(item for item in busy if (uuid, item.run_id) not in sharing) for uuid, busy in survey.busy.items()
    }


def describe_sharing(area: LeaseArea, busy: tuple[BusyReason, ...], asked: GpuOptions) -> str:
    """Who has not said what lets two runs on one card: `share`, by both of them.

    Empty where that is not what keeps them apart, or where this run says nothing about sharing or about its memory.
    """
    holders = {item.run_id for item in busy if item.run_id and item.witness in HOLDING and not item.draining}
    if not holders or not (asked.share or asked.memory_bytes):
        return ""
    sharing = {seen.record.run_id for seen in read_records(area)[0] if seen.record.share}
    whole = sorted(holders - sharing)
    if not whole:
        shares = "run {} shares its card" if len(holders) == 1 else "runs {} share their cards"
        words = f"{shares.format(', '.join(sorted(holders)))}: --share has this one ask for room beside it"
        return "" if asked.share else words
    both = "two runs are on one card only where both have --share, best with --gpu-memory"
    have = f"run {whole[0]} has" if len(whole) == 1 else f"the {len(whole)} runs that are there have"
    return f"{both}: {have} not" + ("" if asked.share else ", and neither has this one")


def choose_torch_share(spec: JobSpec, inventory: Inventory, devices: tuple[LeasedDevice, ...]) -> float | None:
    """The part of each card that torch may take, from what the run reserved; None without sharing or reservation."""
    if spec.gpu.memory_bytes is None or not spec.gpu.share or not devices:
        return None
    totals: Mapping[str, int | None] = {d.uuid: memory.total_bytes for d, memory in list_memory(inventory)}
    return packing.share_of(spec.gpu.memory_bytes, [totals.get(device.uuid) for device in devices])
