"""Cards kept for a span of time: made and ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from holdfast.core.cards.reservations import Reservation, choose_reserved
from holdfast.host.files.rules_file import read_rules
from holdfast.host.gpu.inventory import read_inventory
from holdfast.host.lease import area as lease_area
from holdfast.host.lease import reservations
from holdfast.host.lease.area import LeaseArea, open_existing_area
from holdfast.host.lease.survey import survey_leases
from holdfast.model.errors import NoSuchName, NoSuchRun, PlaceError, ResourceBusy, UsageError
from holdfast.model.gpu import GpuRequest, Inventory, InventorySource
from holdfast.model.units import format_count

READING_S = 10.0


def reserve_cards(request: GpuRequest, span: tuple[float, float], reason: str) -> Reservation:
    """Keep cards from one epoch time to another; which ones is decided now.

    Raises:
        ResourceBusy: somebody has the cards then.
        UsageError: the box has no such cards, or its rules do not allow it.
        PlaceError: its cards cannot be read.
        StorageError: the area cannot be used.
    """
    rules = read_rules(os.environ)
    inventory = read_inventory(READING_S)
    area = open_existing_area(rules)
    choose = _build_choice(request, inventory, () if area is None else _find_used(area))
    area = area or lease_area.open_area(rules.lease_dir)
    reservations.sweep(area)
    simulated = inventory.source is InventorySource.SIMULATED
    return reservations.reserve(area, rules, span=span, choose=choose, reason=reason, simulated=simulated)


def end_reservation(name: str) -> Reservation:
    """End a reservation: ours, or as root anybody's.

    Raises:
        NoSuchRun: there is none of that name.
        NotPermitted: it is somebody else's.
    """
    area = open_existing_area(read_rules(os.environ))
    if area is None:
        raise NoSuchRun(f"there is no reservation {name}", hint="nothing has been leased or reserved on this box")
    return reservations.remove(area, name)


def _find_used(area: LeaseArea) -> frozenset[str]:
    """The cards that runs have now, whoever's."""
    leases = (lease for lease in survey_leases(area, ()).leases if lease.judgement.holds)
    return frozenset(device.card_uuid for lease in leases for device in lease.seen.record.devices)


def _build_choice(
    request: GpuRequest, inventory: Inventory, used: Collection[str]
) -> Callable[[dict[str, str]], tuple[str, ...]]:
    """Chooses among the cards that answer now.

    Raises:
        UsageError: the box has fewer cards, or none.
        PlaceError: its cards cannot be read.
    """
    known = sorted((card.index, card.uuid) for card in inventory.cards if card.uuid)
    wanted = format_count(request.wanted, "card is", "cards are")
    if not known and not inventory.complete:
        what = f"{wanted} asked for, and the cards could not be read: {inventory.reason}"
        raise PlaceError(what, hint="ask `holdfast doctor` what is wrong with the driver")
    if not known:
        why = f": {inventory.reason}" if inventory.reason else ""
        raise UsageError(f"{wanted} asked for; this box has none{why}", hint="name a place that has cards: --on PLACE")

    def choose(taken: dict[str, str]) -> tuple[str, ...]:
        if request.count > len(known):
            raise UsageError(f"{wanted} asked for; this box has {len(known)}", hint="ask for fewer")
        chosen, why = choose_reserved(request, known, taken, used)
        if not chosen:
            error = NoSuchName if why.startswith("there is no card") else ResourceBusy
            raise error(f"cannot be reserved: {why}", hint="see `holdfast gpus reservations` and `holdfast gpus`")
        return chosen

    return choose
