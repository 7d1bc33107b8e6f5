"""Reading the box's GPUs: one inventory, from NVML through the probe child or from a simulation, never with a hang.

Owns the translation of what the driver said into `model.gpu` and the hard faults of a card. A driver value that
cannot be true (more memory used than there is, 300 % busy) is dropped and becomes a fault: a card that lies is not
leased. A box without NVML and without a card's device file is normal (source none, with the reason); a box whose driver
does not answer is an incomplete reading, which proves the absence of nothing.

It must not know who leases what, nor which card is fit for a job (`core.cards.choose`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.model.gpu import (
    CLOCK_LIMITS,
    RECOVERY_ACTIONS,
    Card,
    GpuProcess,
    Inventory,
    InventorySource,
    MigSlice,
    XidEvent,
)
from holdfast.model.pattern import compile_later
from holdfast.model.record import fields

from .probe_client import Probe, ProbeFailed
from .processes import ProcessView, describe_process, read_process_view
from .simulated import read_simulated

Entry = Mapping[str, Any]  # decoded JSON of the probe

SIMULATION_VARIABLE = "HOLDFAST_SIMULATED_GPUS"
NO_DRIVER_CODES = {
    12: "the NVIDIA management library (libnvidia-ml.so.1) is not installed",
    9: "the NVIDIA driver is not loaded",
}
"""Codes of nvmlInit that mean "no GPU here" and no fault, where no card has a device file.

Source: nvml.h, LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED."""
GPU_IS_LOST, RESET_REQUIRED = 15, 16
CONFIRM_S = 0.05
"""Least time left with which a ghost is confirmed by a second reading."""


def read_inventory(deadline_s: float = 0.8, *, probe: Probe | None = None) -> Inventory:
    """All cards of this box now, within `deadline_s` seconds. Does not raise.

    Args:
        deadline_s: the longest wait. Initialising NVML takes seconds on a box without persistence mode, so give 10 and
            more where a reading must be had.
        probe: a probe that is kept between readings (a supervisor's); without one a child is started and ended.
    """
    simulated = os.environ.get(SIMULATION_VARIABLE)
    if simulated is not None:
        return read_simulated(simulated)
    if probe is not None:
        return _read_nvml(probe, deadline_s)
    with Probe() as own:
        return _read_nvml(own, deadline_s)


def sample_utilisation(
    uuids: Iterable[str], window_s: float, interval_s: float = 0.25, *, probe: Probe | None = None
) -> dict[str, tuple[int | None, ...]]:
    """Utilisation in percent of each card, sampled over `window_s` seconds (blocks that long).

    Returns one tuple per UUID, at least one sample each; None where a sample could not be had (unknown card, stuck
    driver, MIG): a caller that needs an idle card takes None as not proven.
    """
    samples: dict[str, list[int | None]] = {uuid: [] for uuid in uuids}
    own = probe or Probe()
    end = time.monotonic() + window_s
    try:
        while True:
            began = time.monotonic()
            seen = _read_utilisation(own, max(interval_s, 0.5))
            for uuid, values in samples.items():
                values.append(seen.get(uuid))
            if began + interval_s > end:
                return {uuid: tuple(values) for uuid, values in samples.items()}
            time.sleep(max(began + interval_s - time.monotonic(), 0.0))
    finally:
        if probe is None:
            own.close()


def _read_utilisation(probe: Probe, deadline_s: float) -> dict[str, int | None]:
    simulated = os.environ.get(SIMULATION_VARIABLE)
    if simulated is not None:
        return {card.uuid: card.utilisation_pct for card in read_inventory().cards}
    try:
        entries: Any = probe.ask({"op": "utilisation"}, deadline_s)["cards"]
    except ProbeFailed:
        return {}
    return {entry["uuid"]: _percent(entry.get("utilisation")) for entry in entries if entry.get("uuid")}


def read_xid_events(probe: Probe, deadline_s: float = 0.8) -> tuple[tuple[XidEvent, ...], str]:
    """The Xids that the driver reported since the last call on this probe, and why not all were heard (or nothing).

    The first call only begins to listen. Not every code is reported this way (79, 119, 120 and 62 were seen to be
    missing), so the kernel's log is to be read too. Source: github.com/NVIDIA/DCGM issues 162 and 235.
    """
    try:
        reply: Entry = probe.ask({"op": "xid_events"}, deadline_s)
    except ProbeFailed as failure:
        return (), str(failure)
    events = tuple(
        XidEvent(str(entry.get("uuid")), entry["code"], entry["seconds"], entry.get("pci"), entry.get("gpu_instance"))
        for entry in reply.get("events") or ()
    )
    problems = [f"{function} failed: {text} (NVML code {code})" for function, code, text in reply.get("errors") or ()]
    problems += [f"{stuck['function']} has not returned for {stuck['seconds']:.1f} s" for stuck in reply["stuck"]]
    unheard = sorted(set(range(reply.get("count") or 0)) - set(reply.get("watched") or ()))
    if unheard and not problems:
        problems.append(f"the driver reports no Xid of card {', '.join(map(str, unheard))}")
    return events, "; ".join(problems)


def _read_nvml(probe: Probe, deadline_s: float) -> Inventory:
    """One reading; a second one when the first shows ghosts, because a process may end between list and look-up."""
    end, view = time.monotonic() + deadline_s, read_process_view()
    request = {"op": "inventory", "devices": not view.initial}
    try:
        reply: Entry = probe.ask(request, deadline_s)
        absent = _absent_pids(reply)
        if absent and view.complete:
            reply = confirm_ghosts(reply, _ask_again(probe, request, end - time.monotonic()))
    except ProbeFailed as failure:
        return Inventory(InventorySource.NVML, complete=False, reason=str(failure))
    return build_inventory(reply, view, list_device_files())


def list_device_files() -> tuple[str, ...]:
    """The names in ``/dev`` that the driver gives to its cards: ``nvidia0``; none where it cannot be read."""
    try:
        return tuple(sorted(name for name in os.listdir("/dev") if _DEVICE_FILE.fullmatch(name)))
    except OSError:
        return ()


def _absent_pids(reply: Entry) -> set[str]:
    """Pids (as JSON keys) that a card lists and the process table does not."""
    return {pid for pid, facts in reply["facts"].items() if facts.get("exists") is False and int(pid) > 0}


def _ask_again(probe: Probe, request: Entry, left_s: float) -> Entry | None:
    """A second reading in the time that is left, or None."""
    if left_s <= CONFIRM_S:
        return None
    try:
        return probe.ask(request, left_s)
    except ProbeFailed:
        return None


def confirm_ghosts(first: Entry, second: Entry | None) -> Entry:
    """The later reading, in which a pid counts as absent only when both readings say so.

    Without a second reading that is as good as the first, nothing is known of the absent pids.
    """
    reply, unsure = first, _absent_pids(first)
    if second is not None and _silent_cards(second) <= _silent_cards(first):
        reply, unsure = second, _absent_pids(second) - unsure
    return {**reply, "facts": {pid: facts for pid, facts in reply["facts"].items() if pid not in unsure}}


def _silent_cards(reply: Entry) -> set[int | None]:
    return {stuck["index"] for stuck in reply["stuck"]}


def build_inventory(reply: Entry, view: ProcessView, device_files: Sequence[str] = ()) -> Inventory:
    """The model's inventory of one reply of the probe; `device_files` are those that cards have in ``/dev``."""
    driver_stuck = [stuck for stuck in reply["stuck"] if stuck["index"] is None]
    errors = reply.get("errors") or ()
    if not reply.get("count") and errors and errors[0][0] == "nvmlInitWithFlags" and errors[0][1] in NO_DRIVER_CODES:
        reason = NO_DRIVER_CODES[errors[0][1]]
        if not device_files:
            return Inventory(InventorySource.NONE, reason=reason)
        reason = f"{reason}, and a card has the device file /dev/{device_files[0]}"
        return Inventory(InventorySource.NVML, complete=False, reason=reason)
    reasons = [f"the driver did not answer: {stuck['function']} for {stuck['seconds']:.1f} s" for stuck in driver_stuck]
    reasons += [f"{function} failed: {text} (NVML code {code})" for function, code, text in errors]
    blocked = {stuck["index"]: stuck for stuck in reply["stuck"] if stuck["index"] is not None}
    facts = {int(pid): known for pid, known in reply["facts"].items()}
    named = [entry.get("uuid") for entry in reply["cards"]]
    doubled = frozenset(uuid for uuid in named if uuid and named.count(uuid) > 1)
    cards = tuple(_build_card(entry, blocked.get(entry["index"]), facts, view, doubled) for entry in reply["cards"])
    silent = [card.index for card in cards if card.index in blocked]
    reasons += [f"card {index} did not answer in time" for index in silent]
    cuda = reply.get("cuda")
    return Inventory(
        InventorySource.NVML,
        cards=cards,
        driver_version=reply.get("driver"),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else None,
        complete=not reasons,
        reason="; ".join(reasons) or ("the driver lists no card" if not cards else None),
    )


def _build_card(
    entry: Entry, stuck: Entry | None, facts: Mapping[int, Entry], view: ProcessView, doubled: frozenset[str]
) -> Card:
    faults = list(_find_faults(entry, stuck))
    uuid = entry.get("uuid")
    if uuid is not None and (uuid in doubled or not _UUID.fullmatch(uuid)):
        # A name that several cards bear, or that can be none, would lease the wrong card.
        faults.append(f"implausible: the driver says UUID {uuid!r}{', of several cards' if uuid in doubled else ''}")
        uuid = None
    total, used, free = _check_memory(entry.get("memory"), faults)
    utilisation = _percent(entry.get("utilisation"))
    if utilisation is None and entry.get("utilisation") is not None:
        faults.append(f"implausible: the driver says {entry['utilisation']} % utilisation")
    power = entry.get("power_mw")
    same: dict[str, Any] = {name: entry.get(name) for name in _SAME_NAME}
    return Card(
        index=entry["index"],
        uuid=uuid or f"UNREADABLE-{entry['index']}",
        name=entry.get("name") or "unreadable card",
        pci_bus_id=entry.get("pci"),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=free,
        utilisation_pct=utilisation,
        temperature_c=entry.get("temperature"),
        power_w=power / 1000 if power is not None else None,
        numa_node=entry.get("numa"),
        throttle=tuple(name for bit, name in CLOCK_LIMITS.items() if (entry.get("clock_reasons") or 0) & bit),
        faults=tuple(faults),
        ecc_uncorrectable=entry.get("ecc_volatile"),
        mig_enabled=bool(entry.get("mig")),
        mig_slices=tuple(
            _build_slice(part, facts, view)
            for part in entry.get("slices") or ()
            if _UUID.fullmatch(part.get("uuid") or "")
        ),
        processes=_build_processes(entry.get("processes"), facts, view),
        minor=entry.get("minor"),
        memory_utilisation_pct=_percent(entry.get("memory_utilisation")),
        power_limit_w=entry["power_limit_mw"] / 1000 if entry.get("power_limit_mw") else None,
        clock_reasons=entry.get("clock_reasons"),
        remapped_uncorrected=_remapped(entry, 1),
        unsupported=_name_unsupported(entry),
        **same,
    )


_SAME_NAME = (
    *("sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "slowdown_c", "gpu_max_c", "thermal_violation_ns"),
    *("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "ecc_corrected", "recovery_action"),
)
"""Fields of a card that the probe's entry has under the same name and in the same unit."""
_FIELD_OF = {
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrectable",
    "nvmlDeviceGetRemappedRows": "remapped_uncorrected",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetUtilizationRates": "utilisation_pct",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock_reasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "clock_reasons",
    "power_limit_mw": "power_limit_w",
}
"""The field of a card that stays empty when it does not support a function, or has not that value of the probe's."""


def _name_unsupported(entry: Entry) -> tuple[str, ...]:
    named = {_FIELD_OF.get(name, name) for name in entry.get("unsupported") or ()}
    return tuple(sorted(named & {item.name for item in fields(Card)}))


def _remapped(entry: Entry, position: int) -> int | None:
    rows = entry.get("remapped")
    return None if rows is None else int(rows[position])


_DEVICE_FILE = compile_later(r"nvidia[0-9]+", re.ASCII)
_UUID = compile_later(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
"""What can be part of a file name. Drivers before 470 named slices ``MIG-GPU-<uuid>/<gi>/<ci>``: not offered."""


def _build_slice(entry: Entry, facts: Mapping[int, Entry], view: ProcessView) -> MigSlice:
    total, used, _ = _check_memory(entry.get("memory"), [])
    size_mb, slices = entry.get("memory_mb"), entry.get("compute_slices")
    profile = f"{slices}g.{round(size_mb / 1024)}gb" if slices and size_mb else "unknown"
    return MigSlice(
        uuid=entry["uuid"],
        profile=profile,
        memory_total_bytes=total,
        memory_used_bytes=used,
        processes=_build_processes(entry.get("processes"), facts, view) or (),
    )


def _build_processes(
    listed: list[list[int]] | None, facts: Mapping[int, Entry], view: ProcessView
) -> tuple[GpuProcess, ...] | None:
    if listed is None:
        return None
    return tuple(describe_process(pid, used, facts.get(pid), view) for pid, used in listed)


def _find_faults(entry: Entry, stuck: Entry | None) -> Iterable[str]:
    """Hard reasons not to use the card, each as ``code: what was seen``."""
    if stuck is not None:
        yield f"unresponsive: {stuck['function']} has not returned for {stuck['seconds']:.1f} s"
    for function, code, text in entry.get("errors") or ():
        name = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}.get(code, "unreadable")
        yield f"{name}: {function} failed: {text} (NVML code {code})"
    if entry.get("ecc_volatile"):
        yield f"ecc_uncorrectable: {entry['ecc_volatile']} uncorrectable memory errors since the driver was loaded"
    _, _, pending, failed = entry.get("remapped") or (0, 0, 0, 0)
    if failed:
        yield "remap_failed: the card could not replace a broken memory row; it has to be exchanged"
    if pending or entry.get("retired_pending"):
        yield "remap_pending: a broken memory row is replaced only by a reset of the card"
    wanted = entry.get("recovery_action")
    if wanted:
        what = RECOVERY_ACTIONS.get(wanted, f"action {wanted}, which is not known here")
        yield f"recovery_wanted: the driver asks for {what} (recovery action {wanted})"


def _check_memory(memory: list[int] | None, faults: list[str]) -> tuple[int | None, int | None, int | None]:
    """Total, used and free bytes; all None, and a fault, when they cannot be true together."""
    if memory is None:
        return None, None, None
    total, used, free = memory
    if used > total or free > total or used + free > total:
        faults.append(f"implausible: the driver says {used} bytes used and {free} free of {total}")
        return None, None, None
    return total, used, free


def _percent(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= 100 else None
