"""The ladder of a vanished or failed run: every detector, in the order in which equal certainty decides.

What is written down comes first, then what the box counted, then what a signal says, then the job's words; what is left
over is a kill from outside. The ids are those of docs/diagnosis.md.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.diagnosis.ended.evidence import EndedEvidence
from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.logs.survived import speaks_of_ranks, went_on_after
from holdfast.diagnosis.remedies import describe_lone_connection
from holdfast.model.gpu import shorten_pci
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.verdict import Clue, Confidence, FailureClass

from . import finish, hardware, limits, memory, recorded, storage, vanished
from .answers import skipped

LADDER: dict[str, Callable[[EndedEvidence], Detection] | None] = {
    "A1": recorded.judge_refusal,
    "A2": recorded.judge_request,
    "A6": recorded.judge_lease,
    "A8": recorded.judge_copy,
    "V7": vanished.judge_reboot,
    "V7C": vanished.judge_container,
    "V1": memory.judge_group_oom,
    "V2": memory.judge_host_oom,
    "V3": memory.judge_daemons,
    "G1": hardware.judge_cards,
    "V8": vanished.judge_hang_up,
    "A3": recorded.judge_left,
    "V10": vanished.judge_scheduler,
    "V4": limits.judge_rlimits,
    "V5": memory.judge_shared_memory,
    "D2": storage.judge_inodes,
    "D3": storage.judge_quota,
    "D1": storage.judge_bytes,
    "D5": storage.judge_checkpoint,
    "D4": storage.judge_fault,
    "V6": memory.judge_card_memory,
    "C1": finish.judge_divergence,
    "WORDS": None,
    "G1J": hardware.judge_job_errors,
    "V11": vanished.judge_crash,
    "A7": recorded.judge_setup,
    "A4": recorded.judge_exec,
    "V12": finish.judge_exception,
    "A5": recorded.judge_results,
    "V13": finish.judge_finish,
    "V14": vanished.judge_supervisor,
    "V9": vanished.judge_kill,
}
"""Detector by id, best first. ``WORDS`` is the place of what the output says of classes without a detector here."""
INTERRUPT, ABORT, KILL, TERM = 2, 6, 9, 15
FROM_OUTSIDE = frozenset({INTERRUPT, KILL, TERM})
"""Signals that a program's own fault does not cause."""
SENDERS = frozenset(
    {FailureClass.HANG_UP, FailureClass.PREEMPTED, FailureClass.TIMED_OUT, FailureClass.KILLED, FailureClass.STOPPED}
)
"""Classes whose words tell of who ends jobs by signals."""
COUNTED_ELSEWHERE = frozenset({"log.ram.slurm", "log.ram.kubernetes", "log.ram.limit"})
OF_WORKER = "log.worker.killed"
_BY_KILL = compile_later(r"killed by signal: Killed|Killed signal terminated")
"""Who waited for a worker says how it ended. A pool that only lost one does not: it may have crashed."""
_OF_POOL = compile_later(r"\bBrokenProcessPool\b")
WRITTEN_DOWN = frozenset({"A1", "A2"})
"""Detectors that apply to a job that never ran."""


def detect(evidence: EndedEvidence) -> tuple[Detection, ...]:
    """The answers of all detectors, in the order of the ladder; of a job that never ran, only what was written down."""
    evidence = replace(evidence, words=tuple(_weigh_words(item, evidence) for item in evidence.words))
    found: list[Detection] = []
    for name, detector in LADDER.items():
        answers = _read_words(evidence) if detector is None else (detector(evidence),)
        found += answers if evidence.ran or name in WRITTEN_DOWN else map(_drop, answers)
    return tuple(found)


def _read_words(evidence: EndedEvidence) -> tuple[Detection, ...]:
    """What the output says, but for the job's own exceptions: those are V12's."""
    return tuple(item for item in evidence.words if item.kind is not FailureClass.BUG)


def _weigh_words(words: Detection, evidence: EndedEvidence) -> Detection:
    """What the output says, as a possibility only where the end itself speaks against it.

    A signal from outside ends a job whatever it had said, if it went on after that; and a kill for lack of memory that
    no counter of its group saw is a word without a witness (FAIL-14).
    """
    if words.kind is FailureClass.HARDWARE and (other := _find_other_card(words, evidence)):
        against = Clue(f"{other} is none of the run's cards", "manifest.json")
        return replace(words, confidence=Confidence.POSSIBLE, evidence_against=(*words.evidence_against, against))
    if words.kind is FailureClass.RESOURCE_LIMIT:
        words = limits.explain_limit(words, evidence)
    if words.kind is FailureClass.COMMUNICATION:
        words = _explain_connection(words, evidence)
    uncounted = words.kind is FailureClass.OUT_OF_MEMORY and evidence.own_kills.known and not evidence.own_kills.value
    # A scheduler counts in a group of its own, which is not the run's.
    uncounted = uncounted and words.detector not in COUNTED_ELSEWHERE
    number = evidence.signal
    if words.kind is FailureClass.OUT_OF_MEMORY and words.detector not in COUNTED_ELSEWHERE:
        words = _explain_memory(words, evidence, refused=uncounted and number in (None, ABORT))
    if words.answer is not Answer.YES or number not in FROM_OUTSIDE or words.kind in SENDERS:
        return words
    log = evidence.log.value
    survived = log is not None and went_on_after(log, words.facts.get("line", ""))
    return replace(words, confidence=Confidence.POSSIBLE) if survived or (uncounted and number == KILL) else words


def _explain_connection(words: Detection, evidence: EndedEvidence) -> Detection:
    """What to do about a connection of a job without a sign of ranks: there is none that failed first."""
    log = evidence.log.value
    if evidence.ranks or log is None or "remedy" in words.facts or speaks_of_ranks(log):
        return words
    run = f" {evidence.run_id}" if evidence.run_id else ""
    return replace(
        words, facts={**words.facts, "remedy": describe_lone_connection(run, checkpoint=evidence.checkpoint)}
    )


def _explain_memory(words: Detection, evidence: EndedEvidence, *, refused: bool) -> Detection:
    """Words of a lack of memory with what to do; of a worker that SIGKILL ended and no counter saw, who killed it."""
    more = {"less": memory.describe_less(evidence), "more": memory.describe_more(evidence)}
    if words.detector == OF_WORKER and memory.saw_no_kill(evidence):
        if _BY_KILL.search(words.facts.get("line", "")):
            return vanished.blame_sender(words, evidence)
        told = memory.explain_worker(evidence)
        if _OF_POOL.search(words.facts.get("line", "")) and "less" in told:
            return vanished.leave_open(words, evidence, told)
        more |= told
    elif refused:
        more |= memory.explain_uncounted(evidence)
    return replace(words, facts={**words.facts, **more})


def _find_other_card(words: Detection, evidence: EndedEvidence) -> str:
    """The address that a line of the kernel or the driver names, when it is no card of the run."""
    named = words.facts.get("bus") or words.facts.get("pci") or ""
    buses = {shorten_pci(str(card.get("pci_bus_id") or "")) for card in evidence.cards_before}
    # Where a card's own address is not known the line may mean that card.
    return named if named and buses and not buses & {"", shorten_pci(named)} else ""


def _drop(detection: Detection) -> Detection:
    return skipped(detection.detector, detection.kind)
