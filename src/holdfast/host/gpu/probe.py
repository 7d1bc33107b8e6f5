"""The probe child: the only process that calls NVML, so that a driver that hangs takes nobody with it.

Runs as ``python -I -S -c "...serve()"`` (see `nvml.Probe`). Reads one JSON request a line on standard input, writes
one JSON reply a line, ends at end of file. It keeps NVML initialised between requests, because initialising takes
seconds on boxes without persistence mode.

Invariants: the main thread calls neither NVML nor anything of another process's /proc entry, so it answers by the
time that the request names even when every card hangs. Each card has a thread of its own; a card whose thread is
still blocked in an earlier request is reported at once, the others are read as usual, and it comes back by itself
when the call returns. What was read before a call blocked is in the reply. It holds no descriptor of the process that
started it: a blocked probe must not keep a lease's lock.

It must not know what a fault or a fit card is: it reports values and return codes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from holdfast.host._vendor import pynvml

from .probe_calls import CardUnreadable, ProbeThread, call, note_error
from .probe_health import drain_events, read_condition, read_health
from .processes import gather_facts

Entry = dict[str, Any]  # JSON: decoded and checked by host.gpu.inventory

LONGEST_WAIT_S = 60.0
"""However late the request's time is, a reply comes by then, so that an orphaned probe ends too."""


def read_driver(nvml: ModuleType, worker: ProbeThread) -> None:
    """Initialise NVML when it is not, then versions and the number of cards."""
    entry = worker.partial
    if not worker.identity:
        worker.mark("nvmlInitWithFlags")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            note_error(entry, "nvmlInitWithFlags", error.value, str(error))
            return
        entry["driver"] = call(nvml, worker, "nvmlSystemGetDriverVersion")
        entry["cuda"] = call(nvml, worker, "nvmlSystemGetCudaDriverVersion_v2")
        worker.identity = dict(entry)
    try:
        entry["count"] = call(nvml, worker, "nvmlDeviceGetCount")
    except CardUnreadable:
        worker.identity = {}  # the driver went away below us: initialise anew next time
        raise


def read_card(nvml: ModuleType, worker: ProbeThread) -> None:
    """Everything about one card, most important first, into the worker's entry."""
    entry, index = worker.partial, worker.index
    entry["index"] = index
    handle = call(nvml, worker, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return
    entry["uuid"] = call(nvml, worker, "nvmlDeviceGetUUID", handle)
    entry["name"] = call(nvml, worker, "nvmlDeviceGetName", handle)
    pci = call(nvml, worker, "nvmlDeviceGetPciInfo", handle)
    entry["pci"] = pci.busId if pci is not None else None
    entry["minor"] = call(nvml, worker, "nvmlDeviceGetMinorNumber", handle)
    worker.identity = {key: entry[key] for key in ("index", "uuid", "name", "pci", "minor")}
    entry["memory"] = read_memory(nvml, worker, handle)
    mig = call(nvml, worker, "nvmlDeviceGetMigMode", handle)
    entry["mig"] = mig[0] if mig is not None else 0
    entry["processes"] = read_processes(nvml, worker, handle)
    if entry["mig"]:
        entry["slices"] = read_slices(nvml, worker, handle)
    rates = call(nvml, worker, "nvmlDeviceGetUtilizationRates", handle)
    entry["utilisation"] = rates.gpu if rates is not None else None
    entry["memory_utilisation"] = rates.memory if rates is not None else None
    read_health(nvml, worker, handle)
    read_condition(nvml, worker, handle)


def read_memory(nvml: ModuleType, worker: ProbeThread, handle: object) -> list[int] | None:
    """Total, used and free bytes. `used` leaves out what the driver keeps for itself, where the driver can tell."""
    memory = call(nvml, worker, "nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2)
    if memory is None:
        memory = call(nvml, worker, "nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else [memory.total, memory.used, memory.free]


def read_processes(nvml: ModuleType, worker: ProbeThread, handle: object) -> list[list[int | None]] | None:
    """[pid, bytes or None] of every process, compute and graphics; None when the list cannot be read."""
    found: dict[int, int | None] = {}
    for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        processes = call(nvml, worker, function, handle)
        if processes is None and function.startswith("nvmlDeviceGetCompute"):
            return None
        for process in processes or ():
            found.setdefault(process.pid, process.usedGpuMemory)
    return [[pid, used] for pid, used in found.items()]


def read_slices(nvml: ModuleType, worker: ProbeThread, handle: object) -> list[Entry]:
    """The MIG instances of a card. An empty slot answers NOT_FOUND, which is no fault."""
    slices = []
    for slot in range(call(nvml, worker, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        worker.mark("nvmlDeviceGetMigDeviceHandleByIndex")
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                note_error(worker.partial, "nvmlDeviceGetMigDeviceHandleByIndex", error.value, str(error))
            continue
        attributes = call(nvml, worker, "nvmlDeviceGetAttributes", instance)
        slices.append(
            {
                "uuid": call(nvml, worker, "nvmlDeviceGetUUID", instance),
                "name": call(nvml, worker, "nvmlDeviceGetName", instance),
                "compute_slices": attributes.computeInstanceSliceCount if attributes is not None else None,
                "gpu_slices": attributes.gpuInstanceSliceCount if attributes is not None else None,
                "memory_mb": attributes.memorySizeMB if attributes is not None else None,
                "memory": read_memory(nvml, worker, instance),
                "processes": read_processes(nvml, worker, instance),
            }
        )
    return slices


def read_utilisation(nvml: ModuleType, worker: ProbeThread) -> None:
    """Utilisation alone, for sampling."""
    entry, index = worker.partial, worker.index
    handle = call(nvml, worker, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return
    entry["index"] = index
    entry["uuid"] = call(nvml, worker, "nvmlDeviceGetUUID", handle)
    rates = call(nvml, worker, "nvmlDeviceGetUtilizationRates", handle)
    entry["utilisation"] = rates.gpu if rates is not None else None


class ProbeServer:
    """Answers requests one after the other from the workers' entries."""

    def __init__(self, nvml: ModuleType) -> None:
        """`nvml` is the binding's module; nothing is loaded before the first request."""
        self._nvml = nvml
        self._results: SimpleQueue[tuple[int, ProbeThread]] = SimpleQueue()
        self._driver = ProbeThread(None, self._results)
        self._facts = ProbeThread(None, self._results)
        self._events = ProbeThread(None, self._results)
        self._cards: dict[int, ProbeThread] = {}

    def answer(self, request: Entry) -> Entry:
        """The reply to one request, by its time at the latest."""
        number = request["id"]
        until = min(float(request["until"]), time.monotonic() + LONGEST_WAIT_S)
        reply: Entry = {"id": number, "cards": [], "stuck": [], "facts": {}}
        driver = self._finish(number, {self._driver}, until, lambda worker: read_driver(self._nvml, worker), reply)
        reply.update(driver[0] if driver else {})
        count = reply.get("count") or 0
        if request["op"] == "xid_events":
            self._add_events(reply, number, until, count)
            return reply
        work = read_utilisation if request["op"] == "utilisation" else read_card
        for index in range(count):
            if index not in self._cards:
                self._cards[index] = ProbeThread(index, self._results)
        cards = {self._cards[index] for index in range(count)}
        entries = self._finish(number, cards, until, lambda worker: work(self._nvml, worker), reply)
        reply["cards"] = sorted(entries, key=lambda entry: entry.get("index", 0))
        if request["op"] == "inventory":
            self._add_facts(reply, number, until, devices=bool(request.get("devices")))
        return reply

    def _finish(
        self, number: int, workers: set[ProbeThread], until: float, work: Callable[[ProbeThread], None], reply: Entry
    ) -> list[Entry]:
        """Have all idle workers do `work`; entries of those done by then, and of the others what they found."""
        waiting = {worker for worker in workers if worker.at is None}
        for worker in waiting:
            worker.begin(number, work)
        while waiting:
            try:
                request, worker = self._results.get(timeout=max(until - time.monotonic(), 0))
            except Empty:
                break
            if request == number:
                waiting.discard(worker)
        for worker in workers:
            at = worker.at
            if at is not None:
                since = round(time.monotonic() - at[1], 3)
                reply["stuck"].append({"index": worker.index, "function": at[0], "seconds": since})
        return [dict(worker.partial, index=worker.index) for worker in workers]

    def _add_events(self, reply: Entry, number: int, until: float, count: int) -> None:
        """The Xids since the last such request. A thread of its own: a card that hangs here hides no reading."""
        found = self._finish(
            number, {self._events}, until, lambda worker: drain_events(self._nvml, worker, count), reply
        )
        entry = found[0]
        reply.update(events=list(entry.get("events") or ()), watched=list(entry.get("watched") or ()))
        reply["errors"] = [*(reply.get("errors") or ()), *(entry.get("errors") or ())]

    def _add_facts(self, reply: Entry, number: int, until: float, *, devices: bool) -> None:
        """What the process table says about every pid that a card lists. Reading /proc of a stuck process can block."""
        pids = {pid for pid, _ in all_processes(reply["cards"])}
        if pids:
            ignored: Entry = {"stuck": []}  # a process without facts is an unknown holder, which says enough

            def work(worker: ProbeThread) -> None:
                gather_facts(pids, worker.partial.setdefault("pids", {}), worker.mark, devices=devices)

            found = self._finish(number, {self._facts}, until, work, ignored)
            reply["facts"] = {pid: dict(facts) for pid, facts in dict(found[0].get("pids", {})).items()}


def all_processes(cards: list[Entry]) -> list[list[int]]:
    """Every [pid, bytes] of the cards and their slices."""
    owners = [owner for card in cards for owner in (card, *(card.get("slices") or ()))]
    return [process for owner in owners for process in owner.get("processes") or ()]


def drop_descriptors() -> int:
    """Keep only standard input and the reply pipe (moved away from 1, where a library may print); its number."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the directory's own descriptor
    replies = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    return replies


def serve_probe() -> None:
    """Answer requests until end of file, then end at once whatever still hangs."""
    replies = drop_descriptors()
    write_line(replies, {"ready": os.getpid()})

    server, pending = ProbeServer(pynvml), b""
    while chunk := os.read(0, 65536):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            write_line(replies, server.answer(json.loads(line)))
    os._exit(0)


def write_line(descriptor: int, reply: Entry) -> None:
    """One reply as a line; ends the process when nobody listens."""
    data = json.dumps(reply).encode() + b"\n"
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        os._exit(0)
