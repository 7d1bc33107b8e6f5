"""Why one attempt ended: gather, detect, fold; from the run directory alone, in bounded time, without raising.

All of it happens in a disposable child: a log on a dead disk, a driver that hangs or an error of ours costs a deadline
and leaves a verdict that says what could not be read, never the caller.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.core.job.redact import redact_text
from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.fold import fold_verdict, redact_verdict
from holdfast.diagnosis.remedies import BEFORE, REMEDIES, describe_more_time, describe_resume
from holdfast.host.clock import utc_now
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.record import replace
from holdfast.model.run import Ended, Outcome
from holdfast.model.verdict import Clue, Confidence, FailureClass, Verdict

from .detect.signals import describe_signal
from .judgement import DetectorAnswer, EndedJudgement, read_judgement
from .look import KMSG

if TYPE_CHECKING:
    from .evidence import EndedEvidence

JUDGED_WITHIN_S = 20.0
OF_SUCCESS = ("V13", "C1")
"""What may speak against an end with exit code 0 (FAIL-13); the words of a log that ended well prove nothing."""


def examine_attempt(
    run_dir: str,
    attempt: int,
    ended: Ended,
    *,
    record: Mapping[str, Any] | None = None,
    kernel_source: str = KMSG,
    deadline_s: float = JUDGED_WITHIN_S,
) -> EndedJudgement:
    """Why an attempt ended, with everything that this came from. Does not raise.

    Works at any later time: what only the box could tell soon after the end is taken from the stored verdict.

    Args:
        run_dir: The run's directory.
        attempt: The attempt's number.
        ended: How it ended, as far as anybody knows.
        record: The exit record where it is not on disk yet.
        kernel_source: Where the kernel's log is read.
        deadline_s: After so many seconds the verdict is that there is none.
    """
    try:
        answer = Offload(
            lambda: wire.encode(examine_here(run_dir, attempt, ended, record=record, kernel_source=kernel_source))
        ).wait(deadline_s)
        return wire.decode(EndedJudgement, answer)
    except (OffloadFailed, OSError, wire.WireError) as error:
        return _give_up(os.path.basename(run_dir), ended, str(error))


def examine_here(
    run_dir: str,
    attempt: int,
    ended: Ended,
    *,
    record: Mapping[str, Any] | None = None,
    kernel_source: str = KMSG,
) -> EndedJudgement:
    """As `examine_attempt`, in this process and without its bounds."""
    from .gather import gather_evidence  # lazy: loaded in the child that judges

    stored = read_judgement(run_dir, attempt)
    aftermath = stored.aftermath if stored is not None and "boot_id" in stored.aftermath else None
    evidence, aftermath = gather_evidence(
        run_dir, attempt, ended, record=record, aftermath=aftermath, kernel_source=kernel_source
    )
    verdict, ladder = judge_evidence(evidence)
    log = evidence.log.value
    traceback = ended.stop.traceback if ended.stop is not None else ""
    return EndedJudgement(
        verdict=verdict,
        judged_at=utc_now(),
        ladder=ladder,
        aftermath=aftermath,
        tail="" if log is None else redact_text(log.tail),
        exception=redact_text(traceback or ("" if log is None else log.traceback)),
    )


def judge_evidence(evidence: EndedEvidence) -> tuple[Verdict | None, tuple[DetectorAnswer, ...]]:
    """The verdict on evidence, and what each detector said. Pure."""
    from .detect.table import detect  # lazy: loaded in the child that judges

    found = detect(evidence)
    ladder = tuple(DetectorAnswer(item.detector, item.kind.value, item.answer, item.confidence) for item in found)
    ended = evidence.ended
    if ended.outcome is Outcome.SUCCEEDED:
        found = tuple(item for item in found if _speaks_against_success(item))
        if not found:
            return None, ladder
    known = {"run": f" {evidence.run_id}"} if evidence.run_id else {}
    if evidence.silent_supervisor:
        known["own"] = ""
    if evidence.checkpoint is not None:
        known["resume"] = describe_resume(checkpoint=evidence.checkpoint)
        known["before"] = BEFORE if evidence.checkpoint else "begin again: no checkpoint is known"
    if evidence.has_cards is False:
        known["batch"] = ""
    known |= describe_more_time(evidence.duration_s, evidence.time_limit_s)
    found = tuple(replace(item, facts={**item.facts, **known}) for item in found)
    verdict = redact_verdict(fold_verdict(found, Clue(ended.evidence, "state.json", ended.at)), redact_text)
    return _complete(verdict, evidence), ladder


def _speaks_against_success(item: Detection) -> bool:
    return item.answer is Answer.YES and item.detector in OF_SUCCESS and item.confidence is not Confidence.POSSIBLE


def _complete(verdict: Verdict, evidence: EndedEvidence) -> Verdict:
    """What files could not be read, and, where nothing explains the end, what the job said last."""
    said = verdict.evidence_for
    log = evidence.log.value
    last = [line.strip() for line in (log.tail if log is not None else "").splitlines() if line.strip()]
    if verdict.kind is FailureClass.UNKNOWN:
        number = evidence.signal
        said += () if number is None else (Clue(describe_signal(number), wire.STATUS),)
        said += (Clue(redact_text(f"its last line: {last[-1][:300]}"), wire.OUTPUT),) if last else ()
    unread = tuple(Clue(redact_text(problem), evidence.run_id) for problem in evidence.problems)
    return replace(verdict, evidence_for=said, unknown=(*verdict.unknown, *unread))


def _give_up(run_id: str, ended: Ended, why: str) -> EndedJudgement:
    remedy = REMEDIES[FailureClass.UNKNOWN].render({"run": f" {run_id}"})
    remedy = f"have it examined again: holdfast diagnose {run_id}; else {remedy}"
    unknown = (Clue(f"nearly everything: the examination did not finish ({why})"),)
    verdict = Verdict(
        FailureClass.UNKNOWN, Confidence.POSSIBLE, remedy, (Clue(ended.evidence, "state.json", ended.at),), (), unknown
    )
    return EndedJudgement(
        None if ended.outcome is Outcome.SUCCEEDED else redact_verdict(verdict, redact_text), utc_now()
    )
