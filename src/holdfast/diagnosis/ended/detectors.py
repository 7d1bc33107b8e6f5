"""The ladder of a vanished or failed run: every detector, in the order in which equal certainty decides.

What is written down comes first, then what the box counted, then what a signal says, then the job's words; what is left
over is a kill from outside. The ids are those of docs/diagnosis.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.verdict import FailureClass
from . import asked, finish, hardware, memory, storage, vanished
from .answers import skipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..evidence import Detection
    from .evidence import EndedEvidence

LADDER: dict[str, Callable[[EndedEvidence], Detection] | None] = {
    "A1": asked.judge_refusal,
    "A2": asked.judge_request,
    "A6": asked.judge_lease,
    "V7": vanished.judge_reboot,
    "V7C": vanished.judge_container,
    "V1": memory.judge_group_oom,
    "V2": memory.judge_host_oom,
    "V3": memory.judge_daemons,
    "G1": hardware.judge_cards,
    "V8": vanished.judge_hang_up,
    "A3": asked.judge_left,
    "V10": vanished.judge_scheduler,
    "V4": memory.judge_rlimits,
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
    "A4": asked.judge_exec,
    "V12": finish.judge_exception,
    "A5": asked.judge_results,
    "V13": finish.judge_finish,
    "V14": vanished.judge_supervisor,
    "V9": vanished.judge_kill,
}
"""Detector by id, best first. ``WORDS`` is the place of what the output says of classes without a detector here."""
WRITTEN_DOWN = frozenset({"A1", "A2"})
"""Detectors that apply to a job that never ran."""


def detect(evidence: EndedEvidence) -> tuple[Detection, ...]:
    """The answers of all detectors, in the order of the ladder; of a job that never ran, only what was written down."""
    found: list[Detection] = []
    for name, detector in LADDER.items():
        answers = _read_words(evidence) if detector is None else (detector(evidence),)
        found += answers if evidence.ran or name in WRITTEN_DOWN else map(_drop, answers)
    return tuple(found)


def _read_words(evidence: EndedEvidence) -> tuple[Detection, ...]:
    """What the output says, but for the job's own exceptions: those are V12's."""
    return tuple(item for item in evidence.words if item.kind is not FailureClass.BUG)


def _drop(detection: Detection) -> Detection:
    return skipped(detection.detector, detection.kind)
