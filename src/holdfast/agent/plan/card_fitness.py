"""What this host knows against its cards beyond the driver's word: quarantine, the kernel's log.

Done for runs with cards only, in the child that reads the cards, so that the supervisor loads none of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.rules.rules import Rules
from holdfast.diagnosis.cards.witness import ask_kernel, mark_condemned
from holdfast.host.gpu.quarantine import mark_quarantined
from holdfast.host.lease import area as lease_area
from holdfast.model.errors import HoldfastError
from holdfast.model.gpu import Inventory, InventorySource


def mark_unfit(
    inventory: Inventory, rules: Rules, environ: Mapping[str, str], *, kernel: bool = True, quick: bool = False
) -> Inventory:
    """The same reading with cards that are set aside marked so, and a fault on each that the kernel speaks against.

    A lease area or a log that cannot be read marks nothing: taking the lease says what is wrong with the area, and
    preflight that the log was not read. Does not raise.

    Args:
        inventory: the reading.
        rules: they may name the lease area, and say what a Xid asks for.
        environ: it may, too.
        kernel: False leaves the log alone.
        quick: read the log only where it costs no more than some milliseconds.
    """
    if not inventory.cards:
        return inventory
    try:
        area = lease_area.open_area(rules.lease_dir, environ=environ, create=False)
    except HoldfastError:
        area = None
    if area is not None:
        inventory = mark_quarantined(inventory, area)
    if not kernel or inventory.source is not InventorySource.NVML:
        return inventory

    return mark_condemned(inventory, ask_kernel(inventory.cards, area=area, quick=quick, overrides=rules.xids))
