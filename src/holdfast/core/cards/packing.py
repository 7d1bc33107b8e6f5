"""Whether one more run fits on a card that runs share; and what no card of a box can ever give.

Pure. Opt-in: every run on the card said ``share: true`` (LEASE-18); with ``gpu.memory`` a run says how much of each
card it will use, and that much is kept for it as long as it holds the card, also while it has not allocated anything:

    free = total - floor - foreign - sum over the runs of max(reserved, really used)

*Foreign* is memory in use that cannot be put down to one of those runs, whatever it is; what is not known counts
against the request. A run that stated nothing counts as all the rest of the card until its job has run for a while and
the driver says what it uses. Runs that state nothing share without accounting, as long as all of them do.

Must not know how a lease is taken; the caller judges under the card's gate, so that no two decide at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.model.gpu import Card, CardRules, GpuProcess, GpuRequest, HolderKind, Inventory, InventorySource, MigSlice
from holdfast.model.packing import DeviceMemory, PackingRules, Sharer, SharingRoom
from holdfast.model.record import replace
from holdfast.model.units import format_asked_bytes, format_bytes, format_count

from .choose import find_device

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules
    from holdfast.model.job import JobSpec

USE_RECHECK_S = 2.0
"""When real use, not a reservation, is in the way: it changes without an event that could be waited for."""
ENDING_RECHECK_S = 2.0
"""What is left of a run that is over goes without an event, too."""
NEEDS_CARDS = "run it where there are cards (--on PLACE), or without any (--gpus 0, in a job file gpus: 0)"
"""What to do where `find_impossible` says that the box has none."""
ASK_FOR_LESS = "ask for what this box has: see `holdfast gpus`"
"""What to do about what `find_impossible` says."""


def packing_rules(rules: CardRules) -> PackingRules:
    """The rules for sharing that go with the limits for a card."""
    return PackingRules(unstated_bytes=rules.min_free_bytes)


def memory_of(card: Card, part: MigSlice | None = None) -> DeviceMemory:
    """A card's memory and processes, or those of one MIG slice of it."""
    if part is None:
        return DeviceMemory(
            card.uuid,
            f"card {card.index}",
            card.memory_total_bytes,
            card.memory_used_bytes,
            card.memory_free_bytes,
            card.processes,
        )
    name = f"slice {part.uuid} of card {card.index}"
    return DeviceMemory(
        part.uuid, name, part.memory_total_bytes, part.memory_used_bytes, processes=tuple(part.processes)
    )


def mark_sharers(card: Card, owners: Mapping[int, str], *, sharing: bool = False) -> Card:
    """The card with every process that is known to belong to a run marked as that run's.

    The mark in a process's environment is readable for its own account only; `owners` (pid to run id) is what the
    public records of the leases say. When `sharing` (runs share the card now) a process of which nothing can be known
    from here, because it lives in another PID namespace, no longer speaks against the card by itself: it may be one of
    theirs, and its memory counts as foreign.
    """
    parts = tuple(
        replace(part, processes=_attribute_all(part.processes, owners, sharing=sharing)) for part in card.mig_slices
    )
    if card.processes is None:
        return replace(card, mig_slices=parts)
    return replace(card, processes=_attribute_all(card.processes, owners, sharing=sharing), mig_slices=parts)


def _attribute_all(
    processes: Iterable[GpuProcess], owners: Mapping[int, str], *, sharing: bool
) -> tuple[GpuProcess, ...]:
    found = []
    for process in processes:
        if process.kind is HolderKind.UNMANAGED and process.pid in owners:
            found.append(replace(process, kind=HolderKind.MANAGED, run_id=owners[process.pid]))
        elif sharing and process.kind is HolderKind.OTHER_NAMESPACE:
            found.append(replace(process, kind=HolderKind.MANAGED))
        else:
            found.append(process)
    return tuple(found)


def sum_use(processes: Iterable[GpuProcess] | None, run_id: str) -> int | None:
    """What the processes of a run use; None when none of them is listed or one's use is not told."""
    own = [process.used_bytes for process in processes or () if process.run_id == run_id]
    return sum(size or 0 for size in own) if own and None not in own else None


def judge_room(
    memory: DeviceMemory, sharers: Sequence[Sharer], request_bytes: int | None, rules: PackingRules
) -> SharingRoom:
    """Whether a run that wants `request_bytes` (None: it states nothing) fits beside `sharers`, without itself."""
    shared = bool(sharers)
    if request_bytes is None and all(sharer.reserved_bytes is None for sharer in sharers):
        return SharingRoom(memory.uuid, 0, fits=True, words="shared without reservations", shared=shared)
    wanted = rules.unstated_bytes if request_bytes is None else request_bytes
    total, used = memory.total_bytes, memory.used_bytes
    if total is None or used is None or memory.processes is None:
        words = "what is used of its memory could not be read"
        return SharingRoom(memory.uuid, 0, fits=False, words=words, shared=shared, recheck_s=USE_RECHECK_S)
    floor = rules.floor_bytes
    if memory.free_bytes is not None:
        # What the driver keeps for itself is in neither number.
        floor = max(floor, total - used - memory.free_bytes)
    foreign = max(0, used - sum(sharer.used_bytes or 0 for sharer in sharers))
    usable = total - floor
    counted = [count_use(sharer, rules) for sharer in sharers]
    bounded = sum(size for size in counted if size is not None)
    free = 0 if None in counted else max(0, usable - foreign - bounded)
    reserved = sum(sharer.reserved_bytes or 0 for sharer in sharers)
    fits = wanted <= free
    return SharingRoom(
        memory.uuid,
        free,
        fits,
        _say_room(total, floor, foreign, free, wanted, sharers, rules),
        shared,
        None if fits else _recheck(sharers, rules, by_use=wanted <= usable - reserved),
        possible=wanted <= usable,
    )


def count_use(sharer: Sharer, rules: PackingRules) -> int | None:
    """What a run takes of a device, reservation and real use counted together; None: all that the others leave."""
    if sharer.reserved_bytes is not None:
        return max(sharer.reserved_bytes, sharer.used_bytes or 0)
    settled = sharer.running_s is not None and sharer.running_s >= rules.ramp_s
    return sharer.used_bytes if settled and sharer.used_bytes else None


def _recheck(sharers: Sequence[Sharer], rules: PackingRules, *, by_use: bool) -> float | None:
    """When to look again. What changes by an event (a run leaves) needs no time."""
    times = [rules.ramp_s - min(sharer.running_s or 0.0, rules.ramp_s) for sharer in sharers if _is_open(sharer, rules)]
    # Past its ramp and still not listed by the driver: it may be at any moment.
    times = [time if time > 0 else USE_RECHECK_S for time in times]
    if any(sharer.ending for sharer in sharers):
        times.append(ENDING_RECHECK_S)
    if by_use and not times:
        times.append(USE_RECHECK_S)
    return min(times, default=None)


def _is_open(sharer: Sharer, rules: PackingRules) -> bool:
    return count_use(sharer, rules) is None


def _say_room(  # noqa: PLR0917 - the terms of one sum
    total: int, floor: int, foreign: int, free: int, wanted: int, sharers: Sequence[Sharer], rules: PackingRules
) -> str:
    """Who has what of a device: ``80 GiB, of which 50 GiB reserved by run A (anna, since ...; uses 12 GiB), ...``."""
    parts = [describe_sharer(sharer, rules) for sharer in sharers]
    if foreign:
        parts.append(f"{format_bytes(foreign)} in use by no run that shares it")
    parts.append(f"{format_bytes(floor)} kept free")
    return (
        f"{format_bytes(total)}, of which {', '.join(parts)}; {format_asked_bytes(wanted)} asked, "
        f"{format_bytes(free)} free"
    )


def describe_sharer(sharer: Sharer, rules: PackingRules | None = None) -> str:
    """One run's part of a device for people."""
    rules = PackingRules() if rules is None else rules
    use = "no use seen" if sharer.used_bytes is None else f"uses {format_bytes(sharer.used_bytes)}"
    who = f"run {sharer.run_id} ({sharer.user}, since {sharer.since[:19]}Z; {use})"
    if sharer.reserved_bytes is not None:
        return f"{format_bytes(sharer.reserved_bytes)} reserved by {who}"
    taken = count_use(sharer, rules)
    # Several may be such, and none of them has it all.
    part = "all the rest may be used" if taken is None else f"{format_bytes(taken)} taken"
    return f"{part} by {who}, which states no gpu.memory"


def share_of(memory_bytes: int, totals: Iterable[int | None]) -> float | None:
    """The part of each card that a reservation is: of the smallest card; None when a size is not known."""
    sizes = list(totals)
    known = [size for size in sizes if size]
    if not known or len(known) < len(sizes):
        return None
    return min(1.0, memory_bytes / min(known))


# --- impossible requests --------------------------------------------------------------------------------------------


def find_impossible(spec: JobSpec, inventory: Inventory, rules: Rules) -> tuple[str, ...]:
    """Why this box can never satisfy a request for cards, in words; empty when it can, or when nobody can tell.

    Judged by what the cards are, not by who has them: devices that do not exist, more cards than there are, more memory
    than a card has. A reading that is not complete proves nothing about what is missing in it.
    """
    request = spec.gpus
    if not request.wanted:
        return ()
    found = []
    for most, what in ((rules.max_cards, "one run"), (rules.max_cards_per_user, "one account")):
        if most is not None and request.wanted > most:
            found.append(f"{_count(request.wanted)} asked for; this box's rules allow {most} for {what}")
    if inventory.complete:
        found += _find_missing(request, inventory)
    if inventory.cards:
        found += _find_too_large(spec, inventory)
    return tuple(found)


def _count(cards: int) -> str:
    return format_count(cards, "card is", "cards are")


def _find_missing(request: GpuRequest, inventory: Inventory) -> list[str]:
    if not inventory.cards:
        seen = "this box has no GPU" if inventory.source is InventorySource.NONE else "no GPU can be used"
        return [f"{_count(request.wanted)} asked for; {seen}: {inventory.reason or 'the inventory is empty'}"]
    if not request.devices:
        whole = [card for card in inventory.cards if not card.mig_enabled]
        if request.count <= len(whole):
            return []
        sliced = len(inventory.cards) - len(whole)
        more = f", {sliced} more only by MIG slice (name them: MIG-...)" if sliced else ""
        return [f"{_count(request.count)} asked for; this box has {len(whole)}{more}"]
    found, taken = [], set()
    sliced_cards = {card.uuid: card for card in inventory.cards if card.mig_enabled}
    for name in request.devices:
        uuid = find_device(name, inventory)
        if uuid is None:
            indexes = ", ".join(str(card.index) for card in inventory.cards)
            found.append(f"device {name} does not exist: this box has cards {indexes}")
        elif uuid in taken:
            found.append(f"device {name} is the same as another one asked for")
        elif uuid in sliced_cards:
            slices = ", ".join(part.uuid for part in sliced_cards[uuid].mig_slices) or "it has none now"
            found.append(f"device {name} is given by MIG slice only ({slices})")
        taken.add(uuid)
    return found


def _find_too_large(spec: JobSpec, inventory: Inventory) -> list[str]:
    """More memory on each card than enough of the cards have."""
    found = []
    for wanted, key in ((spec.gpu.memory_bytes, "gpu.memory"), (spec.gpu.min_free_bytes, "gpu.min_free")):
        if wanted is None:
            continue
        floor = PackingRules().floor_bytes if spec.gpu.share and key == "gpu.memory" else 0
        sizes = _list_sizes(spec.gpus, inventory)
        known = [size for size in sizes if size is not None]
        enough = [size for size in sizes if size is None or size - floor >= wanted]
        if known and len(enough) < min(spec.gpus.wanted, len(sizes)):
            most = format_bytes(max(known) - floor)
            kept = f" ({format_bytes(floor)} of a shared card are kept free)" if floor else ""
            have = "has" if 1 in (len(enough), len(sizes)) else "have"
            cards = f"{len(enough)} of {format_count(len(sizes), 'card')} {have}"
            found.append(
                f"{format_asked_bytes(wanted)} of each card are asked for ({key}); {cards} that much, "
                f"the largest {most}{kept}"
            )
    return found


def _list_sizes(request: GpuRequest, inventory: Inventory) -> list[int | None]:
    """The sizes of the devices that a request could get: those named, else all whole cards."""
    sizes = {card.uuid: card.memory_total_bytes for card in inventory.cards}
    sizes.update({part.uuid: part.memory_total_bytes for card in inventory.cards for part in card.mig_slices})
    if not request.devices:
        return [card.memory_total_bytes for card in inventory.cards if not card.mig_enabled]
    named = (find_device(name, inventory) for name in request.devices)
    return [sizes[uuid] for uuid in named if uuid is not None]
