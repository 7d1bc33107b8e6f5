"""Samples all cards over some seconds, because what limits a card's clock comes and goes."""

from __future__ import annotations

import time

from holdfast.host.gpu.inventory import read_inventory, read_xid_events
from holdfast.host.gpu.probe_client import Probe
from holdfast.model.gpu import Card, Inventory, InventorySource, XidEvent
from holdfast.model.record import record

FIRST_READING_S = 10.0
READING_S = 1.0
INTERVAL_S = 0.25


@record
class CardReadings:
    """Readings over a time: each card's by UUID, oldest first; `events` are Xids that the driver reported meanwhile."""

    last: Inventory
    samples: dict[str, list[Card]]
    elapsed_s: float
    events: tuple[XidEvent, ...] = ()


def watch_cards(window_s: float) -> CardReadings:
    """Read all cards every quarter of a second for `window_s` seconds, at least once."""
    with Probe() as probe:
        inventory = read_inventory(FIRST_READING_S, probe=probe)
        real = inventory.source is InventorySource.NVML and bool(inventory.cards)
        if real:
            read_xid_events(probe, READING_S)
        began = time.monotonic()
        samples = {card.uuid: [card] for card in inventory.cards}
        while inventory.cards and time.monotonic() + INTERVAL_S <= began + window_s:
            time.sleep(INTERVAL_S)
            inventory = _read_once(probe, inventory, samples)
        events = read_xid_events(probe, READING_S)[0] if real else ()
        return CardReadings(inventory, samples, time.monotonic() - began, events)


def _read_once(probe: Probe, before: Inventory, samples: dict[str, list[Card]]) -> Inventory:
    inventory = read_inventory(READING_S, probe=probe)
    for card in inventory.cards:
        # A card that is lost in between keeps the name under which its earlier readings stand.
        samples.setdefault(card.uuid, []).append(card)
    return inventory if inventory.cards else before
