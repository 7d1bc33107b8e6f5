"""The list of the box's cards as a record: what `holdfast gpus` prints, and its JSON object."""

from __future__ import annotations

from holdfast.core.cards.reservations import Reservation
from holdfast.model.errors import HoldfastError
from holdfast.model.gpu import Card, GpuProcess, InventorySource
from holdfast.model.lease import BusyReason, LeaseRecord, Ticket
from holdfast.model.packing import Sharer
from holdfast.model.record import record, replace

from .box import BoxCards, LeasableDevice, read_box
from .reserved import list_reservations


@record
class CardLine:
    """One leasable thing: a card, or with `slice` one MIG slice of it.

    `unavailable` has every reason why a new run would not get it. `sharing` are the records of further runs that share
    the card with that of `lease`; `sharers` all of them with what each has reserved and uses; `busy` every witness.
    `unsupervised`: the run of `lease` goes on without its supervisor, and no end of it is enforced.
    """

    index: int
    uuid: str
    name: str
    simulated: bool
    slice: bool
    available: bool
    unavailable: tuple[str, ...]
    lease: LeaseRecord | None
    sharing: tuple[LeaseRecord, ...]
    sharers: tuple[Sharer, ...]
    busy: tuple[BusyReason, ...]
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    processes: tuple[GpuProcess, ...]
    card: Card
    unsupervised: bool = False


@record
class CardList:
    """All cards of this box at one moment. `waiting` is the line, first come first; `warnings` are for people.

    `reason` says why there is none, or, not `complete`, why some card may be missing. `unread`: why the leases cannot
    be read; no card is `available` then. `reservations` are those that are not over, one's own too, which keep no card
    from oneself. `unlisted` are leases on a card that is not among `cards`.
    """

    source: InventorySource
    simulated: bool
    complete: bool
    reason: str | None
    driver_version: str | None
    cuda_version: str | None
    lease_directories: tuple[str, ...]
    cards: tuple[CardLine, ...]
    waiting: tuple[Ticket, ...]
    warnings: tuple[str, ...]
    unread: str = ""
    reservations: tuple[Reservation, ...] = ()
    unlisted: tuple[LeaseRecord, ...] = ()


def list_cards() -> CardList:
    """Every card with its lessee, its processes, and why it is not to be had; a driver that hangs costs 5 s."""
    try:
        reserved = list_reservations().reservations
    except (HoldfastError, OSError):
        # What cannot be read of the area is told with the cards.
        reserved = ()
    return replace(_describe(read_box()), reservations=reserved)


def name_cards() -> dict[str, int]:
    """The number of each card by its UUID, as far as they can be read."""
    return {place.uuid: place.index for place in read_box().places}


def _describe(box: BoxCards) -> CardList:
    inventory = box.inventory
    return CardList(
        source=inventory.source,
        simulated=inventory.source is InventorySource.SIMULATED,
        complete=inventory.complete,
        reason=inventory.reason,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        lease_directories=box.area,
        cards=tuple(_describe_place(place) for place in box.places),
        waiting=box.waiting,
        warnings=box.warnings,
        unread=box.unread,
        unlisted=box.unlisted,
    )


def _describe_place(place: LeasableDevice) -> CardLine:
    used, total = place.memory
    return CardLine(
        index=place.index,
        uuid=place.uuid,
        name=place.name,
        simulated=place.simulated,
        slice=place.part is not None,
        available=not place.unavailable,
        unavailable=place.unavailable,
        lease=place.lease,
        sharing=place.sharing,
        sharers=place.sharers,
        busy=place.busy,
        memory_used_bytes=used,
        memory_total_bytes=total,
        processes=place.processes,
        card=place.card,
        unsupervised=place.unsupervised,
    )
