"""Detectors of the job's own acts: exception, finish too early, values that were not finite (V12, V13, C1). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.run.outcome import LIMIT_FINDING
from holdfast.diagnosis.ended.doubts import (
    LAST_LINES,
    find_early_end,
    find_failed_part,
    find_farewell,
    find_given_up,
    find_killed,
    find_last_exception,
    find_lost_losses,
    find_nothing_done,
    find_other_device,
    find_unsaved,
    goes_through_tee,
)
from holdfast.diagnosis.evidence import Answer, Detection, LineRole
from holdfast.diagnosis.logs.endings import WORDS
from holdfast.model.finding import Level
from holdfast.model.run import Outcome
from holdfast.model.units import format_count, format_duration
from holdfast.model.verdict import Clue, Confidence, FailureClass

from .answers import find_words, no, skipped, unread, unread_log, yes
from .recorded import judge_left, judge_request

if TYPE_CHECKING:
    from holdfast.diagnosis.ended.evidence import EndedEvidence

FAST_SHARE = 0.5
"""A finish in less than this part of the expected time is flagged (POST-06)."""
NONFINITE_LEAST = 3
ABORT = 6
"""Mixed precision skips a step with an infinite value now and then; three are no accident."""


def judge_exception(evidence: EndedEvidence) -> Detection:
    """V12: an exception of the job's own code, unless its words are of a class of their own.

    One of C++ that nobody catches ends the program by SIGABRT.
    """
    words = find_words(evidence, FailureClass.BUG)
    aborted = evidence.signal == ABORT and words is not None and words.confidence is not Confidence.POSSIBLE
    if evidence.code in (None, 0) and evidence.witnessed and not aborted:
        return skipped("V12", FailureClass.BUG)
    named = [
        item
        for item in evidence.words
        if item.answer is Answer.YES
        and item.kind is not FailureClass.BUG
        and item.confidence is not Confidence.POSSIBLE
    ]
    if words is not None and not named and not _is_farewell(words, evidence):
        facts = dict(words.facts)
        return yes("V12", FailureClass.BUG, words.confidence, *words.evidence_for, gotchas=words.gotchas, facts=facts)
    if evidence.exception and not named and not _is_of_another(evidence):
        return yes("V12", FailureClass.BUG, Confidence.LIKELY, Clue(evidence.exception, "traceback"))
    if not evidence.log.known:
        return unread("V12", FailureClass.BUG, *unread_log(evidence))
    silent = not named and not evidence.exception
    return no("V12", FailureClass.BUG, *((Clue("no traceback of its own", "output.log"),) if silent else ()))


def _is_farewell(words: Detection, evidence: EndedEvidence) -> bool:
    """Whether its last lines only say that it stops, as it was asked to: no exception, no report, nothing known."""
    asked = (judge_request(evidence).answer, judge_left(evidence).answer)
    return words.detector == f"log.{WORDS}" and Answer.YES in asked


def _is_of_another(evidence: EndedEvidence) -> bool:
    """Whether the last exception tells of something else that failed (a wrapper, a pool), or is of another class."""
    if any(item.facts.get("line") == evidence.exception[:300] for item in evidence.words if item.answer is Answer.YES):
        return True
    log = evidence.log.value
    known = () if log is None else log.matches
    return any(
        match.line == evidence.exception[:300]
        and (match.role is not LineRole.ROOT or match.kind is FailureClass.TRANSIENT)
        for match in known
    )


def judge_finish(evidence: EndedEvidence) -> Detection:
    """V13: it said 0, and its output, what it left, its time or its last step say something else."""
    if evidence.code != 0 or not evidence.ran:
        return skipped("V13", FailureClass.SUSPICIOUS_FINISH)
    said = _find_doubts(evidence)
    if said:
        return yes(
            "V13",
            FailureClass.SUSPICIOUS_FINISH,
            Confidence.LIKELY,
            *said,
            facts={"seen": "its output or what it left behind speaks against that"},
        )
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


def _find_doubts(evidence: EndedEvidence) -> list[Clue]:
    """What the output and what was left behind say against an end with 0."""
    clues, log = [], evidence.log.value
    piped = evidence.piped or (log is not None and goes_through_tee(log))
    if log is not None and (raised := find_last_exception(log, piped=piped)):
        clues.append(Clue(f"its output ends with a traceback: {raised}", "output.log"))
    elif log is not None and (raised := find_last_exception(log, piped=piped, closing=evidence.closing_lines)):
        words = "behind the traceback of a program stands only what its shell prints at the end"
        clues.append(Clue(f"{words}: {raised}", "output.log"))
    if log is not None and (line := find_farewell(log)):
        clues.append(Clue(f"its last lines say that a signal asked it to leave: {line}", "output.log"))
    if log is not None and (line := find_killed(log, piped=piped)):
        clues.append(Clue(f"its last lines say that a signal killed a part of it: {line}", "output.log"))
    if log is not None and (line := find_given_up(log)):
        clues.append(Clue(f"its last line says that it gave up: {line}", "output.log"))
    if log is not None and (line := find_nothing_done(log)):
        clues.append(Clue(f"its output says that there was nothing to work on: {line}", "output.log"))
    if log is not None and (line := find_early_end(log)):
        clues.append(Clue(f"it counts to more steps than it came to: {line}", "output.log"))
    if log is not None and (line := find_failed_part(log)):
        clues.append(Clue(f"a part of it did not end well: {line}", "output.log"))
    if log is not None and (line := find_other_device(log)):
        clues.append(Clue(f"it did not use the card that it was to use: {line}", "output.log"))
    if log is not None and (line := find_unsaved(log)):
        clues.append(Clue(f"its last lines say that something was not written: {line}", "output.log"))
    clues += [Clue(item.evidence, "postflight.json") for item in evidence.findings if item.id == LIMIT_FINDING]
    if evidence.leftovers:
        named = ", ".join(evidence.leftovers)
        words = f"it left processes behind that it had just begun, and they were ended: {named}"
        clues.append(Clue(f"{words}; a job has to stay until its work is done", "events.jsonl"))
    return clues


def judge_divergence(evidence: EndedEvidence) -> Detection:
    """C1: the loss or a gradient was not finite, again and again."""
    if not evidence.ran:
        return skipped("C1", FailureClass.DIVERGED)
    count = evidence.heartbeat.get("nonfinite")
    words = find_words(evidence, FailureClass.DIVERGED)
    clues = list(words.evidence_for) if words is not None else []
    if isinstance(count, int) and count >= NONFINITE_LEAST:
        clues.insert(0, Clue(f"{format_count(count, 'value was', 'values were')} not finite", "heartbeat.json"))
        return yes("C1", FailureClass.DIVERGED, Confidence.LIKELY, *clues)
    log = evidence.log.value
    if log is not None and (lost := find_lost_losses(log)):
        clue = Clue(f"the last losses that it printed are not finite: {', '.join(lost)}", "output.log")
        return yes("C1", FailureClass.DIVERGED, Confidence.LIKELY, clue, *clues)
    if words is not None:
        ended = words.detector == "log.diverged" and log is not None and _is_late(words.facts.get("line", ""), log.tail)
        doubtful = evidence.ended.outcome is Outcome.SUCCEEDED and not ended
        sure = Confidence.POSSIBLE if doubtful else words.confidence
        return yes("C1", FailureClass.DIVERGED, sure, *clues)
    if not evidence.log.known and count is None:
        return unread("C1", FailureClass.DIVERGED, *unread_log(evidence))
    return no("C1", FailureClass.DIVERGED)


def _is_late(line: str, tail: str) -> bool:
    """Whether a line is among the last ones: what a library said when it ended the training, with an exit code of 0."""
    return bool(line) and any(line in text for text in tail.rstrip().split("\n")[-LAST_LINES:])
