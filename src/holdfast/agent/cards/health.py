"""How well each card is: some seconds of readings, judged with what the kernel and the driver said."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from holdfast.core.rules.rules import Rules
from holdfast.diagnosis.cards.fabric import judge_fabric, read_fabric
from holdfast.diagnosis.cards.health import KernelWitness, judge_card_health
from holdfast.diagnosis.cards.witness import ask_kernel
from holdfast.host.files.rules_file import read_rules
from holdfast.host.gpu.processes import read_process_view
from holdfast.host.lease.area import open_existing_area
from holdfast.model.errors import HoldfastError, NoSuchName, PlaceError, PreflightFailed
from holdfast.model.finding import Finding, Level, worst
from holdfast.model.gpu import Card, InventorySource
from holdfast.model.record import record, replace

from .box import check_all_read, find_card, read_box
from .hidden_memory import has_hidden_memory, judge_hidden_memory, look_at_holders
from .watch import FIRST_READING_S, CardReadings, watch_cards

ASK_DRIVER = "read the kernel log for NVRM lines; a driver that hangs usually wants the box to be rebooted"


@record
class CardHealthReport:
    """How well the cards are that were asked for. `notes` say what the judgement had to do without.

    `readings` is how often the card was read that was read most; `reason` says why there is no card, or, not
    `complete`, why some card may be missing. `exit_code` is 78 when something failed, 69 when no card could be read.
    """

    simulated: bool
    complete: bool
    reason: str | None
    seconds: float
    readings: int
    level: Level
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    exit_code: int


def judge_health(names: Sequence[str], window_s: float, *, free_only: bool) -> CardHealthReport:
    """Watch all cards for `window_s` seconds, and judge those that were asked for (all without a name).

    Raises:
        NoSuchName: a card is named that is not there.
        PlaceError: whether it is there could not be read.
    """
    watched, findings, notes = _watch_box(names, window_s, free_only=free_only)
    level = worst(findings)
    return CardHealthReport(
        simulated=watched.last.source is InventorySource.SIMULATED,
        complete=watched.last.complete,
        reason=watched.last.reason,
        seconds=round(watched.elapsed_s, 3),
        readings=max((len(samples) for samples in watched.samples.values()), default=0),
        level=level,
        findings=findings,
        notes=notes,
        exit_code=_find_exit_code(level, read=watched.last.complete or bool(watched.samples)),
    )


def _find_exit_code(level: Level, *, read: bool) -> int:
    if level is Level.FAIL:
        return PreflightFailed.exit_code
    return 0 if read else PlaceError.exit_code


def _watch_box(
    names: Sequence[str], window_s: float, *, free_only: bool
) -> tuple[CardReadings, tuple[Finding, ...], tuple[str, ...]]:
    """Watch all cards, and judge those that were asked for.

    Raises:
        NoSuchName: a card is named that is not there.
        PlaceError: whether it is there could not be read.
    """
    box = read_box(deadline_s=FIRST_READING_S)
    wanted = {find_card(box, name) for name in names}
    marked = {place.uuid: place for place in box.places if place.part is None}
    unknown = sorted(wanted - marked.keys())
    if unknown:
        check_all_read(box, unknown[0])
        raise NoSuchName(f"there is no card {unknown[0]} here", hint="holdfast gpus shows the cards")
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
    hidden = judge_hidden_memory(cards, first)
    witnesses, notes = ask_witnesses(watched, cards)
    return watched, judge_box(watched, cards, hidden, witnesses), notes


def judge_box(
    watched: CardReadings,
    cards: Sequence[Card],
    holders: tuple[Finding, ...] = (),
    witnesses: Mapping[str, KernelWitness] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """Every finding about these cards, and about the box's switches."""
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
        Finding(
            "gpu.quarantine",
            Level.WARN,
            f"{card.index} ({card.name})",
            card.quarantined,
            f"holdfast gpus clear {card.index}",
        )
        for card in cards
        if card.quarantined
    ]
    if not watched.last.complete and not watched.samples:
        seen = f"whether there are cards is not known: {watched.last.reason}"
        found.append(Finding("gpu.driver", Level.UNKNOWN, "NVIDIA driver", seen, ASK_DRIVER))
    fabric = judge_fabric(read_fabric(sees_everyone=read_process_view().complete))
    return (*found, *holders, *(() if fabric is None else (fabric,)))


def ask_witnesses(watched: CardReadings, cards: Sequence[Card]) -> tuple[dict[str, KernelWitness], tuple[str, ...]]:
    """What the kernel's log says of each card, and what had to be left out."""
    if watched.last.source is not InventorySource.NVML:
        return {}, ()
    notes: tuple[str, ...] = ()
    try:
        rules = read_rules(os.environ)
    except HoldfastError as error:
        notes = (f"{error}; Xids are judged without it",)
        rules = Rules()
    try:
        area = open_existing_area(rules)
    except HoldfastError:
        area = None
    return ask_kernel(cards, area=area, heard=watched.events, overrides=rules.xids), notes
