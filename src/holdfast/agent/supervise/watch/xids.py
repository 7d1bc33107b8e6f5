"""The Xids that the driver reports of the leased cards while the job runs (GPUH-02).

The kernel's log has them too, but is often not for us to read. The driver hands a Xid only to who listens when it
happens, so the probe listens from its start on (`CardLease`), and what it has heard is fetched with each health sample
and once more at the end. Each becomes an event ``xid``, which the diagnosis of the end reads; one that condemns its
card is a `card_fault` at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.kernel.xids import Severity, find_xid
from holdfast.host.gpu.inventory import read_xid_events
from holdfast.model.gpu import shorten_pci

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.gpu.probe_client import Probe
    from holdfast.model.gpu import Card, XidEvent

LOOK_S = 0.8
MOST_TIMES = 32
"""Of one code of one card in one look: a program that goes on after an error causes the same one again and again."""
MOST_EVENTS = 100
"""Of one code of one card in one attempt."""


class XidWatch:
    """Fetches what the probe of one run has heard."""

    def __init__(self, context: SupervisorContext, alert: Callable[..., None]) -> None:
        """Nothing is fetched yet. `alert` is told an event's name and its facts."""
        self._context, self._alert = context, alert
        self._written: dict[tuple[str, int], int] = {}
        self._unheard = ""
        self._addresses: dict[str, str] | None = None

    def look(self, probe: Probe, cards: Iterable[Card]) -> None:
        """Write down what was reported of `cards` since the last look; waits 0.8 s at most."""
        events, unheard = read_xid_events(probe, LOOK_S)
        if unheard and unheard != self._unheard:
            self._context.recorder.log(f"Xids may go unheard: {unheard}")
        self._unheard = unheard
        for card in cards if events else ():
            address = self._find_address(card)
            groups: dict[tuple[int, int | None], list[XidEvent]] = {}
            for event in events:
                if _is_of(event, card.uuid, address):
                    groups.setdefault((event.code, event.gpu_instance), []).append(event)
            for group in groups.values():
                self._note(card, address, group)

    def _find_address(self, card: Card) -> str:
        """Its PCI address; of a card that no longer tells it, as it was at the launch."""
        if self._addresses is None:
            devices = self._context.recorder.read_manifest().get("cards")
            known = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
            self._addresses = {str(device.get("uuid")): str(device.get("pci_bus_id") or "") for device in known}
        return card.pci_bus_id or self._addresses.get(card.uuid, "")

    def _note(self, card: Card, address: str, events: list[XidEvent]) -> None:
        code = events[0].code
        xid = find_xid(code, self._context.rules.xids)
        written = self._written[card.uuid, code] = self._written.get((card.uuid, code), 0) + 1
        if written <= MOST_EVENTS:
            self._context.recorder.event(
                "xid",
                card=card.uuid,
                index=card.index,
                pci=address or events[0].pci_bus_id,
                code=code,
                gpu_instance=events[0].gpu_instance,
                severity=xid.severity.value,
                meaning=xid.meaning,
                count=len(events),
                at_s=[round(event.seconds, 3) for event in events[:MOST_TIMES]],
            )
        if written == 1 and xid.severity in (Severity.CARD, Severity.HOST):
            words = f"xid: Xid {code}: {xid.meaning}"
            self._alert("card_fault", card=card.uuid, index=card.index, faults=[words], action=xid.action)


def _is_of(event: XidEvent, uuid: str, address: str) -> bool:
    """By its UUID, or by its address where the driver no longer tells the UUID of a card that is failing."""
    place = shorten_pci(event.pci_bus_id or "")
    return event.uuid == uuid or bool(place and place == shorten_pci(address))
