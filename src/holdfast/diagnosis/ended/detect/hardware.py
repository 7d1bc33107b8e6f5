"""Detectors of card faults, from the kernel log and the cards' counters during the run (G1). Pure.

Only this boot, this run's cards, and what is newer than the launch counts (GPUH-03). A kernel log that could not be
read leaves the answer open (GPUH-04).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import Answer, Detection, KernelKind
from holdfast.diagnosis.kernel.xids import judge_xids, merge_events
from holdfast.model.gpu import shorten_pci
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, skipped, unread, yes

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence

HARDWARE = FailureClass.HARDWARE
MOST_CLUES = 4
NO_FAULT = frozenset({"unreadable", "unresponsive"})
"""What says that a card was not read, not that it failed."""


def judge_cards(evidence: EndedEvidence) -> Detection:
    """G1: a card of the run failed while it ran."""
    if not evidence.cards_before or not evidence.ran:
        return skipped("G1", HARDWARE)
    xids = [item for item in _judge_log(evidence) if item.answer is Answer.YES and item.kind is HARDWARE]
    faults = _new_faults(evidence)
    words = find_words(evidence, HARDWARE)
    said = list(words.evidence_for) if words is not None else []
    if xids or faults:
        clues = [clue for item in xids for clue in item.evidence_for] + [clue for clue, _ in faults]
        named = [uuid for _, uuid in faults] + [_name_card(item.facts.get("card", ""), evidence) for item in xids]
        cards = list(dict.fromkeys(named))
        facts = {"card": cards[0], "cards": " ".join(card for card in cards if " " not in card)}
        sure = Confidence.CERTAIN if faults else xids[0].confidence
        return yes("G1", HARDWARE, sure, *clues[:MOST_CLUES], *said, gotchas=("U22",), facts=facts)
    unknown = []
    if evidence.kernel_unread:
        unknown.append(Clue(f"Xid lines of the kernel log: {evidence.kernel_unread}", "kernel log"))
    if evidence.cards_unread:
        unknown.append(Clue(evidence.cards_unread, "NVML"))
    if words is not None:
        # The words of a log without the driver's own: it was asked, and did not answer.
        sure = Confidence.POSSIBLE if evidence.cards_unread else words.confidence
        return yes("G1", HARDWARE, sure, *said, unknown=tuple(unknown), gotchas=("U22",))
    if unknown:
        return unread("G1", HARDWARE, *unknown)
    return no("G1", HARDWARE, Clue("its cards report no new fault, and the kernel log none of them", "NVML"))


def judge_job_errors(evidence: EndedEvidence) -> Detection:
    """G1J: the driver reported an error of the job's own kind (a bad address, a bad instruction) on its card."""
    found = [item for item in _judge_log(evidence) if item.answer is Answer.YES and item.kind is FailureClass.BUG]
    if not evidence.cards_before or not evidence.ran:
        return skipped("G1J", FailureClass.BUG)
    if found:
        return yes("G1J", FailureClass.BUG, found[0].confidence, *found[0].evidence_for)
    if evidence.kernel_unread:
        return unread("G1J", FailureClass.BUG, Clue(f"Xid lines of the kernel log: {evidence.kernel_unread}"))
    return no("G1J", FailureClass.BUG)


def _judge_log(evidence: EndedEvidence) -> tuple[Detection, ...]:
    """What the Xid table makes of the lines about the run's cards; cards without an address are not claimed."""
    buses = [str(card["pci_bus_id"]) for card in evidence.cards_before if card.get("pci_bus_id")]
    logged = evidence.find_kernel_events(KernelKind.XID, KernelKind.CARD_LOST)
    if not buses or not (logged or evidence.heard):
        return ()

    events = merge_events(logged, evidence.heard)
    since_s = evidence.kernel_from_s or 0.0
    return judge_xids(events, pci=buses, since_seconds=since_s, overrides=evidence.xid_severities)


def _name_card(pci: str, evidence: EndedEvidence) -> str:
    """The card's UUID by its address; the address where no card has it."""
    cards = [card for card in evidence.cards_before if shorten_pci(str(card.get("pci_bus_id") or "")) == pci]
    return str(cards[0].get("uuid")) if cards else pci or "the card"


def _new_faults(evidence: EndedEvidence) -> list[tuple[Clue, str]]:
    """Faults that a card reports at the end and did not report at launch, with the card's UUID."""
    before = {str(card.get("uuid")): card for card in evidence.cards_before}
    found: list[tuple[Clue, str]] = []
    for card in evidence.cards:
        uuid = str(card.get("uuid"))
        old = before.get(uuid, {})
        known = {str(fault).partition(":")[0] for fault in old.get("faults") or ()} | NO_FAULT
        new = [fault for fault in card.get("faults") or () if str(fault).partition(":")[0] not in known]
        found += [(Clue(f"card {card.get('index')}: {fault}", "NVML"), uuid) for fault in new]
        first, last = old.get("ecc_uncorrectable"), card.get("ecc_uncorrectable")
        if isinstance(first, int) and isinstance(last, int) and last > first and not found:
            words = f"card {card.get('index')}: {last - first} new uncorrectable memory errors"
            found.append((Clue(words, "NVML"), uuid))
    return found
