"""The leased cards of a run while its job runs: as they are, what is wrong with them, what their driver reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cards import CardWatch, PaceWatch, find_leased
from .xids import XidWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.lease.lease import Lease
    from holdfast.model.gpu import Card
    from holdfast.model.lease import LeasedDevice


class LeasedCards:
    """The cards of one attempt; `alert` is told an event's name and its facts."""

    def __init__(
        self,
        context: SupervisorContext,
        lease: Lease,
        devices: tuple[LeasedDevice, ...],
        alert: Callable[..., None],
    ) -> None:
        """Nothing has been seen."""
        self._lease, self._devices = lease, devices
        gpu = context.spec.gpu
        self._watch = CardWatch(alert, context.run_id, gpu.memory_bytes if gpu.share else None)
        self._pace = PaceWatch(context, alert)
        self._xids = XidWatch(context, alert)

    def look(self) -> list[Card]:
        """The cards as the last reading has them."""
        return find_leased(self._lease.inventory, self._devices)

    def judge(self, cards: list[Card], progress: dict[str, object], cpu_s: object) -> None:
        """Compare a sample with what was seen before, in this attempt and in earlier ones."""
        if cards:
            self._watch.note(cards, progress.get("step"), cpu_s)
        self._pace.note(progress.get("steps_per_s"), cards)

    def hear(self) -> None:
        """Fetch the Xids that were reported; not from a driver that has just answered nothing in time."""
        inventory, cards = self._lease.inventory, self.look()
        if inventory.cards and cards and inventory.source.value == "nvml":
            self._xids.look(self._lease.probe(), cards)
