"""Devices that can be leased, cards and slices of cards, as a reading of the cards has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.cards.choose import resolve_imposed
from holdfast.model.lease import LeasedDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.host.gpu.allocation import Allocation
    from holdfast.model.gpu import Inventory


def list_devices(inventory: Inventory) -> tuple[LeasedDevice, ...]:
    """Every leasable device: whole cards first, then slices, in PCI order."""
    ordered = sorted(inventory.cards, key=lambda card: card.index)
    whole = tuple(LeasedDevice(card.uuid, card.index, card.name) for card in ordered)
    parts = tuple(
        LeasedDevice(card.uuid, card.index, card.name, part.uuid) for card in ordered for part in card.mig_slices
    )
    return whole + parts


def is_wanted(device: LeasedDevice, wanted: tuple[str, ...]) -> bool:
    """Whether a job that names these devices means this one; one that names none means whole cards."""
    if not wanted:
        return device.slice_uuid is None
    return any(
        device.uuid.startswith(name) if not name.isdigit() else device.slice_uuid is None and device.index == int(name)
        for name in wanted
    )


def list_candidates(
    inventory: Inventory, wanted: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[LeasedDevice, ...]:
    """The devices that a job means which stands in line, of those that its environment leaves it."""
    visible, order = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER")
    allowed = resolve_imposed(visible, inventory, device_order=order)
    everything = [d for d in list_devices(inventory) if allowed is None or d.uuid in allowed]
    return tuple(d for d in everything if is_wanted(d, wanted))


def list_given(allocation: Allocation, inventory: Inventory) -> tuple[LeasedDevice, ...]:
    """The whole cards, of those that can be seen here, which a scheduler gave."""
    whole = tuple(device for device in list_devices(inventory) if device.slice_uuid is None)
    if allocation.devices is None:
        return whole if allocation.source is not None else ()
    given = allocation.devices
    allowed = resolve_imposed(",".join(given), inventory, device_order="PCI_BUS_ID") or frozenset()
    if allocation.node_wide and len(given) == len(inventory.cards):
        # The others are hidden from us, and those that we see are numbered anew.
        allowed = frozenset(card.uuid for card in inventory.cards)
    return tuple(device for device in whole if device.uuid in allowed)
