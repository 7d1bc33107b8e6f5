"""Leases: who may use a card, and every reason why somebody else may not.

A lease is a kernel lock; everything here is what is written or read beside it so that people and other programs can
see who, since when and what for.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from .identity import ProcessId
from .record import record

if TYPE_CHECKING:
    from collections.abc import Sequence


class LeasePhase(str, Enum):
    """What the lessee is doing with its cards."""

    PREFLIGHT = "preflight"
    RUN = "run"
    STOPPING = "stopping"
    POSTFLIGHT = "postflight"
    DRAINING = "draining"


class Witness(str, Enum):
    """What says that a card is busy."""

    LOCK = "lock"
    RECORD = "record"
    CARD = "card"
    FOREIGN_LOCK = "foreign_lock"
    QUEUE = "queue"
    RULE = "rule"
    RESERVATION = "reservation"


@record
class LeasedDevice:
    """One device of a lease: the card's UUID, and the slice's when only a slice is leased."""

    card_uuid: str
    index: int
    name: str
    slice_uuid: str | None = None

    @property
    def uuid(self) -> str:
        """What CUDA is told: the slice when there is one."""
        return self.slice_uuid or self.card_uuid


@record
class LeaseRecord:
    """The public record of a lease (LEASE-04). Times are ISO 8601 UTC; `share` is the opt-in to share cards.

    `members` are the processes by which the lease lives: supervisor, keeper and the job's leader as they become known;
    `cgroup` is the job's cgroup directory, readable by every user. `memory_bytes` is what the run reserves of each
    shared device, None when it states nothing; `running_since_s` when its job was started (CLOCK_BOOTTIME, seconds).
    `until` is when it is over at the latest, None where nothing says; `since_boot_ns` is `since` on CLOCK_BOOTTIME.
    """

    run_id: str
    attempt: int
    user: str
    uid: int
    host: str
    since: str
    phase: LeasePhase
    devices: tuple[LeasedDevice, ...]
    supervisor: ProcessId
    members: tuple[ProcessId, ...] = ()
    cgroup: str | None = None
    command: str = ""
    config: str | None = None
    run_dir: str = ""
    share: bool = False
    simulated: bool = False
    memory_bytes: int | None = None
    running_since_s: float | None = None
    until: str | None = None
    since_boot_ns: int = 0


@record
class BusyReason:
    """One reason why one device is not to be had, with its witness.

    `holder` is a phrase for people (``anna, run 2026...-resnet-1f2e, pid 4242``), `since` ISO UTC when known,
    `pids` the processes that hold on, `draining` True when the run is over but something of it is left, `index` the
    card's number where whoever asks knows it.
    """

    device: str
    witness: Witness
    holder: str
    since: str | None = None
    run_id: str | None = None
    command: str | None = None
    pids: tuple[int, ...] = ()
    draining: bool = False
    index: int | None = None

    @property
    def label(self) -> str:
        """The device for people: ``card 0`` where its index is known, else its UUID."""
        return self.device if self.index is None else f"card {self.index}"

    @property
    def words(self) -> str:
        """Who has it, in a sentence; where nobody is known to hold it (its reading, the rules of the box) why."""
        since = f" since {self.since}" if self.since else ""
        return f"{self.label}{join_holder(self.holder, self.witness)}{since}"


HOLDING = frozenset({Witness.LOCK, Witness.RECORD, Witness.FOREIGN_LOCK})
"""Witnesses that name who holds a device; the others say in their own words why it is not to be had."""


def join_holder(holder: str, witness: Witness, count: int = 1) -> str:
    """What follows the names of `count` devices: that somebody holds them, or what their witness says."""
    return f" {'is' if count == 1 else 'are'} held by {holder}" if witness in HOLDING else f": {holder}"


def name_labels(labels: Sequence[str]) -> str:
    """``card 0``, ``cards 0, 1``, or the names as they are."""
    if len(labels) > 1 and all(label.startswith("card ") for label in labels):
        return "cards " + ", ".join(label.removeprefix("card ") for label in labels)
    return ", ".join(labels)


@record
class Ticket:
    """A waiter's place in the line. `order` is CLOCK_BOOTTIME nanoseconds at arrival; `candidates` device UUIDs.

    `hold_s` is for how long it would hold its cards at most; None is for as long as it takes.
    """

    order: int
    run_id: str
    user: str
    candidates: tuple[str, ...]
    count: int
    hold_s: float | None = None


def count_cards(wanted: int, busy: tuple[BusyReason, ...], total: int) -> str:
    """How many cards are asked for and free, where several are and every one that is not free is named."""
    free = total - len({item.device for item in busy})
    if wanted < 2 or any(item.index is None for item in busy) or not 0 <= free < wanted:
        return ""
    return f"{wanted} cards are asked for, {free} of {total} {'is' if free == 1 else 'are'} free"
