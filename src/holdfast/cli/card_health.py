"""``holdfast gpus health``: some seconds of readings of each card, judged with what the kernel and the driver said."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.model.finding import Finding, Level
from holdfast.model.gpu import InventorySource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.cards import Box
    from holdfast.diagnosis.cards.health import KernelWitness
    from holdfast.diagnosis.cards.holders import Look
    from holdfast.host.nvml import Probe
    from holdfast.model.gpu import Card, Inventory, XidEvent

FIRST_READING_S = 10.0
READING_S = 1.0
INTERVAL_S = 0.25
LOOK_WITHIN_S = 5.0
ASK_DRIVER = "read the kernel log for NVRM lines; a driver that hangs usually wants the box to be rebooted"


LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Watched:
    """Readings over a time: each card's by UUID, oldest first; `events` are Xids that the driver reported meanwhile."""

    last: Inventory
    samples: dict[str, list[Card]]
    elapsed_s: float
    events: tuple[XidEvent, ...] = ()


def parse_window(text: str) -> float:
    """Seconds to watch.

    Raises:
        UsageError: it is not a duration, or longer than an hour.
    """
    from holdfast.model.errors import UsageError
    from holdfast.model.units import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--for: {error}", hint="write it like 10s or 2m") from error
    if not seconds <= LONGEST_S:
        raise UsageError(f"--for: {text} is too long to watch", hint="an hour at most")
    return seconds


def watch_cards(window_s: float) -> Watched:
    """Read all cards every quarter of a second for `window_s` seconds, at least once."""
    from holdfast.host.gpus import read_inventory, read_xid_events
    from holdfast.host.nvml import Probe

    with Probe() as probe:
        inventory = read_inventory(FIRST_READING_S, probe=probe)
        real = inventory.source is InventorySource.NVML and bool(inventory.cards)
        if real:
            read_xid_events(probe, READING_S)
        began = time.monotonic()
        samples = {card.uuid: [card] for card in inventory.cards}
        while inventory.cards and time.monotonic() + INTERVAL_S <= began + window_s:
            time.sleep(INTERVAL_S)
            inventory = _read_once(probe, inventory, samples)
        events = read_xid_events(probe, READING_S)[0] if real else ()
        return Watched(inventory, samples, time.monotonic() - began, events)


def _read_once(probe: Probe, before: Inventory, samples: dict[str, list[Card]]) -> Inventory:
    from holdfast.host.gpus import read_inventory

    inventory = read_inventory(READING_S, probe=probe)
    for card in inventory.cards:
        # A card that is lost in between keeps the name under which its earlier readings stand.
        samples.setdefault(card.uuid, []).append(card)
    return inventory if inventory.cards else before


def watch_box(names: Sequence[str], window_s: float, *, free_only: bool) -> tuple[Watched, tuple[Finding, ...]]:
    """Watch all cards, and judge those that were asked for.

    Raises:
        UsageError: a card is named that is not there.
    """
    from holdfast.cli.cards import read_box

    box = read_box(deadline_s=FIRST_READING_S)
    wanted = {find_card(box, name) for name in names}
    marked = {place.uuid: place for place in box.places if place.part is None}
    unknown = sorted(wanted - marked.keys())
    if unknown:
        from holdfast.model.errors import UsageError

        raise UsageError(f"there is no card {unknown[0]} here", hint="holdfast gpus shows the cards")
    chosen = {
        uuid
        for uuid, place in marked.items()
        if (not wanted or uuid in wanted) and not (free_only and place.unavailable)
    }
    first = look_at_holders() if has_hidden_memory([marked[uuid].card for uuid in chosen]) else None
    watched = watch_cards(window_s)
    words = {uuid: place.card.quarantined for uuid, place in marked.items()}
    cards = [
        replace(samples[-1], quarantined=words.get(uuid, ""))
        for uuid, samples in watched.samples.items()
        if uuid in chosen
    ]
    return watched, judge_box(watched, cards, judge_hidden_memory(cards, first))


def judge_box(watched: Watched, cards: Sequence[Card], holders: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
    """Every finding about these cards, and about the box's switches."""
    from holdfast.diagnosis.cards.fabric import judge_fabric, read_fabric
    from holdfast.diagnosis.cards.health import judge_card_health
    from holdfast.host.gpu_processes import read_process_view

    witnesses = _ask(watched, cards)
    found = [
        finding
        for card in cards
        for finding in judge_card_health(
            watched.samples[card.uuid],
            watched.samples[card.uuid][0],
            card,
            witnesses.get(card.uuid),
            elapsed_s=watched.elapsed_s,
            of_a_run=False,
        )
    ]
    found += [
        Finding("gpu.quarantine", Level.WARN, f"{card.index} ({card.name})", card.quarantined, "holdfast gpus clear")
        for card in cards
        if card.quarantined
    ]
    if not watched.last.complete and not watched.samples:
        seen = f"whether there are cards is not known: {watched.last.reason}"
        found.append(Finding("gpu.driver", Level.UNKNOWN, "NVIDIA driver", seen, ASK_DRIVER))
    fabric = judge_fabric(read_fabric(sees_everyone=read_process_view().complete))
    return (*found, *holders, *(() if fabric is None else (fabric,)))


def shorten(findings: Sequence[Finding]) -> list[Finding]:
    """For people: what is not well as it is, and one line for all that is well of a card."""
    well: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.PASS:
            well.setdefault(finding.subject, []).append(finding.id.removeprefix("gpu."))
    passed = [Finding("gpu", Level.PASS, subject, f"well: {', '.join(names)}") for subject, names in well.items()]
    return [*passed, *(finding for finding in findings if finding.level is not Level.PASS)]


def _ask(watched: Watched, cards: Sequence[Card]) -> dict[str, KernelWitness]:
    from holdfast.diagnosis.cards.witness import ask_kernel

    if watched.last.source is not InventorySource.NVML:
        return {}
    from holdfast.cli.cards import open_existing_area
    from holdfast.cli.render import note
    from holdfast.core.rules import Rules
    from holdfast.host.rulesfile import read_rules
    from holdfast.model.errors import HoldfastError

    try:
        rules = read_rules(os.environ)
    except HoldfastError as error:
        note(f"{error}; Xids are judged without it")
        rules = Rules()
    try:
        area = open_existing_area(rules)
    except HoldfastError:
        area = None
    return ask_kernel(cards, area=area, heard=watched.events, overrides=rules.xids)


# --------------------------------------------------------------------------------------------- memory without an owner


def look_at_holders() -> Look | None:
    """Who of this account has a card open, read in a child that may hang; None when that could not be read."""
    from holdfast.diagnosis.cards.holders import Look, look
    from holdfast.host.offload import Offload, OffloadFailed
    from holdfast.model import wire

    try:
        return wire.decode(Look, Offload(lambda: wire.encode(look())).wait(LOOK_WITHIN_S))
    except (OffloadFailed, OSError):
        return None


def has_hidden_memory(cards: Sequence[Card]) -> bool:
    """Whether some card has memory in use that no listed process accounts for."""
    from holdfast.diagnosis.cards.holders import HIDDEN_BYTES, hidden_bytes

    return any((hidden_bytes(card) or 0) >= HIDDEN_BYTES for card in cards)


def judge_hidden_memory(cards: Sequence[Card], first: Look | None) -> tuple[Finding, ...]:
    """One finding for each card with memory in use that no listed process accounts for; takes the second look."""
    from holdfast.diagnosis.cards.holders import (
        BETWEEN_LOOKS_S,
        HIDDEN_BYTES,
        advise_candidates,
        hidden_bytes,
        judge_holders,
    )
    from holdfast.host.gpu_processes import read_process_view
    from holdfast.model.units import format_bytes

    hidden = [(card, amount) for card in cards if (amount := hidden_bytes(card) or 0) >= HIDDEN_BYTES]
    if not hidden:
        return ()
    if first is not None:
        time.sleep(max(first.at_s + BETWEEN_LOOKS_S - time.monotonic(), 0.0))
    second = look_at_holders()
    over, complete = find_over_runs(), read_process_view().complete
    found = []
    for card, amount in hidden:
        name = f"{card.index} ({card.name})"
        words = f"{format_bytes(amount)} of its memory are held by no process that the driver lists"
        if first is None or second is None:
            action = "look as root: `fuser -v /dev/nvidia*`"
            found.append(Finding("gpu.memory", Level.UNKNOWN, name, f"{words}; processes could not be read", action))
            continue
        answer = judge_holders(card, first, second, over_runs=over, sees_everyone=complete)
        if answer.value:
            listed = "; ".join(f"pid {one.pid} ({one.command}): {', '.join(one.why)}" for one in answer.value)
            found.append(Finding("gpu.memory", Level.WARN, name, f"{words}; {listed}", advise_candidates(answer.value)))
            continue
        why = answer.unread or "no process of yours comes into question"
        action = "ask whoever shares this box; in a container the holder may be outside: restart the container"
        found.append(Finding("gpu.memory", Level.WARN, name, f"{words}; {why}", action))
    return tuple(found)


def find_over_runs() -> frozenset[str]:
    """The ids of the runs of this account that are known to be over; what is not known is not over."""
    from holdfast.agent.listing import list_runs
    from holdfast.cli.runs import default_root
    from holdfast.model.errors import HoldfastError
    from holdfast.store.index import Index

    try:
        with Index() as index:
            return frozenset(row.run_id for row in list_runs(index, [default_root()]) if row.ended)
    except (HoldfastError, OSError):
        return frozenset()


# -------------------------------------------------------------------------------------------------------- naming cards


def find_card(box: Box, text: str) -> str:
    """The UUID of a card named by index or UUID; a UUID is taken as it is, since a lost card is not listed.

    Raises:
        UsageError: no card of this box has that index.
    """
    from holdfast.model.errors import UsageError

    if not (text.isascii() and text.isdigit()):
        return text
    place = next((place for place in box.places if place.index == int(text) and place.part is None), None)
    if place is not None and not place.uuid.startswith("UNREADABLE-"):
        return place.uuid
    known = ", ".join(str(place.index) for place in box.places if place.part is None) or "none"
    what = f"there is no card {text} here; the cards are: {known}" if place is None else f"card {text} tells no UUID"
    raise UsageError(what, hint="name it by its UUID; `holdfast gpus --json` shows them")
