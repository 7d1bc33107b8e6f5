"""What the job itself did: its own exception, a finish too early, values that were not finite (V12, V13, C1). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.finding import Level
from ...model.run import Outcome
from ...model.units import format_duration
from ...model.verdict import Clue, Confidence, FailureClass
from ..evidence import Answer
from .answers import find_words, no, skipped, unread, unread_log, yes

if TYPE_CHECKING:
    from ..evidence import Detection
    from .evidence import EndedEvidence

FAST_SHARE = 0.5
"""A finish in less than this part of the expected time is flagged (POST-06)."""
NONFINITE_LEAST = 3
"""Mixed precision skips a step with an infinite value now and then; three are no accident."""


def judge_exception(evidence: EndedEvidence) -> Detection:
    """V12: an exception of the job's own code, unless its words are of a class of their own."""
    if evidence.code in (None, 0) and evidence.witnessed:
        return skipped("V12", FailureClass.BUG)
    words = find_words(evidence, FailureClass.BUG)
    named = [
        item
        for item in evidence.words
        if item.answer is Answer.YES
        and item.kind is not FailureClass.BUG
        and item.confidence is not Confidence.POSSIBLE
    ]
    if words is not None and not named:
        facts = dict(words.facts)
        return yes("V12", FailureClass.BUG, words.confidence, *words.evidence_for, gotchas=words.gotchas, facts=facts)
    if evidence.exception and not named:
        return yes("V12", FailureClass.BUG, Confidence.LIKELY, Clue(evidence.exception, "traceback"))
    if not evidence.log.known:
        return unread("V12", FailureClass.BUG, *unread_log(evidence))
    return no("V12", FailureClass.BUG, *(() if named else (Clue("no traceback of its own", "output.log"),)))


def judge_finish(evidence: EndedEvidence) -> Detection:
    """V13: it said 0, and was done sooner than planned, or without its last step."""
    if evidence.code != 0 or not evidence.ran:
        return skipped("V13", FailureClass.SUSPICIOUS_FINISH)
    clues = [
        Clue(item.evidence, "postflight.json")
        for item in evidence.findings
        if item.id == "duration" and item.level is Level.WARN
    ]
    took, expected = evidence.duration_s, evidence.expected_s
    if not clues and took is not None and expected and took < FAST_SHARE * expected:
        clues.append(Clue(f"took {format_duration(took)}, expected {format_duration(expected)}", "status.json"))
    step, planned = evidence.heartbeat.get("step"), evidence.heartbeat.get("planned_steps")
    counted = isinstance(step, (int, float)) and isinstance(planned, (int, float))
    if counted and step < planned:  # type: ignore[operator]  # counted says numbers
        clues.append(Clue(f"its last heartbeat was of step {step} of {planned}", "heartbeat.json"))
    if clues:
        return yes("V13", FailureClass.SUSPICIOUS_FINISH, Confidence.LIKELY, *clues)
    if not counted and expected is None:
        return skipped("V13", FailureClass.SUSPICIOUS_FINISH)
    return no("V13", FailureClass.SUSPICIOUS_FINISH, Clue("it took as long as expected, or did its last step"))


def judge_divergence(evidence: EndedEvidence) -> Detection:
    """C1: the loss or a gradient was not finite, again and again."""
    if not evidence.ran:
        return skipped("C1", FailureClass.DIVERGED)
    count = evidence.heartbeat.get("nonfinite")
    words = find_words(evidence, FailureClass.DIVERGED)
    clues = list(words.evidence_for) if words is not None else []
    if isinstance(count, int) and count >= NONFINITE_LEAST:
        clues.insert(0, Clue(f"{count} values were not finite", "heartbeat.json"))
        return yes("C1", FailureClass.DIVERGED, Confidence.LIKELY, *clues)
    if words is not None:
        sure = Confidence.POSSIBLE if evidence.ended.outcome is Outcome.SUCCEEDED else words.confidence
        return yes("C1", FailureClass.DIVERGED, sure, *clues)
    if not evidence.log.known and count is None:
        return unread("C1", FailureClass.DIVERGED, *unread_log(evidence))
    return no("C1", FailureClass.DIVERGED)
