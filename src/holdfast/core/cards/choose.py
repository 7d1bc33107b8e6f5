"""Which cards a job gets: what it asks for, which are fit, which of the fit are best.

Pure: an inventory (`model.gpu`), who leases what, the rules, and what the environment imposed come in; UUIDs and
reasons go out. Invariants: all or nothing; a card is refused for every reason that holds, not only the first; what
could not be read is not fit; a card and its MIG slices are never given out together; nothing outside an imposed
``CUDA_VISIBLE_DEVICES`` is ever chosen. Reasons are ``code: text``; the codes are stable (docs/gpus.md).

It must not know how a lease is taken or how a card is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.model.gpu import (
    Card,
    CardChoice,
    CardRules,
    GpuProcess,
    GpuRequest,
    HolderKind,
    Inventory,
    InventorySource,
    MigSlice,
)
from holdfast.model.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from holdfast.model.packing import SharingRoom

UUID_PREFIXES = ("GPU-", "MIG-")
SLICE_FREE_FRACTION = 0.9
"""A MIG slice smaller than `min_free_bytes` is fit when this part of its memory is free: its size was chosen on
purpose, and a context of its own takes the rest."""
FIT_BUT_NOT_TAKEN = "not_needed: fit, but others were preferred"


def parse_request(value: str | int | Sequence[object]) -> GpuRequest:
    """What ``gpus:`` asks for: ``2`` or ``any:2`` (a count), ``0,1`` or ``[0, 1]`` (indexes), ``GPU-...``, ``MIG-...``.

    A bare number is a count; index 0 alone is written ``0,`` or ``[0]``.

    Raises:
        ValueError: it is none of these; the message says what was expected.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, list, tuple)):
        raise _refuse(value)
    if isinstance(value, int):
        if value < 0:
            raise _refuse(value)
        return GpuRequest(count=value)
    if isinstance(value, str):
        text = value.strip()
        count = text[4:].strip() if text.startswith("any:") else "1" if text == "any" else text
        if count.isascii() and count.isdigit():
            return GpuRequest(count=int(count))
        parts: list[object] = [part.strip() for part in text.split(",")]
        if len(parts) > 1 and parts[-1] == "":
            parts.pop()
    else:
        parts = list(value)
    devices = tuple(_parse_device(part, value) for part in parts)
    twice = next((device for device in devices if devices.count(device) > 1), None)
    if twice is not None:
        raise ValueError(f"gpus: {value!r} names {twice} twice")
    return GpuRequest(devices=devices)


def _refuse(value: object) -> ValueError:
    return ValueError(
        f"gpus: {value!r} is not understood; write a count (2 or any:2), indexes (0,1) or UUIDs (GPU-..., MIG-...)"
    )


def _parse_device(part: object, whole: object) -> str:
    if isinstance(part, bool) or not isinstance(part, (str, int)):
        raise _refuse(whole)
    text = str(part)
    if text.isascii() and text.isdigit():
        return str(int(text))
    if text.startswith(UUID_PREFIXES) and len(text) > 4:
        return text
    raise _refuse(whole)


LASTING = (
    "no_such_device",
    "not_visible",
    "named_twice",
    "mig:",
    "lost",
    "unresponsive",
    "unreadable",
    "ecc_uncorrectable",
    "remap_failed",
    "remap_pending",
    "reset_required",
    "recovery_wanted",
    "quarantined",
    "xid:",
    "too_large",
)
"""Beginnings of reasons that do not go away by waiting, as somebody's use does."""


def may_pass(reason: str) -> bool:
    """Whether a reason against a card may go away by itself."""
    return not reason.startswith(LASTING)


def is_worth_waiting(request: GpuRequest, inventory: Inventory, choice: CardChoice) -> bool:
    """Whether the devices that a refused request wants can become free, so that waiting makes sense."""
    lasting = sum(not may_pass(reason) for _, reason in choice.rejected)
    if request.devices:
        return bool(choice.rejected) and not lasting
    return len(inventory.cards) - lasting >= request.wanted


def judge_card(
    card: Card, rules: CardRules, *, leased: Mapping[str, str] | None = None, own_run_id: str | None = None
) -> tuple[str, ...]:
    """Every reason why this card cannot be given to a new run as a whole; empty when it is fit.

    Args:
        card: the card as read.
        rules: limits; `share` lets managed runs and their load on the card, never strangers.
        leased: device UUID to who holds it, in words.
        own_run_id: the run that asks; its own processes do not speak against it.
    """
    reasons = list(_judge_card_itself(card))
    leases = leased or {}
    if card.uuid in leases:
        reasons.append(f"leased: {leases[card.uuid]}")
    held = (part.uuid for part in card.mig_slices if part.uuid in leases)
    reasons.extend(f"slice_leased: MIG slice {uuid}: {leases[uuid]}" for uuid in held)
    if card.mig_enabled:
        names = ", ".join(part.uuid for part in card.mig_slices) or "it has none now"
        reasons.append(f"mig: MIG is on; ask for one of its slices ({names})")
    reasons += _judge_memory(card, rules)
    reasons += _judge_use(card, rules, own_run_id)
    return tuple(reasons)


def _judge_card_itself(card: Card) -> Iterable[str]:
    """What is wrong with the card whoever wants it; a card that is set aside is set aside with its slices."""
    yield from card.faults
    if card.quarantined:
        yield f"quarantined: {card.quarantined}; `holdfast gpus clear {card.index}` gives it back"


def _judge_memory(card: Card, rules: CardRules) -> Iterable[str]:
    free = card.memory_free_bytes
    if free is None:
        yield "memory_unknown: its free memory could not be read"
    elif free < rules.min_free_bytes:
        yield _say_short(free, rules.min_free_bytes)


def _say_short(free: int, wanted: int) -> str:
    return (
        f"low_memory: {format_bytes(free)} ({free / 1e9:.1f} GB) free, {format_bytes(wanted)} are needed (gpu.min_free)"
    )


def _judge_use(card: Card, rules: CardRules, own_run_id: str | None) -> Iterable[str]:
    """Processes, load, and memory that no process accounts for."""
    if card.processes is None:
        yield "processes_unknown: the processes on it could not be read"
    processes = card.processes or ()
    yield from _judge_processes(processes, rules, own_run_id)
    ours = own_run_id is not None and any(process.run_id == own_run_id for process in processes)
    if rules.share or ours:
        return
    used = card.utilisation_pct  # None without a fault: the card has no such value (MIG, virtual GPUs)
    if used is not None and used > rules.max_utilisation_pct:
        yield f"busy: {used} % utilisation, {rules.max_utilisation_pct} % at most counts as idle"
    if card.processes is not None and card.memory_used_bytes is not None and not card.mig_enabled:
        visible = sum(process.used_bytes or 0 for process in processes)
        hidden = card.memory_used_bytes - visible
        if hidden > rules.max_used_bytes and all(process.used_bytes is not None for process in processes):
            yield f"memory_held: {format_bytes(hidden)} of its memory are held by no process that can be seen"


def _judge_processes(processes: Iterable[GpuProcess], rules: CardRules, own_run_id: str | None) -> Iterable[str]:
    for process in processes:
        if process.kind is HolderKind.MANAGED and (rules.share or process.run_id == own_run_id):
            continue
        yield _describe_holder(process)


def _describe_holder(process: GpuProcess) -> str:
    """One holder in words. Only a holder of kind ghost is called ownerless (bug B-19)."""
    size = "" if process.used_bytes is None else f" with {format_bytes(process.used_bytes)}"
    who = f"pid {process.pid}{size}"
    age = "" if process.age_s is None else f", since {format_duration(process.age_s)}"
    program = f"{process.user or 'user unknown'}: {process.command or 'command unknown'}{age}"
    if process.kind is HolderKind.MANAGED:
        return f"in_use: {who} of holdfast run {process.run_id} ({program})"
    if process.kind is HolderKind.UNMANAGED:
        return f"unmanaged: {who} without a lease ({program})"
    if process.kind is HolderKind.OTHER_NAMESPACE:
        inside = f" ({program})" if process.user or process.command else ""
        return f"other_container: {who} is a holder in another container (PID namespace){inside}"
    if process.kind is HolderKind.GHOST:
        return f"unattributed_holder: {who} is in no process table of this box; the driver still holds its memory"
    return f"unknown_holder: {who}; whether that process exists could not be found out from here"


def judge_slice(
    card: Card,
    part: MigSlice,
    rules: CardRules,
    *,
    leased: Mapping[str, str] | None = None,
    own_run_id: str | None = None,
) -> tuple[str, ...]:
    """Every reason why this MIG slice cannot be given to a new run; arguments as `judge_card`."""
    leases = leased or {}
    reasons = list(_judge_card_itself(card))
    if part.uuid in leases:
        reasons.append(f"leased: {leases[part.uuid]}")
    if card.uuid in leases:
        reasons.append(f"card_leased: the whole card {card.uuid}: {leases[card.uuid]}")
    total, used = part.memory_total_bytes, part.memory_used_bytes
    if total is None or used is None:
        reasons.append("memory_unknown: its free memory could not be read")
    else:
        wanted = min(rules.min_free_bytes, int(total * SLICE_FREE_FRACTION))
        if total - used < wanted:
            reasons.append(_say_short(total - used, wanted))
    reasons += _judge_processes(part.processes, rules, own_run_id)
    return tuple(reasons)


def resolve_imposed(
    value: str | None, inventory: Inventory, *, device_order: str | None = None
) -> frozenset[str] | None:
    """The UUIDs that an imposed ``CUDA_VISIBLE_DEVICES`` allows; None when nothing is imposed.

    As CUDA does: UUIDs may be shortened, and the list ends at the first entry that names no device. A MIG card stands
    for its slices too.

    Source: CUDA C++ Programming Guide, section CUDA Environment Variables.

    Raises:
        ValueError: indexes on a box with different models and no ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: CUDA would count
            them in another order than the driver, so they name no card for certain (bug B-14).
    """
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    models = {card.name for card in inventory.cards}
    if any(part.isdigit() for part in parts) and len(models) > 1 and device_order != "PCI_BUS_ID":
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES={value} names cards by index on a box with {len(models)} models, where CUDA counts"
            " the fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs"
        )
    allowed: list[str] = []
    for part in parts:
        found = find_device(part, inventory)
        if found is None:
            break
        allowed.append(found)
    whole = [card for card in inventory.cards if card.uuid in allowed]
    return frozenset(allowed + [part.uuid for card in whole for part in card.mig_slices])


def find_device(name: str, inventory: Inventory) -> str | None:
    """The UUID of a device named by index, UUID, or a beginning of one UUID only."""
    if name.isascii() and name.isdigit():
        return next((card.uuid for card in inventory.cards if card.index == int(name)), None)
    if not name.startswith(UUID_PREFIXES):
        return None
    uuids = [uuid for card in inventory.cards for uuid in (card.uuid, *(part.uuid for part in card.mig_slices))]
    if name in uuids:
        return name
    matches = [uuid for uuid in uuids if uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def choose_cards(
    request: GpuRequest,
    inventory: Inventory,
    *,
    leased: Mapping[str, str],
    rules: CardRules,
    imposed: str | None = None,
    device_order: str | None = None,
    own_run_id: str | None = None,
    rooms: Mapping[str, SharingRoom] | None = None,
) -> CardChoice:
    """The devices for a request, or why there are none.

    Args:
        request: what is asked for.
        inventory: the reading to choose from.
        leased: device UUID to who holds it, in words; MIG slices under their own UUID.
        rules: limits that make a card fit.
        imposed: ``CUDA_VISIBLE_DEVICES`` as found in the environment, None when unset.
        device_order: ``CUDA_DEVICE_ORDER`` as found.
        own_run_id: the run that asks, when it may already be on a card.
        rooms: for a run that shares, whether it fits on each device; then those that are shared already go first.
    """
    if request.wanted == 0:
        return CardChoice()
    if not inventory.cards:
        source = "no GPU on this box" if inventory.source is InventorySource.NONE else "no GPU can be used"
        return CardChoice(problem=f"{source}: {inventory.reason or 'the inventory is empty'}")
    try:
        allowed = resolve_imposed(imposed, inventory, device_order=device_order)
    except ValueError as error:
        return CardChoice(problem=str(error))
    verdicts = _judge_all(inventory, leased, rules, own_run_id)
    verdicts = {uuid: reasons + judge_fit((rooms or {}).get(uuid)) for uuid, reasons in verdicts.items()}
    if request.devices:
        return _choose_named(request, inventory, allowed, verdicts, imposed)
    choice = _choose_any(request.count, inventory, allowed, verdicts, imposed)
    return _prefer_shared(choice, rooms) if rooms else choice


def judge_fit(room: SharingRoom | None) -> tuple[str, ...]:
    """The reason that a lack of room on a shared device gives; none when the run fits."""
    if room is None or room.fits:
        return ()
    return (f"{'no_room' if room.possible else 'too_large'}: {room.words}",)


def _prefer_shared(choice: CardChoice, rooms: Mapping[str, SharingRoom]) -> CardChoice:
    """The same choice with shared devices first, and of those the fullest that fits: whole cards stay free."""
    fit = list(choice.devices) + [uuid for uuid, reason in choice.rejected if reason == FIT_BUT_NOT_TAKEN]
    if not any(uuid in rooms and rooms[uuid].shared for uuid in fit):
        return choice
    fit.sort(key=lambda uuid: (not rooms[uuid].shared, rooms[uuid].free_bytes) if uuid in rooms else (True, 0))
    taken = fit[: len(choice.devices)]
    rejected = [item for item in choice.rejected if item[0] not in taken]
    rejected += [(uuid, FIT_BUT_NOT_TAKEN) for uuid in choice.devices if uuid not in taken]
    return CardChoice(devices=tuple(taken), rejected=tuple(rejected))


def _judge_all(
    inventory: Inventory, leased: Mapping[str, str], rules: CardRules, own_run_id: str | None
) -> dict[str, tuple[str, ...]]:
    """Device UUID to the reasons against it, cards and slices, in PCI order."""
    verdicts = {}
    for card in sorted(inventory.cards, key=lambda card: card.index):
        verdicts[card.uuid] = judge_card(card, rules, leased=leased, own_run_id=own_run_id)
        for part in card.mig_slices:
            verdicts[part.uuid] = judge_slice(card, part, rules, leased=leased, own_run_id=own_run_id)
    return verdicts


def _choose_named(
    request: GpuRequest,
    inventory: Inventory,
    allowed: frozenset[str] | None,
    verdicts: Mapping[str, tuple[str, ...]],
    imposed: str | None,
) -> CardChoice:
    found, rejected = [], []
    for name in request.devices:
        uuid = find_device(name, inventory)
        if uuid is None:
            rejected.append((name, f"no_such_device: {_say_devices(inventory)}"))
        elif allowed is not None and uuid not in allowed:
            rejected.append((uuid, f"not_visible: it is outside CUDA_VISIBLE_DEVICES={imposed}"))
        elif verdicts[uuid]:
            rejected.append((uuid, "; ".join(verdicts[uuid])))
        elif uuid in found:
            rejected.append((uuid, f"named_twice: {name} is the same device as another one asked for"))
        else:
            found.append(uuid)
    if rejected:
        problem = f"{len(rejected)} of {request.wanted} requested devices cannot be had"
        return CardChoice(rejected=tuple(rejected), problem=f"{problem}: {_say_rejected(rejected)}")
    order = list(verdicts)
    return CardChoice(devices=tuple(sorted(found, key=order.index)))


def _choose_any(
    count: int,
    inventory: Inventory,
    allowed: frozenset[str] | None,
    verdicts: Mapping[str, tuple[str, ...]],
    imposed: str | None,
) -> CardChoice:
    """`count` fit devices: whole cards, or MIG slices where the imposed list names such."""
    nodes = {card.uuid: card.numa_node for card in inventory.cards}
    for card in inventory.cards:
        nodes.update({part.uuid: card.numa_node for part in card.mig_slices if allowed and part.uuid in allowed})
    fit, rejected = [], []
    for uuid, reasons in verdicts.items():
        if uuid not in nodes:
            continue
        if allowed is not None and uuid not in allowed:
            rejected.append((uuid, f"not_visible: it is outside CUDA_VISIBLE_DEVICES={imposed}"))
        elif reasons:
            rejected.append((uuid, "; ".join(reasons)))
        else:
            fit.append(uuid)
    if len(fit) < count:
        problem = f"{format_count(count, 'GPU is', 'GPUs are')} asked for and {len(fit)} of {len(nodes)} can be had"
        partial = "" if inventory.complete else f" (the reading is not complete: {inventory.reason})"
        said = f": {_say_rejected(rejected)}" if rejected else ""
        return CardChoice(rejected=tuple(rejected), problem=problem + partial + said)
    taken = _prefer_near(fit, count, nodes)
    rejected += [(uuid, FIT_BUT_NOT_TAKEN) for uuid in fit if uuid not in taken]
    return CardChoice(devices=tuple(uuid for uuid in fit if uuid in taken), rejected=tuple(rejected))


def _prefer_near(fit: Sequence[str], count: int, nodes: Mapping[str, int | None]) -> frozenset[str]:
    """`count` of the fit, on one NUMA node where one has enough: the fullest such node, so that large gaps stay large.

    Without such a node the nodes with most fit cards come first; cards of unknown place count as one node of their own.
    """
    groups: dict[int | None, list[str]] = {}
    for uuid in fit:
        groups.setdefault(nodes[uuid], []).append(uuid)
    enough = [group for group in groups.values() if len(group) >= count]
    if enough:
        return frozenset(min(enough, key=len)[:count])
    spread = [uuid for group in sorted(groups.values(), key=len, reverse=True) for uuid in group]
    return frozenset(spread[:count])


def _say_devices(inventory: Inventory) -> str:
    indexes = ", ".join(str(card.index) for card in inventory.cards)
    partial = "" if inventory.complete else f"; the reading is not complete: {inventory.reason}"
    return f"this box has cards {indexes}{partial}"


def _say_rejected(rejected: Iterable[tuple[str, str]]) -> str:
    return " | ".join(f"{uuid}: {reason}" for uuid, reason in rejected)


def visible_devices(devices: Sequence[str]) -> dict[str, str]:
    """The variables that show a job exactly these devices: by UUID, and indexes in the driver's order (LEASE-07, 08).

    No device at all hides every card.
    """
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
