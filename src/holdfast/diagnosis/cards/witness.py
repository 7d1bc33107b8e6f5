"""What the kernel's log says of each card of a box, and the cards that it speaks against.

Reads the log once for all cards. Lines from before a card was cleared (`holdfast gpus clear`) do not count: it was
reset or exchanged since, says who cleared it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.diagnosis.evidence import KernelLog, Reading
from holdfast.diagnosis.kernel.log import DEADLINE_S, SOURCE, read_kernel_log
from holdfast.diagnosis.kernel.xids import judge_xids, merge_events
from holdfast.host import clock
from holdfast.host.gpu.quarantine import cleared_since
from holdfast.host.lease.area import LeaseArea
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Level
from holdfast.model.gpu import Card, Inventory, InventorySource, XidEvent
from holdfast.model.record import replace
from holdfast.model.units import format_duration

from .health import KernelWitness, judge_card_health

QUICK_S = 0.2


def ask_kernel(
    cards: Iterable[Card],
    *,
    since_seconds: float = 0.0,
    source: str = SOURCE,
    quick: bool = False,
    heard: Sequence[XidEvent] = (),
    area: LeaseArea | None = None,
    overrides: Mapping[int, str] | None = None,
    trust_injected: bool = False,
) -> dict[str, KernelWitness]:
    """Card UUID to what the kernel said of it since a time of this boot, or why that is not known. Does not raise.

    `heard` are the Xids that NVML reported meanwhile; `quick` reads only where that takes some milliseconds; other
    arguments as `read_kernel_log` and `judge_xids`.
    """
    limit_s = QUICK_S if quick else DEADLINE_S
    log = read_kernel_log(source=source, deadline_s=limit_s, trust_injected=trust_injected, fall_back=not quick)
    return {
        card.uuid: judge_one(card, log, max(since_seconds, _cleared(card, area)), heard=heard, overrides=overrides)
        for card in cards
    }


def _cleared(card: Card, area: LeaseArea | None) -> float:
    try:
        return cleared_since(card.uuid, area)
    except HoldfastError:
        return 0.0


def judge_one(
    card: Card,
    log: Reading[KernelLog],
    since_seconds: float,
    *,
    heard: Sequence[XidEvent] = (),
    overrides: Mapping[int, str] | None = None,
) -> KernelWitness:
    """The witness for one card out of a log that was read, or not."""
    if not card.pci_bus_id:
        return KernelWitness(unread=f"the PCI address of card {card.index} is not known, so no line can be its")
    events = merge_events(() if log.value is None else log.value.events, heard)
    found = judge_xids(events, pci=card.pci_bus_id, since_seconds=since_seconds, overrides=overrides)
    if log.value is None:
        return KernelWitness(found, unread=log.unread)
    cut = log.value.lost and log.value.first_seconds > since_seconds
    back_s = max(clock.monotonic_s() - log.value.first_seconds, 0.0)
    return KernelWitness(found, reaches_back=format_duration(back_s) if cut else "")


def mark_condemned(inventory: Inventory, witnesses: Mapping[str, KernelWitness]) -> Inventory:
    """The same reading, with a fault ``xid: ...`` on each card that the kernel's log speaks against.

    Simulated cards have no kernel: they stay as they are.
    """
    if inventory.source is not InventorySource.NVML:
        return inventory
    return replace(inventory, cards=tuple(_mark(card, witnesses.get(card.uuid)) for card in inventory.cards))


def _mark(card: Card, witness: KernelWitness | None) -> Card:
    if witness is None or card.faults:
        return card
    findings = judge_card_health([card], None, card, witness)
    grave = [finding for finding in findings if finding.id == "gpu.xid" and finding.level is Level.FAIL]
    if not grave:
        return card
    return replace(card, faults=(f"xid: {grave[0].evidence}; {grave[0].remedy}",))
