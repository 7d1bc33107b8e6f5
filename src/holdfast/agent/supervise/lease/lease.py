"""What the rest of the supervisor asks of a lease; this one is that of a run without cards, and holds nothing.

Runs without cards never load what chooses, locks and reads them (`card_lease`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.gpu import Inventory, InventorySource

if TYPE_CHECKING:
    from holdfast.host.gpu.probe_client import Probe
    from holdfast.model.identity import ProcessId
    from holdfast.model.run import State

NO_CARDS = Inventory(InventorySource.NONE)


class Lease:
    """The lease of a run without cards."""

    @property
    def fds(self) -> tuple[int, ...]:
        """The lock descriptors that keeper and job must inherit; empty without a lease."""
        return ()

    @property
    def inventory(self) -> Inventory:
        """The last reading of the cards."""
        return NO_CARDS

    @property
    def leased_cards(self) -> frozenset[str]:
        """The UUIDs of the cards of this lease."""
        return frozenset()

    @property
    def is_deciding(self) -> bool:
        """Whether cards are locked and being looked at: whoever waits for them has them nearly."""
        return False

    @property
    def probe_pid(self) -> int | None:
        """The pid of the probe child, which is no part of the job."""
        return None

    def probe(self) -> Probe:
        """The probe that is kept warm while this run has to do with cards."""
        raise LookupError("a run without cards has no probe")

    def begin(self) -> None:
        """Choose and lock cards; ends in an event."""
        raise LookupError("a run without cards asks for none")

    def on_state(self, state: State) -> None:
        """Keep the public record true: phase and the processes by which the lease lives."""

    def note_cgroup(self, path: str | None) -> None:
        """Name the job's cgroup in the record: a witness that every user can read."""

    def note_container(self, cgroup: str | None, init: ProcessId) -> None:
        """Name a container's control group and first process in the record, before its command may run."""

    @property
    def is_public(self) -> bool:
        """Whether the public record says what it is to say."""
        return True

    def note_limits(self) -> None:
        """Say in the record until when the cards are held now, after the job's time limits were changed."""

    def resume(self, state: State, *, rebooted: bool = False) -> None:
        """Take the lease over from a supervisor that was killed."""

    def read_again(self) -> Inventory | None:
        """A fresh reading of the leased cards for the exit record; None when no card is leased."""
        return None

    def release(self) -> None:
        """Give everything back; harmless when there is nothing."""
