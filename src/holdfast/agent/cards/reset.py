"""Writes the message that asks the administrator to reset one card. Nothing is executed."""

from __future__ import annotations

import os

from holdfast.core.cards.holder_words import describe_process
from holdfast.host.clock import utc_now
from holdfast.model.errors import NoSuchName
from holdfast.model.record import record

from .box import BoxCards, LeasableDevice, read_box


@record
class ResetRequest:
    """The message about one card; `idle` only when that was read to be true."""

    index: int
    uuid: str
    idle: bool
    text: str


def request_reset(index: int) -> ResetRequest:
    """The message about card `index` as it is now.

    Raises:
        NoSuchName: there is no such card.
    """
    box = read_box()
    place = next((place for place in box.places if place.index == index and place.part is None), None)
    if place is None:
        known = ", ".join(str(place.index) for place in box.places if place.part is None) or "none"
        reason = f" ({box.inventory.reason})" if box.inventory.reason else ""
        raise NoSuchName(f"there is no card {index} here{reason}; the cards are: {known}", hint="see holdfast gpus")
    text = build_reset_request(box, place, host=os.uname().nodename, now=utc_now())
    return ResetRequest(index, place.uuid, is_idle(place), text)


def is_idle(place: LeasableDevice) -> bool:
    """Whether it is proven that nothing uses the card: no process, no load, no lease, all of it read."""
    card = place.card
    return (
        card.processes == ()
        and not place.busy
        and card.utilisation_pct == 0
        and not any(part.processes for part in card.mig_slices)
        and not any(fault.startswith(("unreadable", "unresponsive")) for fault in card.faults)
    )


def build_reset_request(box: BoxCards, place: LeasableDevice, *, host: str, now: str) -> str:
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
