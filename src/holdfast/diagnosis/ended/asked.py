"""Ends that somebody has written down: refused, asked to stop, left by itself, promises not kept (A1 to A6). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.leaving import describe_leaving, judge_leaving
from ...core.outcome import MISMATCH_FINDING
from ...model.finding import Level
from ...model.run import Outcome, StopCause
from ...model.verdict import Clue, Confidence, FailureClass
from .answers import find_words, no, skipped, yes

if TYPE_CHECKING:
    from ..evidence import Detection
    from .evidence import EndedEvidence

_CAUSES = {
    StopCause.OPERATOR: FailureClass.STOPPED,
    StopCause.SIGNAL: FailureClass.STOPPED,
    StopCause.PREEMPTION: FailureClass.PREEMPTED,
    StopCause.DEADLINE: FailureClass.TIMED_OUT,
    StopCause.MAX_HOLD: FailureClass.TIMED_OUT,
    StopCause.DISK_FULL: FailureClass.DISK_FULL,
    StopCause.LEASE_MISMATCH: FailureClass.LEASE_MISMATCH,
    StopCause.MEMORY: FailureClass.OUT_OF_MEMORY,
}
_LIMITS = {StopCause.DEADLINE: "timeout", StopCause.MAX_HOLD: "the rules' longest hold of cards"}
_LEFT = {
    "signal": FailureClass.PREEMPTED,
    "deadline": FailureClass.TIMED_OUT,
    "operator": FailureClass.STOPPED,
    "user": FailureClass.STOPPED,
    "memory": FailureClass.OUT_OF_MEMORY,
    "nonfinite": FailureClass.DIVERGED,
    "save_failed": FailureClass.STORAGE_FAULT,
}
NOT_FOUND = (126, 127)
"""What shells and `env` say for a command that cannot be run, or is not there. Source: POSIX, 2.8.2 Exit Status."""


def judge_refusal(evidence: EndedEvidence) -> Detection:
    """A1: it never ran, because a check failed or the cards are taken."""
    refusal = evidence.ended.refusal
    if refusal is None:
        return no("A1", FailureClass.REFUSED)
    clues = [Clue(refusal.message, "state.json")]
    clues += [Clue(f"{item.id} {item.subject}: {item.evidence}", "preflight.json") for item in refusal.findings]
    clues += [Clue(f"{busy.device}: {busy.holder}", "leases") for busy in refusal.busy]
    facts = {"action": refusal.hint} if refusal.hint else {}
    kind = FailureClass.EXEC_FAILED if refusal.code == "exec" else FailureClass.REFUSED
    if evidence.ended.outcome is Outcome.TIMED_OUT:
        kind = FailureClass.TIMED_OUT
    return yes("A1", kind, Confidence.CERTAIN, *clues, facts=facts)


def judge_request(evidence: EndedEvidence) -> Detection:
    """A2: holdfast itself ended it, because somebody or a limit asked."""
    request = evidence.ended.request
    if request is None:
        return no(
            "A2", FailureClass.STOPPED, Clue("holdfast was not asked to end it, and sent it no signal", "state.json")
        )
    kind = find_request_class(request.cause)
    detail = f" ({request.detail})" if request.detail else ""
    facts = {"limit": _LIMITS[request.cause]} if request.cause in _LIMITS else {}
    return yes("A2", kind, Confidence.CERTAIN, Clue(f"{request.words}{detail}", "state.json"), facts=facts)


def find_request_class(cause: StopCause) -> FailureClass:
    """The class of an end that was asked for; a cause that is new here counts by its name, else as stopped."""
    known = _CAUSES.get(cause)
    if known is not None:
        return known
    return next((kind for kind in FailureClass if kind.value == cause.value), FailureClass.STOPPED)


def judge_left(evidence: EndedEvidence) -> Detection:
    """A3: the training library wrote why it left, and its exit status agrees."""
    stop = evidence.ended.stop
    if stop is None or evidence.ended.request is not None:
        return skipped("A3", FailureClass.STOPPED)
    kind = _LEFT.get(stop.why)
    if kind is None or judge_leaving(stop, evidence.ended.status) is None:
        return no("A3", FailureClass.STOPPED, Clue(f"it wrote before: {describe_leaving(stop)}", "stop.json"))
    if stop.why == "signal" and "HUP" in stop.detail:
        kind = FailureClass.HANG_UP
    if stop.why == "save_failed" and find_words(evidence, FailureClass.DISK_FULL) is not None:
        kind = FailureClass.DISK_FULL
    return yes("A3", kind, Confidence.CERTAIN, Clue(describe_leaving(stop), "stop.json"))


def judge_exec(evidence: EndedEvidence) -> Detection:
    """A4: the command could not be run."""
    if evidence.code not in NOT_FOUND:
        return no("A4", FailureClass.EXEC_FAILED)
    words = find_words(evidence, FailureClass.EXEC_FAILED)
    clue = Clue(f"exit code {evidence.code}: a command that is not there or cannot be executed", "status.json")
    confidence = Confidence.CERTAIN if words is not None else Confidence.LIKELY
    return yes("A4", FailureClass.EXEC_FAILED, confidence, clue)


def judge_results(evidence: EndedEvidence) -> Detection:
    """A5: exit code 0, and a declared result is not there."""
    if evidence.code != 0:
        return skipped("A5", FailureClass.RESULT_MISSING)
    missing = [item for item in evidence.findings if item.level is Level.FAIL and item.id != MISMATCH_FINDING]
    if evidence.ended.outcome is not Outcome.FAILED and not missing:
        return no("A5", FailureClass.RESULT_MISSING)
    clues = tuple(Clue(f"{item.id} {item.subject}: {item.evidence}", "postflight.json") for item in missing)
    return yes("A5", FailureClass.RESULT_MISSING, Confidence.CERTAIN, *clues)


def judge_lease(evidence: EndedEvidence) -> Detection:
    """A6: a login file gave the job other cards than were leased."""
    found = [item for item in evidence.findings if item.id == MISMATCH_FINDING and item.level is Level.FAIL]
    if not found:
        return no("A6", FailureClass.LEASE_MISMATCH)
    return yes("A6", FailureClass.LEASE_MISMATCH, Confidence.CERTAIN, Clue(found[0].evidence, "postflight.json"))
