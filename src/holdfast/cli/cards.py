"""What the desk says about cards: every card of the box with who holds it, and the cards of one run.

Reads the inventory (through the probe child, bounded), the leases, and judges with the rules in force. It leases
nothing, creates nothing, and a part that cannot be read becomes a warning beside the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.agent.unfit import mark_unfit
from holdfast.core import cards as judging
from holdfast.core.rules import Rules, card_rules
from holdfast.host import lease_area
from holdfast.host.gpus import read_inventory
from holdfast.model.errors import HoldfastError
from holdfast.model.gpu import Card, GpuProcess, HolderKind, Inventory, InventorySource, MigSlice
from holdfast.model.job import JobSpec
from holdfast.model.lease import Busy, LeasedDevice

if TYPE_CHECKING:
    from holdfast.agent.observe import RunView
    from holdfast.host.lease_area import Area
    from holdfast.host.lease_sharing import SharingLease
    from holdfast.host.lease_survey import Survey
    from holdfast.model.gpu import CardRules
    from holdfast.model.lease import LeaseRecord, Ticket
    from holdfast.model.packing import Sharer

READING_S = 0.7
"""Of the second in which `gpus` answers, what the driver gets."""


@dataclass(frozen=True, slots=True)
class Place:
    """One leasable thing: a card, or one MIG slice of it. `lease` is the record that holds it, `busy` every witness.

    `sharing` are the records of further runs that share the card with that of `lease`, by consent of all.
    `sharers` are all of them with what each has reserved and uses.
    `unavailable` has every reason why a new run would not get it, empty when it would. `simulated` marks what is no
    hardware.
    """

    index: int
    uuid: str
    name: str
    simulated: bool
    card: Card
    part: MigSlice | None
    lease: LeaseRecord | None
    sharing: tuple[LeaseRecord, ...]
    busy: tuple[Busy, ...]
    unavailable: tuple[str, ...]
    sharers: tuple[Sharer, ...] = ()

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """The processes seen on it; empty also when they could not be read (`unavailable` then says so)."""
        return self.part.processes if self.part is not None else (self.card.processes or ())

    @property
    def memory(self) -> tuple[int | None, int | None]:
        """Bytes used and bytes in all; None where not readable."""
        of = self.part or self.card
        return of.memory_used_bytes, of.memory_total_bytes


@dataclass(frozen=True, slots=True)
class Box:
    """All cards of this box at one moment. `waiting` is the line, first come first; `warnings` are for people."""

    inventory: Inventory
    places: tuple[Place, ...]
    waiting: tuple[Ticket, ...]
    warnings: tuple[str, ...]
    area: tuple[str, ...] = ()


def open_existing_area(rules: Rules | None = None) -> Area | None:
    """The lease area if there is one; None when nobody has ever leased here. Looking does not create it.

    Raises:
        HoldfastError: there is one that cannot be trusted or used.
    """
    if rules is None:
        rules = _read_rules()
    named = os.environ.get("HOLDFAST_LEASE_DIR") or rules.lease_dir
    places = (named,) if named else lease_area.DEFAULT_DIRECTORIES
    if not any(os.path.lexists(place) for place in places):
        return None
    return lease_area.open_area(rules.lease_dir)


def _read_rules() -> Rules:
    from holdfast.host.rulesfile import read_rules

    return read_rules(os.environ)


def read_box(*, deadline_s: float = READING_S) -> Box:
    """Every card with its lessee, its processes, and why it is not to be had."""
    warnings: list[str] = []
    try:
        rules = _read_rules()
    except HoldfastError as error:
        warnings.append(str(error))
        rules = Rules()
    inventory = mark_unfit(read_inventory(deadline_s), rules, os.environ, quick=True)
    warnings += describe_others_of(rules)
    survey, directories = _survey(rules, inventory, warnings)
    inventory, sharing = _find_sharing(rules, inventory, survey)
    limits = card_rules(JobSpec(name="any", command=("true",), workdir="/"), rules)
    places = tuple(place for card in inventory.cards for place in _build_places(card, inventory, survey, limits))
    places = tuple(replace(place, sharers=_list_sharers(place, sharing)) for place in places)
    waiting = () if survey is None else _order_line(rules, survey.waiting)
    return Box(inventory, places, waiting, tuple(warnings), directories)


def _order_line(rules: Rules, waiting: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
    """The line as the rules of the box have it, who is next first."""
    from holdfast.host.sharing import House

    area = open_existing_area(rules) if waiting else None
    return waiting if area is None else House(rules).order_line(area, waiting)


def describe_others_of(rules: Rules) -> tuple[str, ...]:
    """What other accounts have set aside, in words; nothing where no area can be used, which the survey then says."""
    from holdfast.host.quarantine import describe_others

    try:
        area = open_existing_area(rules)
    except HoldfastError:
        return ()
    return () if area is None else describe_others(area)


def _survey(rules: Rules, inventory: Inventory, warnings: list[str]) -> tuple[Survey | None, tuple[str, ...]]:
    from holdfast.host.lease_survey import survey

    try:
        area = open_existing_area(rules)
        if area is None:
            return None, ()
        found = survey(area, list_devices(inventory))
    except (HoldfastError, OSError) as error:
        warnings.append(f"leases cannot be read: {error}")
        return None, ()
    warnings += found.warnings
    return _add_reserved(rules, area, inventory, found), area.directories


def _add_reserved(rules: Rules, area: Area, inventory: Inventory, found: Survey) -> Survey:
    """The survey with what is kept for others, as it stands in the way of a new run that states no end."""
    from dataclasses import replace

    from holdfast.host.sharing import House

    reserved = House(rules).find_reserved(area, list_devices(inventory))
    busy = {uuid: (*reasons, *([reserved[uuid]] if uuid in reserved else ())) for uuid, reasons in found.busy.items()}
    return replace(found, busy=busy) if reserved else found


def _find_sharing(
    rules: Rules, inventory: Inventory, survey: Survey | None
) -> tuple[Inventory, tuple[SharingLease, ...]]:
    """The runs that share cards, and the reading with their processes marked as theirs; nothing more when none does."""
    if survey is None or not any(lease.seen.record.share for lease in survey.leases):
        return inventory, ()
    from holdfast.agent.packing import mark_owners
    from holdfast.host.lease_sharing import read_sharing

    try:
        area = open_existing_area(rules)
        found = () if area is None else read_sharing(area, frozenset(card.uuid for card in inventory.cards))
    except (HoldfastError, OSError):
        return inventory, ()
    return mark_owners(inventory, found, accounted=False), found


def _list_sharers(place: Place, sharing: tuple[SharingLease, ...]) -> tuple[Sharer, ...]:
    if not sharing:
        return ()
    from holdfast.agent.packing import list_sharers

    part = None if place.part is None else place.part.uuid
    device = LeasedDevice(place.card.uuid, place.index, place.name, part)
    known = place.part is not None or place.card.processes is not None
    return list_sharers(device, place.processes if known else None, sharing)


def find_place_in_line(run_id: str) -> tuple[int, int] | None:
    """Which of how many a waiting run is, from 1; None when it has no ticket, or the line cannot be read."""
    from holdfast.host.lease_survey import survey

    try:
        rules = _read_rules()
        area = open_existing_area(rules)
        line = () if area is None else _order_line(rules, survey(area, ()).waiting)
    except (HoldfastError, OSError):
        return None
    names = [ticket.run_id for ticket in line]
    return (names.index(run_id) + 1, len(names)) if run_id in names else None


def list_devices(inventory: Inventory) -> tuple[LeasedDevice, ...]:
    """Every card and every slice as a leasable device."""
    found = []
    for card in inventory.cards:
        found.append(LeasedDevice(card.uuid, card.index, card.name))
        found += [LeasedDevice(card.uuid, card.index, card.name, part.uuid) for part in card.mig_slices]
    return tuple(found)


def _build_places(card: Card, inventory: Inventory, survey: Survey | None, limits: CardRules) -> list[Place]:
    simulated = inventory.source is InventorySource.SIMULATED
    busy = {} if survey is None else survey.busy
    leased = {uuid: reasons[0].holder for uuid, reasons in busy.items() if reasons}
    whole_leases = _find_leases(survey, card.uuid, None)
    whole = Place(
        index=card.index,
        uuid=card.uuid,
        name=card.name,
        simulated=simulated,
        card=card,
        part=None,
        lease=next(iter(whole_leases), None),
        sharing=whole_leases[1:],
        busy=busy.get(card.uuid, ()),
        unavailable=judging.judge_card(card, limits, leased=leased),
    )
    parts = [
        Place(
            index=card.index,
            uuid=part.uuid,
            name=f"{card.name} MIG {part.profile}",
            simulated=simulated,
            card=card,
            part=part,
            lease=next(iter(_find_leases(survey, card.uuid, part.uuid)), None),
            sharing=(),
            busy=busy.get(part.uuid, ()),
            unavailable=judging.judge_slice(card, part, limits, leased=leased),
        )
        for part in card.mig_slices
    ]
    return [whole, *parts]


def _find_leases(survey: Survey | None, card_uuid: str, slice_uuid: str | None) -> tuple[LeaseRecord, ...]:
    """The records that hold this very device, oldest first; several only where all of them share."""
    found = [
        lease.seen.record
        for lease in (() if survey is None else survey.leases)
        if lease.judgement.holds
        and any((d.card_uuid, d.slice_uuid) == (card_uuid, slice_uuid) for d in lease.seen.record.devices)
    ]
    return tuple(sorted(found, key=lambda record: record.since))


def name_cards(view: RunView) -> str:
    """The cards of a run in words, simulated ones marked; empty when it has none."""
    devices = devices_of(view)
    if not devices:
        return ""
    names = ", ".join(f"{device.get('index')} ({device.get('name')})" for device in devices)
    mark = " SIMULATED" if is_simulated(view) else ""
    return f"card{'s' if len(devices) > 1 else ''}{mark} {names}"


def devices_of(view: RunView) -> list[dict[str, object]]:
    """The leased devices of a run as JSON objects: from its state, else from its manifest or exit record."""
    from holdfast.model import wire

    state = view.state.state if view.state is not None else None
    held = getattr(state, "devices", ())
    if held:
        return [wire.encode(device) for device in held]
    for source in (view.manifest, view.exit):
        for key in ("devices", "cards", "gpus"):
            value = source.get(key)
            if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                return value
    return []


def is_simulated(view: RunView) -> bool:
    """Whether the run's cards were simulated ones."""
    for source in (view.manifest, view.exit):
        inventory = source.get("inventory")
        marks = [source.get("simulated"), source.get("gpu_source"), source.get("inventory_source")]
        marks.append(inventory.get("source") if isinstance(inventory, dict) else inventory)
        if any(mark is True or mark == "simulated" for mark in marks):
            return True
    names = [str(device.get("name")) for device in devices_of(view)]
    return any("simulated" in name.lower() for name in names)


def is_idle(place: Place) -> bool:
    """Whether it is proven that nothing uses the card: no process, no load, no lease, all of it read."""
    card = place.card
    return (
        card.processes == ()
        and not place.busy
        and card.utilisation_pct == 0
        and not any(part.processes for part in card.mig_slices)
        and not any(fault.startswith(("unreadable", "unresponsive")) for fault in card.faults)
    )


def build_reset_request(box: Box, place: Place, *, host: str, now: str) -> str:
    """A message to the administrator that asks for a reset of one card; nothing is executed (ETIQ-03).

    It says that the card is idle only when that was read to be true.
    """
    lines = [f"Request: please reset GPU {place.index} on {host}", ""]
    if place.simulated:
        lines += ["(SIMULATED card: this is a rehearsal, there is nothing to reset.)", ""]
    lines += [
        f"Card: index {place.index}, {place.name}, {place.uuid}, PCI {place.card.pci_bus_id or 'unknown'}",
        f"Seen at {now} by holdfast (driver {box.inventory.driver_version or 'unknown'}).",
    ]
    faults = [*place.card.faults, *(f"throttled: {reason}" for reason in place.card.throttle)]
    lines += ["Why: " + ("; ".join(faults) if faults else "(please fill in: the driver reports no fault)"), ""]
    lines += ["Processes on the card (as the driver lists them):"]
    everyone = [process for item in box.places if item.card.uuid == place.card.uuid for process in item.processes]
    unread = place.card.processes is None
    lines += [f"  {describe_process(process)}" for process in everyone]
    if not everyone:
        lines.append("  (could not be read)" if unread else "  none")
    others = sorted({f"{process.user} (pid {process.pid})" for process in everyone if process.user})
    lines += ["", "Users with processes on it: " + (", ".join(others) if others else "unknown" if unread else "none")]
    holders = [busy.holder for item in box.places if item.card.uuid == place.card.uuid for busy in item.busy]
    lines += ["Leases on it: " + ("; ".join(holders) if holders else "none")]
    if is_idle(place):
        lines += ["", f"The card is idle: no process, 0 % utilisation, no lease at {now}."]
    else:
        lines += ["", "The card is NOT known to be idle: please talk to the people above first."]
    lines += [
        "",
        "A reset is not local to this card: nothing may use it, and cards that NVLink joins to it may have to be reset",
        "together with it (`nvidia-smi topo -m` shows which); their users are concerned too.",
    ]
    lines += ["", "Command (needs root, ends everything on the card):", f"  nvidia-smi --gpu-reset -i {place.index}"]
    return "\n".join(lines)


def describe_process(process: GpuProcess) -> str:
    """One process of a card for people; a holder without a name is called a ghost only when it is one."""
    from holdfast.model.units import format_bytes, format_duration

    size = "memory unknown" if process.used_bytes is None else format_bytes(process.used_bytes)
    age = "" if process.age_s is None else f", started {format_duration(process.age_s)} ago"
    who = f"pid {process.pid}, {process.user or 'user unknown'}, {size}{age}: {process.command or 'command unknown'}"
    kinds = {
        HolderKind.MANAGED: f"holdfast run {process.run_id}",
        HolderKind.UNMANAGED: "no holdfast run",
        HolderKind.OTHER_NAMESPACE: "in another container (PID namespace)",
        HolderKind.GHOST: "ghost: in no process table of this box",
        HolderKind.UNKNOWN: "whether it exists cannot be told from here",
    }
    return f"{who} [{kinds[process.kind]}]"
