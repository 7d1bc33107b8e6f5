"""Every card of this box with who holds it and why a new run would not get it.

Reads the inventory (through the probe child, bounded), the leases, and judges with the rules in force. It leases
nothing, creates nothing, and a part that cannot be read becomes a warning beside the rest.
"""

from __future__ import annotations

import os

from holdfast.agent.plan.card_fitness import mark_unfit
from holdfast.agent.plan.sharing_by_memory import list_sharers, mark_owners
from holdfast.core.cards import choose as judging
from holdfast.core.rules.rules import Rules, card_rules
from holdfast.host.files.rules_file import read_rules
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.gpu.quarantine import describe_others
from holdfast.host.lease.area import LeaseArea, open_existing_area
from holdfast.host.lease.share_policy import SharePolicy
from holdfast.host.lease.sharers import SharingLease, read_sharing
from holdfast.host.lease.survey import LeaseSurvey, survey_leases
from holdfast.model.errors import HoldfastError, NoSuchName, PlaceError
from holdfast.model.gpu import Card, CardRules, GpuProcess, Inventory, InventorySource, MigSlice
from holdfast.model.job import JobSpec
from holdfast.model.lease import BusyReason, LeasedDevice, LeaseRecord, Ticket
from holdfast.model.packing import Sharer
from holdfast.model.record import record, replace

from .line import order_line

READING_S = 5.0
"""The longest wait for the driver: without persistence mode it takes seconds to begin, and no card would be seen.

Source: NVIDIA Driver Persistence documentation ("1-3 seconds per GPU").
"""


@record
class LeasableDevice:
    """One leasable thing: a card, or one MIG slice of it. `lease` is the record that holds it, `busy` every witness.

    `sharing` are the records of further runs that share the card with that of `lease`, by consent of all.
    `sharers` are all of them with what each has reserved and uses.
    `unavailable` has every reason why a new run would not get it, empty when it would. `simulated` marks what is no
    hardware. `unsupervised`: processes of the run of `lease` live, and its supervisor does not.
    """

    index: int
    uuid: str
    name: str
    simulated: bool
    card: Card
    part: MigSlice | None
    lease: LeaseRecord | None
    sharing: tuple[LeaseRecord, ...]
    busy: tuple[BusyReason, ...]
    unavailable: tuple[str, ...]
    sharers: tuple[Sharer, ...] = ()
    unsupervised: bool = False

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """The processes seen on it; empty also when they could not be read (`unavailable` then says so)."""
        return self.part.processes if self.part is not None else (self.card.processes or ())

    @property
    def memory(self) -> tuple[int | None, int | None]:
        """Bytes used and bytes in all; None where not readable."""
        of = self.part or self.card
        return of.memory_used_bytes, of.memory_total_bytes


@record
class BoxCards:
    """All cards of this box at one moment. `waiting` is the line, first come first; `warnings` are for people.

    `unread`: why it cannot be told who leases them (empty: it can). `unlisted` are the records of leases on a card
    that this reading does not have.
    """

    inventory: Inventory
    places: tuple[LeasableDevice, ...]
    waiting: tuple[Ticket, ...]
    warnings: tuple[str, ...]
    area: tuple[str, ...] = ()
    unread: str = ""
    unlisted: tuple[LeaseRecord, ...] = ()


def read_box(*, deadline_s: float = READING_S) -> BoxCards:
    """Every card with its lessee, its processes, and why it is not to be had."""
    warnings: list[str] = []
    try:
        rules = read_rules(os.environ)
    except HoldfastError as error:
        warnings.append(str(error))
        rules = Rules()
    inventory = mark_unfit(read_inventory(deadline_s), rules, os.environ, quick=True)
    warnings += describe_others_of(rules)
    seen, directories, unread = _survey(rules, inventory, warnings)
    inventory, sharing = _find_sharing(rules, inventory, seen)
    limits = card_rules(JobSpec(name="any", command=("true",), workdir="/"), rules)
    places = tuple(place for card in inventory.cards for place in _build_places(card, inventory, seen, limits))
    doubt = (f"not known: {unread}",) if unread else ()
    places = tuple(
        replace(place, sharers=_list_sharers(place, sharing), unavailable=(*doubt, *place.unavailable))
        for place in places
    )
    waiting = () if seen is None else order_line(rules, seen.waiting)
    unlisted = _find_unlisted(seen, {place.uuid for place in places})
    return BoxCards(inventory, places, waiting, tuple(warnings), directories, unread, unlisted)


def describe_others_of(rules: Rules) -> tuple[str, ...]:
    """What other accounts have set aside, in words; nothing where no area can be used, which the survey then says."""
    try:
        area = open_existing_area(rules)
    except HoldfastError:
        return ()
    return () if area is None else describe_others(area)


def _survey(rules: Rules, inventory: Inventory, warnings: list[str]) -> tuple[LeaseSurvey | None, tuple[str, ...], str]:
    """The leases, their directories, and why they cannot be read (empty: they can, or nobody has leased)."""
    try:
        area = open_existing_area(rules)
        if area is None:
            return None, (), ""
        found = survey_leases(area, list_devices(inventory))
    except (HoldfastError, OSError) as error:
        return None, (), f"leases cannot be read: {error}"
    warnings += found.warnings
    return _add_reserved(rules, area, inventory, found), area.directories, ""


def _add_reserved(rules: Rules, area: LeaseArea, inventory: Inventory, found: LeaseSurvey) -> LeaseSurvey:
    """The survey with what is kept for others, as it stands in the way of a new run that states no end."""
    reserved = SharePolicy(rules).find_reserved(area, list_devices(inventory))
    busy = {uuid: (*reasons, *([reserved[uuid]] if uuid in reserved else ())) for uuid, reasons in found.busy.items()}
    return replace(found, busy=busy) if reserved else found


def _find_sharing(
    rules: Rules, inventory: Inventory, seen: LeaseSurvey | None
) -> tuple[Inventory, tuple[SharingLease, ...]]:
    """The runs that share cards, and the reading with their processes marked as theirs; nothing more when none does."""
    if seen is None or not any(lease.seen.record.share for lease in seen.leases):
        return inventory, ()
    try:
        area = open_existing_area(rules)
        found = () if area is None else read_sharing(area, frozenset(card.uuid for card in inventory.cards))
    except (HoldfastError, OSError):
        return inventory, ()
    return mark_owners(inventory, found, accounted=False), found


def _list_sharers(place: LeasableDevice, sharing: tuple[SharingLease, ...]) -> tuple[Sharer, ...]:
    if not sharing:
        return ()
    part = None if place.part is None else place.part.uuid
    device = LeasedDevice(place.card.uuid, place.index, place.name, part)
    known = place.part is not None or place.card.processes is not None
    return list_sharers(device, place.processes if known else None, sharing)


def list_devices(inventory: Inventory) -> tuple[LeasedDevice, ...]:
    """Every card and every slice as a leasable device."""
    found = []
    for card in inventory.cards:
        found.append(LeasedDevice(card.uuid, card.index, card.name))
        found += [LeasedDevice(card.uuid, card.index, card.name, part.uuid) for part in card.mig_slices]
    return tuple(found)


def _build_places(
    card: Card, inventory: Inventory, seen: LeaseSurvey | None, limits: CardRules
) -> list[LeasableDevice]:
    simulated = inventory.source is InventorySource.SIMULATED
    busy = {} if seen is None else seen.busy
    leased = {uuid: reasons[0].holder for uuid, reasons in busy.items() if reasons}
    whole_leases = _find_leases(seen, card.uuid, None)
    whole = LeasableDevice(
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
        unsupervised=_is_unsupervised(seen, card.uuid, None),
    )
    parts = [
        LeasableDevice(
            index=card.index,
            uuid=part.uuid,
            name=f"{card.name} MIG {part.profile}",
            simulated=simulated,
            card=card,
            part=part,
            lease=next(iter(_find_leases(seen, card.uuid, part.uuid)), None),
            sharing=(),
            busy=busy.get(part.uuid, ()),
            unavailable=judging.judge_slice(card, part, limits, leased=leased),
            unsupervised=_is_unsupervised(seen, card.uuid, part.uuid),
        )
        for part in card.mig_slices
    ]
    return [whole, *parts]


def _find_leases(seen: LeaseSurvey | None, card_uuid: str, slice_uuid: str | None) -> tuple[LeaseRecord, ...]:
    """The records that hold this very device, oldest first; several only where all of them share."""
    found = [
        lease.seen.record
        for lease in (() if seen is None else seen.leases)
        if lease.judgement.holds
        and any((d.card_uuid, d.slice_uuid) == (card_uuid, slice_uuid) for d in lease.seen.record.devices)
    ]
    return tuple(sorted(found, key=lambda record: record.since))


def _find_unlisted(seen: LeaseSurvey | None, listed: set[str]) -> tuple[LeaseRecord, ...]:
    """The records that hold a device which is not among those that were read, oldest first."""
    holding = [lease.seen.record for lease in (() if seen is None else seen.leases) if lease.judgement.holds]
    found = [record for record in holding if any(device.uuid not in listed for device in record.devices)]
    return tuple(sorted(found, key=lambda record: record.since))


def _is_unsupervised(seen: LeaseSurvey | None, card_uuid: str, slice_uuid: str | None) -> bool:
    """Whether a run that holds this device goes on without its supervisor: no end of it is enforced."""
    return any(
        lease.judgement.pids and lease.seen.record.supervisor.pid not in lease.judgement.pids
        for lease in (() if seen is None else seen.leases)
        if lease.judgement.holds
        and any((d.card_uuid, d.slice_uuid) == (card_uuid, slice_uuid) for d in lease.seen.record.devices)
    )


def find_card(box: BoxCards, text: str) -> str:
    """The UUID of a card named by index or UUID; a UUID is taken as it is, since a lost card is not listed.

    Raises:
        NoSuchName: no card of this box has that index.
        PlaceError: none that was read has it, and the cards could not all be read.
    """
    if not (text.isascii() and text.isdigit()):
        return text
    place = next((place for place in box.places if place.index == int(text) and place.part is None), None)
    if place is not None and not place.uuid.startswith("UNREADABLE-"):
        return place.uuid
    if place is None:
        check_all_read(box, text)
    known = ", ".join(str(place.index) for place in box.places if place.part is None) or "none"
    what = f"there is no card {text} here; the cards are: {known}" if place is None else f"card {text} tells no UUID"
    raise NoSuchName(what, hint="name it by its UUID; `holdfast gpus --json` shows them")


def check_all_read(box: BoxCards, name: str) -> None:
    """Nothing where all cards could be read: a card that is not among them is not there.

    Raises:
        PlaceError: they could not.
    """
    if not box.inventory.complete:
        what = f"whether there is a card {name} could not be read: {box.inventory.reason}"
        raise PlaceError(what, hint="ask `holdfast doctor` what is wrong with the driver")
