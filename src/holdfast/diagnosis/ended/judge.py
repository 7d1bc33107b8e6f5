"""Why one attempt ended: gather, detect, fold; from the run directory alone, in bounded time, without raising.

All of it happens in a disposable child: a log on a dead disk, a driver that hangs or an error of ours costs a deadline
and leaves a verdict that says what could not be read, never the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...core.redact import redact_text
from ...host import fallback
from ...host.clock import utc_now
from ...host.offload import Offload, OffloadFailed
from ...model import wire
from ...model.run import Ended, Outcome
from ...model.verdict import Clue, Confidence, FailureClass, Verdict
from ..evidence import Answer, Detection
from ..fold import fold, redact
from ..remedies import REMEDIES
from .look import KMSG
from .signals import describe_signal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .evidence import EndedEvidence

JUDGED_WITHIN_S = 20.0
OF_SUCCESS = ("V13", "C1")
"""What may speak against an end with exit code 0 (FAIL-13); the words of a log that ended well prove nothing."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the ladder: which detector, for which class, what it said."""

    detector: str
    kind: str
    answer: Answer
    confidence: Confidence = Confidence.POSSIBLE


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with all that it came from. `verdict` is None for a success that nothing speaks against.

    `aftermath` is what the box said soon after the end, `tail` the last lines of the output, `exception` the traceback
    that ended the job.
    """

    verdict: Verdict | None
    judged_at: str = ""
    ladder: tuple[Answered, ...] = ()
    aftermath: dict[str, object] = field(default_factory=dict)
    tail: str = ""
    exception: str = ""


def judge_ended(run_dir: str, attempt: int, ended: Ended) -> Verdict | None:
    """Why an attempt ended; None when it succeeded and nothing speaks against that. Does not raise.

    Works at any later time: what only the box could tell soon after the end is taken from the stored verdict.
    """
    return examine(run_dir, attempt, ended).verdict


def examine(
    run_dir: str,
    attempt: int,
    ended: Ended,
    *,
    record: Mapping[str, Any] | None = None,
    kernel_source: str = KMSG,
    deadline_s: float = JUDGED_WITHIN_S,
) -> Judgement:
    """As `judge_ended`, with everything that it came from.

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
        return wire.decode(Judgement, answer)
    except (OffloadFailed, OSError, wire.WireError) as error:
        return _give_up(ended, str(error))


def examine_here(
    run_dir: str,
    attempt: int,
    ended: Ended,
    *,
    record: Mapping[str, Any] | None = None,
    kernel_source: str = KMSG,
) -> Judgement:
    """As `examine`, in this process and without its bounds."""
    from .gather import gather

    stored = read_judgement(run_dir, attempt)
    aftermath = stored.aftermath if stored is not None and "boot_id" in stored.aftermath else None
    evidence, aftermath = gather(
        run_dir, attempt, ended, record=record, aftermath=aftermath, kernel_source=kernel_source
    )
    verdict, ladder = judge(evidence)
    log = evidence.log.value
    traceback = ended.stop.traceback if ended.stop is not None else ""
    return Judgement(
        verdict=verdict,
        judged_at=utc_now(),
        ladder=ladder,
        aftermath=aftermath,
        tail="" if log is None else redact_text(log.tail),
        exception=redact_text(traceback or ("" if log is None else log.traceback)),
    )


def judge(evidence: EndedEvidence) -> tuple[Verdict | None, tuple[Answered, ...]]:
    """The verdict on evidence, and what each detector said. Pure."""
    from .detectors import detect

    found = detect(evidence)
    ladder = tuple(Answered(item.detector, item.kind.value, item.answer, item.confidence) for item in found)
    ended = evidence.ended
    if ended.outcome is Outcome.SUCCEEDED:
        found = tuple(item for item in found if _speaks_against_success(item))
        if not found:
            return None, ladder
    verdict = redact(fold(found, Clue(ended.evidence, "state.json", ended.at)), redact_text)
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


def read_judgement(run_dir: str, attempt: int) -> Judgement | None:
    """The stored judgement of an attempt; None when there is none that can be read."""
    import os

    path = f"{wire.attempt_dir(run_dir.rstrip('/'), attempt)}/{wire.VERDICT}"
    try:
        data = fallback.read(os.path.basename(run_dir.rstrip("/")), attempt, path)
        return wire.from_bytes(Judgement, data, wire.VERDICT)
    except (OSError, wire.WireError):
        return None


def read_ended(run_dir: str, attempt: int) -> Ended | None:
    """How an attempt ended, by its state or, where that is unreadable, by its exit record; None when neither tells."""
    import os

    from ...model.run import RunState

    run_dir = run_dir.rstrip("/")
    directory, run_id = wire.attempt_dir(run_dir, attempt), os.path.basename(run_dir)
    try:
        state = wire.from_bytes(RunState, fallback.read(run_id, attempt, f"{directory}/{wire.STATE}"), wire.STATE).state
        if isinstance(state, Ended):
            return state
    except (OSError, wire.WireError):
        pass
    try:
        return wire.from_bytes(Ended, fallback.read(run_id, attempt, f"{directory}/{wire.EXIT}"), wire.EXIT)
    except (OSError, wire.WireError):
        return None


def _give_up(ended: Ended, why: str) -> Judgement:
    remedy = REMEDIES[FailureClass.UNKNOWN].render({})
    unknown = (Clue(f"nearly everything: the examination did not finish ({why})"),)
    verdict = Verdict(
        FailureClass.UNKNOWN, Confidence.POSSIBLE, remedy, (Clue(ended.evidence, "state.json", ended.at),), (), unknown
    )
    return Judgement(None if ended.outcome is Outcome.SUCCEEDED else redact(verdict, redact_text), utc_now())
