"""Builds the four answers that every detector gives from evidence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.model.verdict import Clue, Confidence, FailureClass, LiveClass

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence


def yes(
    detector: str,
    kind: FailureClass,
    confidence: Confidence,
    *evidence: Clue,
    against: tuple[Clue, ...] = (),
    unknown: tuple[Clue, ...] = (),
    gotchas: tuple[str, ...] = (),
    facts: dict[str, str] | None = None,
) -> Detection:
    """It is so, as sure as `confidence` says."""
    return Detection(detector, kind, Answer.YES, confidence, evidence, against, unknown, gotchas, facts or {})


def no(detector: str, kind: FailureClass, *against: Clue) -> Detection:
    """It was looked at, and it is not so."""
    return Detection(detector, kind, Answer.NO, evidence_against=against)


def unread(detector: str, kind: FailureClass, *unknown: Clue) -> Detection:
    """What it rests on could not be read: this is not a no."""
    return Detection(detector, kind, Answer.UNKNOWN, unknown=unknown)


def skipped(detector: str, kind: FailureClass | LiveClass) -> Detection:
    """It cannot be so for an end of this kind."""
    return Detection(detector, kind, Answer.NOT_APPLICABLE)


def find_words(evidence: EndedEvidence, kind: FailureClass) -> Detection | None:
    """What the job's output says for a class, if it does."""
    return next((item for item in evidence.words if item.kind is kind and item.answer is Answer.YES), None)


def unread_log(evidence: EndedEvidence) -> tuple[Clue, ...]:
    """That the output could not be read, when it could not."""
    return () if evidence.log.known else (Clue(f"its output: {evidence.log.unread}", "output.log"),)


def weigh(words: Detection | None, *, proven: bool) -> Confidence:
    """How sure words are, with or without a witness of another kind: one step surer with it."""
    if words is None or words.confidence is Confidence.POSSIBLE:
        return Confidence.LIKELY if proven else Confidence.POSSIBLE
    return Confidence.CERTAIN if proven else Confidence.LIKELY
