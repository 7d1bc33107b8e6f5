"""GPUs as one reading saw them: cards, MIG slices, the processes on them, and where the reading came from.

A reading (`Inventory`) is an observation, never a promise: it carries its source, what could not be read, and nothing
is filled in. `None` means "could not be read", which is not zero. Cards are named by UUID; the index is for people.
"""

from __future__ import annotations

from enum import Enum

from .record import record


class InventorySource(str, Enum):
    """Where an inventory came from. Anything but NVML must be marked as such wherever it is shown."""

    NVML = "nvml"
    SIMULATED = "simulated"
    NONE = "none"


class HolderKind(str, Enum):
    """What a process on a card is to us.

    `GHOST` is claimed only when the process table is complete for us (initial PID namespace, no hidepid) and the pid
    is absent; otherwise an absent pid is `OTHER_NAMESPACE` or `UNKNOWN` (LEASE-12, bug B-19).
    """

    MANAGED = "managed"
    UNMANAGED = "unmanaged"
    OTHER_NAMESPACE = "other_namespace"
    GHOST = "ghost"
    UNKNOWN = "unknown"


@record
class GpuProcess:
    """One process that NVML lists on a card.

    `used_bytes` is None where NVML answers N/A. `user`, `command`, `age_s` (seconds since its start) and `run_id`
    are None where /proc did not tell us.
    """

    pid: int
    kind: HolderKind
    used_bytes: int | None = None
    user: str | None = None
    command: str | None = None
    age_s: float | None = None
    run_id: str | None = None
    start_ticks: int | None = None


@record
class MigSlice:
    """One MIG instance: leasable by its own UUID (``MIG-...``). Memory in bytes."""

    uuid: str
    profile: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()


@record
class Card:
    """One physical card as one reading saw it.

    Memory in bytes, temperature in Celsius, power in watts, utilisation in percent 0..100. `faults` are hard reasons
    not to use the card (``lost``, ``ecc_uncorrectable``, ``remap_failed``, ``unresponsive``, ``unreadable``, ...),
    each as ``code: what was seen``; `throttle` are the active clock-limiting reasons by name, `clock_reasons` all bits
    as the driver gave them (1 is idle), None when they could not be read. `unsupported` names the fields that this card
    says it does not have: they are None for a reason, not for want of reading. Counters count since the driver was
    loaded. `recovery_action` is what the driver wants done about the card, 0 nothing. `quarantined` says who set the
    card aside on this host and why, empty when nobody did.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilisation_pct: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    numa_node: int | None = None
    throttle: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    ecc_uncorrectable: int | None = None
    mig_enabled: bool = False
    mig_slices: tuple[MigSlice, ...] = ()
    processes: tuple[GpuProcess, ...] | None = ()
    minor: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_utilisation_pct: int | None = None
    power_limit_w: float | None = None
    slowdown_c: int | None = None
    gpu_max_c: int | None = None
    clock_reasons: int | None = None
    thermal_violation_ns: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    ecc_corrected: int | None = None
    remapped_uncorrected: int | None = None
    recovery_action: int | None = None
    unsupported: tuple[str, ...] = ()
    quarantined: str = ""


CLOCK_LIMITS = {
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Reasons why clocks are limited; 0x1 (idle) limits nothing. Source: nvml.h, nvmlClocksEventReason*."""
IDLE_CLOCKS = 0x1
"""The clocks are low because nothing runs."""
RECOVERY_ACTIONS = {
    1: "a reset of the card",
    2: "a reboot of the box",
    3: "an end of all peer-to-peer use, then a reset",
    4: "an end of all use, then a reset",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a reboot of the whole system",
}
"""What the driver can want. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t (driver 570 and later)."""


@record
class XidEvent:
    """A Xid that NVML reported for one card. `seconds` is CLOCK_MONOTONIC when it was taken, not when it happened."""

    uuid: str
    code: int
    seconds: float
    pci_bus_id: str | None = None
    gpu_instance: int | None = None


def shorten_pci(address: str) -> str:
    """A PCI address as the kernel writes it, ``0000:3b:00.0``, from any form of it; empty when it is none.

    NVML writes ``00000000:3B:00.0``, the driver's log lines ``0000:3b:00``.
    """
    domain, _, rest = address.strip().lower().partition(":")
    bus, _, slot = rest.partition(":")
    device, _, function = slot.partition(".")
    try:
        numbers = [int(part, 16) for part in (domain, bus, device, function or "0")]
    except ValueError:
        return ""
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers)


@record
class Inventory:
    """All cards of this box in one reading.

    `reason` says why there are none or why the reading is partial (library absent, driver stuck, deadline passed).
    `complete` is False when a card or the driver did not answer in time: absence of a card from an incomplete reading
    proves nothing.
    """

    source: InventorySource
    cards: tuple[Card, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    complete: bool = True
    reason: str | None = None


@record
class GpuRequest:
    """What a job asks for: `count` cards of the box's choice, or exactly `devices` (indexes as digits, or UUIDs).

    Written ``0``, ``2``, ``any:2``, ``0,1`` (in a list, `[0, 1]`), ``GPU-...``, ``MIG-...``. A bare number is a count.
    """

    count: int = 0
    devices: tuple[str, ...] = ()

    @property
    def wanted(self) -> int:
        """How many devices this asks for."""
        return len(self.devices) or self.count


@record
class CardRules:
    """The limits by which a card is judged fit for a new run. Bytes and percent."""

    min_free_bytes: int = 10 * 1024**3
    max_utilisation_pct: int = 10
    max_used_bytes: int = 1024**3
    share: bool = False


@record
class CardChoice:
    """The outcome of choosing cards: `devices` (UUIDs, in PCI order), or none and `rejected` says why.

    `rejected` has one (card or slice UUID, reason) pair for every candidate that was looked at and not taken.
    """

    devices: tuple[str, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    problem: str | None = None
