"""What the probe child reads of a card's condition, and the Xid events that the driver hands out.

Part of `probe` and imported by it only, so a process that asks no driver loads none of it. Every value here is
optional: cards and drivers differ in what they have, and a value that is not there is None, never zero.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from .probe_calls import NOT_SUPPORTED, ProbeThread, call, call_optional, note_error

SINGLE_VALUES = (
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    ("memory_clock_mhz", "nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
    ("power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit", ()),
    ("slowdown_c", "nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",)),
    ("gpu_max_c", "nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_GPU_MAX",)),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("ecc_corrected", "nvmlDeviceGetTotalEccErrors", ("NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_VOLATILE_ECC")),
)
"""Field of the entry, function, and the constants that it is called with after the handle."""
MOST_EVENTS = 1000
"""Taken in one request; a storm of events is answered in parts."""
UNINITIALIZED, TIMED_OUT = 1, 10
"""TIMED_OUT: no event is waiting. Source: nvml.h, nvmlReturn_t."""
NO_INSTANCE = 0xFFFFFFFF
"""The GPU instance of an event on a card without MIG. Source: nvml.h, nvmlEventData_t."""


def read_health(nvml: ModuleType, worker: ProbeThread, handle: object) -> None:
    """Temperature, power, clock limits, memory errors and place of one card."""
    entry = worker.partial
    entry["temperature"] = call(nvml, worker, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
    entry["power_mw"] = call(nvml, worker, "nvmlDeviceGetPowerUsage", handle)
    reasons = call(nvml, worker, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # before driver 535 the same bits had this name
        reasons = call(nvml, worker, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    entry["clock_reasons"] = reasons
    uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    for name, counter in (("ecc_volatile", nvml.NVML_VOLATILE_ECC), ("ecc_aggregate", nvml.NVML_AGGREGATE_ECC)):
        entry[name] = call(nvml, worker, "nvmlDeviceGetTotalEccErrors", handle, uncorrected, counter)
    entry["remapped"] = call(nvml, worker, "nvmlDeviceGetRemappedRows", handle)
    entry["retired_pending"] = call(nvml, worker, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    entry["numa"] = read_numa_node(nvml, worker, handle)


def read_numa_node(nvml: ModuleType, worker: ProbeThread, handle: object) -> int | None:
    """The host memory node nearest to the card; None when there is none or several.

    Source: nvmlDeviceGetMemoryAffinity, scope node (nvmlDeviceGetNumaNodeId is about the card's own memory);
    Documentation/ABI/testing/sysfs-bus-pci, numa_node.
    """
    nodes = call(nvml, worker, "nvmlDeviceGetMemoryAffinity", handle, 1, nvml.NVML_AFFINITY_SCOPE_NODE)
    if nodes is not None and nodes[0] and nodes[0] & (nodes[0] - 1) == 0:
        return int(nodes[0]).bit_length() - 1
    address = str(worker.partial.get("pci") or "").lower()[-12:]
    try:
        with open(f"/sys/bus/pci/devices/{address}/numa_node", encoding="ascii") as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def read_condition(nvml: ModuleType, worker: ProbeThread, handle: object) -> None:
    """Clocks, limits, counters, the link and the recovery action of one card, into the worker's entry."""
    entry = worker.partial
    for key, function, names in SINGLE_VALUES:
        entry[key] = call_optional(nvml, worker, key, function, handle, *(getattr(nvml, name) for name in names))
    key, policy = "thermal_violation_ns", nvml.NVML_PERF_POLICY_THERMAL
    counter = call_optional(nvml, worker, key, "nvmlDeviceGetViolationStatus", handle, policy)
    entry[key] = None if counter is None else counter.violationTime
    entry["recovery_action"] = _read_field(nvml, worker, handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)


def _read_field(nvml: ModuleType, worker: ProbeThread, handle: object, field: int) -> int | None:
    """One field value; None where this driver (field 230: before 570) or card does not have it.

    Each value has a return code of its own; the call succeeds also when all of them failed.
    """
    values = call_optional(nvml, worker, f"field {field}", "nvmlDeviceGetFieldValues", handle, [field])
    if values is None or values[0].nvmlReturn != 0:
        return None
    kinds = {nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal", nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal"}
    return int(getattr(values[0].value, kinds.get(values[0].valueType, "uiVal")))


def drain_events(nvml: ModuleType, worker: ProbeThread, count: int) -> None:
    """The Xids since the last call; the first call only begins to listen.

    Listening is per card, so a card that came later or was lost and is back is added at the next call. `watched` lists
    the cards that are listened to: what is not there is not heard.
    """
    entry = worker.partial
    heard: dict[int, Any] = worker.identity.setdefault("handles", {})
    if "set" not in worker.identity:
        worker.identity["set"] = call(nvml, worker, "nvmlEventSetCreate")
    events = worker.identity["set"]
    entry.pop("handles", None)
    entry.pop("set", None)
    if events is None:
        worker.identity.clear()
        return
    for index in range(count):
        if index not in heard:
            handle = call(nvml, worker, "nvmlDeviceGetHandleByIndex", index)
            if handle is not None and _listen(nvml, worker, handle, events):
                heard[index] = handle
    entry["watched"] = sorted(heard)
    entry["events"] = _take(nvml, worker, events)


def _listen(nvml: ModuleType, worker: ProbeThread, handle: object, events: object) -> bool:
    """Register for the Xids of one card; with MIG the card itself hears for its slices."""
    mask = call(nvml, worker, "nvmlDeviceGetSupportedEventTypes", handle)
    if not (mask or 0) & nvml.nvmlEventTypeXidCriticalError:
        return False
    worker.mark("nvmlDeviceRegisterEvents")
    try:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    except nvml.NVMLError as error:
        if error.value != NOT_SUPPORTED:
            note_error(worker.partial, "nvmlDeviceRegisterEvents", error.value, str(error))
        return False
    return True


def _take(nvml: ModuleType, worker: ProbeThread, events: object) -> list[dict[str, Any]]:
    """Every event that is waiting, at most `MOST_EVENTS`, without waiting for another."""
    taken: list[dict[str, Any]] = []
    while len(taken) < MOST_EVENTS:
        worker.mark("nvmlEventSetWait_v2")
        try:
            event = nvml.nvmlEventSetWait_v2(events, 0)
        except nvml.NVMLError as error:
            if error.value != TIMED_OUT:
                note_error(worker.partial, "nvmlEventSetWait_v2", error.value, str(error))
            if error.value == UNINITIALIZED:
                worker.identity.clear()  # the driver went away below us: listen anew next time
            break
        if not event.eventType & nvml.nvmlEventTypeXidCriticalError:
            continue
        pci = call(nvml, worker, "nvmlDeviceGetPciInfo", event.device)
        instance = event.gpuInstanceId
        taken.append(
            {
                "uuid": call(nvml, worker, "nvmlDeviceGetUUID", event.device),
                "pci": None if pci is None else pci.busId,
                "code": event.eventData,
                "gpu_instance": None if instance == NO_INSTANCE else instance,
                "seconds": time.monotonic(),
            }
        )
    return taken
