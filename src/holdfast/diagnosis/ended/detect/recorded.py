"""Detectors of recorded ends: refused, asked to stop, left by itself, missing results (A1 to A7). Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.core.job.setup import FAILED
from holdfast.core.run.outcome import COPY_FINDING, MISMATCH_FINDING, WITNESSED
from holdfast.core.run.stop_record import PLACE_END, describe_leaving, judge_leaving
from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.model.finding import Level
from holdfast.model.run import Outcome, StopCause
from holdfast.model.verdict import Clue, Confidence, FailureClass
from holdfast.model.wire import GONE

from .answers import find_words, no, skipped, yes

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence
    from holdfast.model.finding import Finding
    from holdfast.model.run import Ended

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
COPY_AGAIN = (
    "mend what stands in the way, then copy again: holdfast results copy, and the run's name (--to DIR: another place)"
)
_OTHERS = (MISMATCH_FINDING, COPY_FINDING)
"""Findings that fail a run for another reason than a result that is not there."""
NOT_FOUND = (126, 127)
"""What shells and `env` say for a command that cannot be run, or is not there. Source: POSIX, 2.8.2 Exit Status."""


def judge_refusal(evidence: EndedEvidence) -> Detection:
    """A1: it never ran, because a check failed or the cards are taken."""
    refusal = evidence.ended.refusal
    if refusal is None:
        return no("A1", FailureClass.REFUSED)
    # Who has the cards stands in the message.
    clues = [Clue(refusal.message, "leases" if refusal.busy else "state.json")]
    clues += [Clue(f"{item.id} {item.subject}: {item.evidence}", "preflight.json") for item in refusal.findings]
    facts = {"action": refusal.hint} if refusal.hint else {}
    kind = FailureClass.EXEC_FAILED if refusal.code == "exec" else FailureClass.REFUSED
    if evidence.ended.outcome is Outcome.TIMED_OUT:
        kind = FailureClass.TIMED_OUT
        clues[0] = Clue(f"it never ran: {refusal.message}", "leases")
    return yes("A1", kind, Confidence.CERTAIN, *clues, facts=facts)


def judge_request(evidence: EndedEvidence) -> Detection:
    """A2: holdfast itself ended it, because somebody or a limit asked; or its place did, which alone saw it."""
    ended = evidence.ended
    request = ended.request
    if request is None and (told := _find_told(ended)) is not None:
        gotchas = ("SLURM4",) if told is FailureClass.OUT_OF_MEMORY else ()
        facts = {"limit": "the time limit that its place gave it"} if told is FailureClass.TIMED_OUT else {}
        clue = Clue(ended.evidence, GONE)
        return yes("A2", told, Confidence.LIKELY, clue, gotchas=gotchas, facts=facts)
    if request is None:
        return no(
            "A2", FailureClass.STOPPED, Clue("holdfast was not asked to end it, and sent it no signal", "state.json")
        )
    kind = find_request_class(request.cause)
    detail = f" ({request.detail})" if request.detail else ""
    facts = {"limit": _LIMITS[request.cause]} if request.cause in _LIMITS else {}
    if facts and evidence.scheduler.startswith("Slurm"):
        facts["limit"] += "; where it was Slurm's own time limit: --slurm time=MINUTES"
    clues = [Clue(f"{request.words}{detail}", "state.json")]
    unknown: tuple[Clue, ...] = ()
    if kind in (FailureClass.STALLED, FailureClass.TIMED_OUT):
        if evidence.stood.value:
            facts["stood"] = f"see why it stood in {evidence.stood.value[0]} (all of its stacks: stacks.txt)"
        clues += [Clue(f"it stood in {place} before the stop", "stacks.txt") for place in evidence.stood.value or ()]
    if kind is FailureClass.STALLED and not evidence.stood.known:
        unknown = (Clue(f"where it stood in Python: {evidence.stood.unread}", "stacks.txt"),)
    return yes("A2", kind, Confidence.CERTAIN, *clues, unknown=unknown, facts=facts)


def _find_told(ended: Ended) -> FailureClass | None:
    """The class of an end that only a scheduler saw, by its word; None of any other end."""
    if ended.status is not None or ended.stop is not None or ended.refusal is not None:
        return None
    causes = (cause for cause, told in WITNESSED.items() if told == (ended.outcome, ended.exit_code))
    return next((_CAUSES[cause] for cause in causes), None)


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
    if (stop.why, stop.detail) == PLACE_END:
        kind = FailureClass.PREEMPTED
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


def judge_setup(evidence: EndedEvidence) -> Detection:
    """A7: a line of setup failed, so that the command was not begun; of which class, its output may know."""
    log = evidence.log.value
    lines = [line.strip() for line in (log.tail if log is not None else "").splitlines() if line.strip()]
    failed = re.fullmatch(FAILED, lines[-1]) if lines else None
    if failed is None or evidence.code != (int(failed[2]) or 1):
        return skipped("A7", FailureClass.ENVIRONMENT)
    said = [Clue(f"it said: {lines[-2][:300]}", "output.log")] if len(lines) > 1 else []
    known = FailureClass.BUG if evidence.exception else FailureClass.ENVIRONMENT
    sure = (item for item in evidence.words if item.answer is Answer.YES and item.confidence is not Confidence.POSSIBLE)
    known = next((kind for kind in (item.kind for item in sure) if isinstance(kind, FailureClass)), known)
    facts = {}
    if known in (FailureClass.ENVIRONMENT, FailureClass.EXEC_FAILED, FailureClass.BUG):
        known = FailureClass.BUG if known is FailureClass.BUG else FailureClass.ENVIRONMENT
        facts["action"] = (
            f"mend line {failed[1]} of setup (the place's lines come before the job's), or what it needs there; then: "
            "holdfast restart"
        )
    return yes("A7", known, Confidence.CERTAIN, Clue(lines[-1], "output.log"), *said, facts=facts)


def judge_results(evidence: EndedEvidence) -> Detection:
    """A5: exit code 0, and a declared result is not there."""
    if evidence.code != 0:
        return skipped("A5", FailureClass.RESULT_MISSING)
    missing = [item for item in evidence.findings if item.level is Level.FAIL and item.id not in _OTHERS]
    if not missing and (evidence.ended.outcome is not Outcome.FAILED or _find_copy(evidence) is not None):
        return no("A5", FailureClass.RESULT_MISSING)
    clues = tuple(Clue(f"{item.id} {item.subject}: {item.evidence}", "postflight.json") for item in missing)
    return yes("A5", FailureClass.RESULT_MISSING, Confidence.CERTAIN, *clues)


def judge_copy(evidence: EndedEvidence) -> Detection:
    """A8: the training succeeded, and its results were not copied to where they last."""
    copy = _find_copy(evidence)
    if copy is None or evidence.code != 0:
        return skipped("A8", FailureClass.SYNC_FAILED)
    clue = Clue(f"training succeeded; results were not copied to {copy.subject}: {copy.evidence}", "results.json")
    return yes("A8", FailureClass.SYNC_FAILED, Confidence.CERTAIN, clue, gotchas=("U33",), facts={"action": COPY_AGAIN})


def _find_copy(evidence: EndedEvidence) -> Finding | None:
    return next((item for item in evidence.findings if item.id == COPY_FINDING and item.level is Level.FAIL), None)


def judge_lease(evidence: EndedEvidence) -> Detection:
    """A6: a login file gave the job other cards than were leased."""
    found = [item for item in evidence.findings if item.id == MISMATCH_FINDING and item.level is Level.FAIL]
    if not found:
        return no("A6", FailureClass.LEASE_MISMATCH)
    return yes("A6", FailureClass.LEASE_MISMATCH, Confidence.CERTAIN, Clue(found[0].evidence, "postflight.json"))
