"""A verdict with all that it came from, as stored beside an attempt; loads nothing of what finds one (`judge`)."""

from __future__ import annotations

import os

from holdfast.diagnosis.evidence import Answer
from holdfast.host.files import fallback
from holdfast.model import wire
from holdfast.model.record import field, record
from holdfast.model.run import Ended, RunState
from holdfast.model.verdict import Confidence, Verdict


@record
class DetectorAnswer:
    """One line of the ladder: which detector, for which class, what it said."""

    detector: str
    kind: str
    answer: Answer
    confidence: Confidence = Confidence.POSSIBLE


@record
class EndedJudgement:
    """A verdict with all that it came from. `verdict` is None for a success that nothing speaks against.

    `aftermath` is what the box said soon after the end, `tail` the last lines of the output, `exception` the traceback
    that ended the job.
    """

    verdict: Verdict | None
    judged_at: str = ""
    ladder: tuple[DetectorAnswer, ...] = ()
    aftermath: dict[str, object] = field(default_factory=dict)
    tail: str = ""
    exception: str = ""


def read_judgement(run_dir: str, attempt: int) -> EndedJudgement | None:
    """The stored judgement of an attempt; None when there is none that can be read."""
    path = f"{wire.attempt_dir(run_dir.rstrip('/'), attempt)}/{wire.VERDICT}"
    try:
        data = fallback.read(os.path.basename(run_dir.rstrip("/")), attempt, path)
        return wire.from_bytes(EndedJudgement, data, wire.VERDICT)
    except (OSError, wire.WireError):
        return None


def read_ended(run_dir: str, attempt: int) -> Ended | None:
    """How an attempt ended, by its state or, where that is unreadable, by its exit record; None when neither tells."""
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
