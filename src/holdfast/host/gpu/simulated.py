"""Simulated cards: leases, queues and choices without a GPU. Always marked `InventorySource.SIMULATED`.

`HOLDFAST_SIMULATED_GPUS` is a count (``4``), a count and a memory size (``4x24GiB``), or the path of a JSON file that
is read again at each call, so that a test or a demonstration changes the box while it runs (format: docs/gpus.md).
A value that cannot be understood gives an empty, incomplete inventory with the reason, so nothing is leased by it.
Processes are looked up in the real process table like those of a real card.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast.model.gpu import (
    CLOCK_LIMITS,
    IDLE_CLOCKS,
    Card,
    GpuProcess,
    HolderKind,
    Inventory,
    InventorySource,
    MigSlice,
)
from holdfast.model.units import parse_bytes

from .processes import describe_process, gather_facts, read_process_view

Entry = Mapping[str, Any]  # a decoded JSON object

DEFAULT_MEMORY = "24GiB"
MOST_CARDS = 1024
CARD_KEYS = frozenset(
    {"index", "uuid", "name", "pci_bus_id", "memory_total", "memory_used", "utilisation_pct", "temperature_c"}
    | {"power_w", "numa_node", "throttle", "faults", "mig_slices", "processes"}
)
NUMBER_KEYS = frozenset(
    {"minor", "sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "memory_utilisation_pct"}
    | {"power_limit_w", "slowdown_c", "gpu_max_c", "clock_reasons"}
    | {"thermal_violation_ns", "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max"}
    | {"ecc_uncorrectable", "ecc_corrected", "remapped_uncorrected", "recovery_action"}
)
"""Further keys, each a number under the name of the card's field; what is not written is not known."""
OFTEN_ABSENT = frozenset({"ecc_uncorrectable", "remapped_uncorrected", "temperature_c"})
"""A simulated card of which these are not written is one that does not have them."""
SLICE_KEYS = frozenset({"uuid", "profile", "memory_total", "memory_used", "processes"})
PROCESS_KEYS = frozenset({"pid", "used", "kind", "user", "command", "run_id"})


def read_simulated(value: str) -> Inventory:
    """The inventory that a value of the variable describes. Does not raise."""
    try:
        return _build(_read_value(value))
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"key {error} is missing" if isinstance(error, KeyError) else error
        reason = f"HOLDFAST_SIMULATED_GPUS={value}: {what}; give a number, a number x size (4x24GiB) or a JSON file"
        return Inventory(InventorySource.SIMULATED, complete=False, reason=reason)


def _read_value(value: str) -> Entry:
    """The description as in a file. Raises: OSError, ValueError, TypeError."""
    count, _, size = value.strip().partition("x")
    if count.isascii() and count.isdigit():
        if int(count) > MOST_CARDS:
            raise ValueError(f"{count} cards are more than {MOST_CARDS}")
        return {"cards": [{"memory_total": size or DEFAULT_MEMORY}] * int(count)}
    if not os.path.isfile(value):
        raise ValueError("neither a number of cards nor a file")
    with open(value, encoding="utf-8") as file:
        description = json.load(file)
    if not isinstance(description, dict) or not isinstance(description.get("cards"), list):
        raise TypeError('the file is not a JSON object with a list "cards"')
    return description


def _build(description: Entry) -> Inventory:
    cards = tuple(_build_card(position, entry) for position, entry in enumerate(description["cards"]))
    names = [name for card in cards for name in (card.uuid, *(part.uuid for part in card.mig_slices))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"uuid {twice[0]} is there twice")
    return Inventory(
        InventorySource.SIMULATED,
        cards=cards,
        driver_version=description.get("driver_version"),
        cuda_version=description.get("cuda_version"),
        reason=f"{len(cards)} simulated cards, none of them real",
    )


def _check_keys(entry: Entry, known: frozenset[str], what: str) -> None:
    if not isinstance(entry, dict):
        raise TypeError(f"{what} is not a JSON object")
    unknown = sorted(set(entry) - known)
    if unknown:
        raise ValueError(f"{what} has no key {unknown[0]!r} (it has {', '.join(sorted(known))})")


def _build_card(position: int, entry: Entry) -> Card:
    _check_keys(entry, CARD_KEYS | NUMBER_KEYS, f"card {position}")
    numbers = {key: entry[key] for key in NUMBER_KEYS & set(entry)}
    numbers.setdefault("clock_reasons", _clock_reasons(entry))
    wrong = sorted(
        key for key, value in numbers.items() if isinstance(value, bool) or not isinstance(value, (int, float))
    )
    if wrong:
        raise TypeError(f"card {position}: {wrong[0]} is not a number")
    index = int(entry.get("index", position))
    total, used = parse_bytes(entry.get("memory_total", DEFAULT_MEMORY)), parse_bytes(entry.get("memory_used", 0))
    slices = tuple(_build_slice(part) for part in entry.get("mig_slices", ()))
    return Card(
        index=index,
        uuid=entry.get("uuid", f"GPU-51310000-0000-4000-8000-{index:012d}"),
        name=entry.get("name", "Simulated GPU"),
        pci_bus_id=entry.get("pci_bus_id", f"00000000:{index + 1:02X}:00.0"),
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=max(total - used, 0),
        utilisation_pct=entry.get("utilisation_pct", 0),
        temperature_c=entry.get("temperature_c"),
        power_w=entry.get("power_w"),
        numa_node=entry.get("numa_node"),
        throttle=tuple(entry.get("throttle", ())),
        faults=tuple(entry.get("faults", ())),
        mig_enabled=bool(slices),
        mig_slices=slices,
        processes=_build_processes(entry.get("processes", ())),
        unsupported=tuple(sorted(OFTEN_ABSENT - set(entry))),
        **numbers,
    )


def _clock_reasons(entry: Entry) -> int:
    """The bits of the named reasons; a simulated card at rest has idle clocks, as a real one has."""
    bits = sum(bit for bit, name in CLOCK_LIMITS.items() if name in entry.get("throttle", ()))
    return bits if entry.get("utilisation_pct", 0) else bits | IDLE_CLOCKS


def _build_slice(entry: Entry) -> MigSlice:
    _check_keys(entry, SLICE_KEYS, "a MIG slice")
    return MigSlice(
        uuid=entry["uuid"],
        profile=entry.get("profile", "1g.10gb"),
        memory_total_bytes=parse_bytes(entry.get("memory_total", "10GiB")),
        memory_used_bytes=parse_bytes(entry.get("memory_used", 0)),
        processes=_build_processes(entry.get("processes", ())),
    )


def _build_processes(entries: list[Entry]) -> tuple[GpuProcess, ...]:
    """Processes of a card; one that names its `kind` is taken as written, the others are looked up."""
    found: list[GpuProcess] = []
    facts: dict[Any, Any] = {}
    view = read_process_view()
    for entry in entries:
        _check_keys(entry, PROCESS_KEYS, "a process")
    gather_facts([int(entry["pid"]) for entry in entries if "kind" not in entry], facts, lambda _: None, devices=False)
    for entry in entries:
        pid, used = int(entry["pid"]), parse_bytes(entry["used"]) if "used" in entry else None
        if "kind" in entry:
            kind = HolderKind(entry["kind"])
            names = {key: entry.get(key) for key in ("user", "command", "run_id")}
            found.append(GpuProcess(pid, kind, used_bytes=used, **names))
        else:
            found.append(describe_process(pid, used, facts.get(pid), view))
    return tuple(found)
