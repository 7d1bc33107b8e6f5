"""What `holdfast gpus` says of the cards of a box: a row for each, the reasons below it, the line in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.render import clean, note, pairs, table
from holdfast.model.gpu import HolderKind, InventorySource
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from holdfast.cli.cards import Box, Place

NEEDS_ADVICE = frozenset({HolderKind.OTHER_NAMESPACE, HolderKind.GHOST, HolderKind.UNKNOWN})
"""Holders about whom somebody who sees only this box would do the wrong thing."""
MOST_WARNINGS = MOST_WAITING = 20
"""Anybody can put files into the lease area; so many are told of one by one."""


def print_box(box: Box) -> None:
    """Every card as a row, then what is to be said of each, and the line."""
    inventory = box.inventory
    simulated = inventory.source is InventorySource.SIMULATED
    if simulated:
        print("SIMULATED cards (HOLDFAST_SIMULATED_GPUS): no hardware behind them")
    for warning in box.warnings[:MOST_WARNINGS]:
        note(warning)
    if len(box.warnings) > MOST_WARNINGS:
        note(f"{len(box.warnings) - MOST_WARNINGS} more like these; --json lists them all")
    if not box.places:
        words = "no cards" if inventory.complete else "whether there are cards could not be read"
        print(f"{words}: {inventory.reason or 'none were found'}")
        return
    if not inventory.complete:
        note(f"this reading is incomplete: {inventory.reason}")
    headers = ["card", "name", "lessee", "since", "run", "memory", "use", "available"]
    table(headers, [_line(place) for place in box.places])
    for place in box.places:
        details = _details(place)
        if details:
            print(f"card {_title(place)}:")
            pairs(details, indent=2)
    for position, ticket in enumerate(box.waiting[:MOST_WAITING], start=1):
        wanted = f"{ticket.count} of {len(ticket.candidates)} cards"
        print(clean(f"in line {position}: {ticket.user}, run {ticket.run_id}, {wanted}"))
    if len(box.waiting) > MOST_WAITING:
        note(f"{len(box.waiting) - MOST_WAITING} more wait; --json lists them all")


def _title(place: Place) -> str:
    mark = " (simulated)" if place.simulated else ""
    return f"{place.index}{f' slice {place.uuid}' if place.part is not None else ''}{mark}"


def _line(place: Place) -> tuple[object, ...]:
    used, total = place.memory
    memory = "unknown" if used is None or total is None else f"{format_bytes(used)} / {format_bytes(total)}"
    utilisation = place.card.utilisation_pct
    lease = place.lease
    mark = " (simulated)" if place.simulated else ""
    return (
        f"{place.index}{'/' + place.uuid if place.part is not None else ''}",
        place.name + (mark if "simulated" not in place.name.lower() else ""),
        f"{lease.user}{f' +{len(place.sharing)} sharing' if place.sharing else ''}"
        if lease
        else _foreign_holder(place),
        lease.since[:19] + "Z" if lease else next((busy.since for busy in place.busy if busy.since), None),
        lease.run_id if lease else None,
        memory,
        None if utilisation is None else f"{utilisation} %",
        "yes" if not place.unavailable else "no",
    )


def _foreign_holder(place: Place) -> str | None:
    return place.busy[0].holder if place.busy else None


def _details(place: Place) -> list[tuple[str, str]]:
    from holdfast.cli.cards import describe_process

    found = [("not available", reason) for reason in place.unavailable]
    for lease in (place.lease, *place.sharing) if place.lease is not None else ():
        phase = f"phase {lease.phase.value}, supervisor pid {lease.supervisor.pid}"
        who = f"shared by {lease.user}, run {lease.run_id}: " if lease.share else ""
        ends = f", until {lease.until[:19]}Z at the latest" if lease.until else ""
        found.append(("runs", f"{who}{lease.command or 'command not recorded'} ({phase}{ends})"))
    if place.sharers:
        from holdfast.core.packing import say_sharer

        found += [("memory", say_sharer(sharer)) for sharer in place.sharers]
    for process in place.processes:
        found.append(("process", describe_process(process)))
        if process.kind in NEEDS_ADVICE:
            from holdfast.diagnosis.cards.holders import advise

            found.append(("to do", f"about pid {process.pid}: {advise(process, own=False)}"))
    if place.part is None:
        found += [("fault", fault) for fault in place.card.faults]
        found += [("throttled", reason) for reason in place.card.throttle]
    return found


def encode_box(box: Box) -> dict[str, object]:
    """The JSON object of ``gpus --json``."""
    return {
        "source": box.inventory.source,
        "simulated": box.inventory.source is InventorySource.SIMULATED,
        "complete": box.inventory.complete,
        "reason": box.inventory.reason,
        "driver_version": box.inventory.driver_version,
        "cuda_version": box.inventory.cuda_version,
        "lease_directories": box.area,
        "cards": [
            {
                "index": place.index,
                "uuid": place.uuid,
                "name": place.name,
                "simulated": place.simulated,
                "slice": place.part is not None,
                "available": not place.unavailable,
                "unavailable": place.unavailable,
                "lease": place.lease,
                "sharing": place.sharing,
                "sharers": place.sharers,
                "busy": place.busy,
                "memory_used_bytes": place.memory[0],
                "memory_total_bytes": place.memory[1],
                "processes": place.processes,
                "card": place.card,
            }
            for place in box.places
        ],
        "waiting": box.waiting,
        "warnings": box.warnings,
    }
