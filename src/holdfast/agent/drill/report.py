"""What is asked of a rehearsal, and what was found, as records: a desk that is no Linux has them too."""

from __future__ import annotations

from holdfast.core.drill.drill import AttemptEnd, DrillLine
from holdfast.model.record import record


@record
class DrillRequest:
    """What to rehearse. `kills` interruptions, one of them a TERM with `stop`; each run `time_s` or `until` a step."""

    kills: int = 3
    stop: bool = False
    seed: int = 0
    time_s: float = 300.0
    until: int | None = None


@record
class PlacedDrill:
    """What a desk wants rehearsed, as of `rehearse_job`; `keep` is a directory of the place."""

    wanted: DrillRequest
    inexact: bool = False
    keep: str | None = None


@record
class AttemptLine:
    """One attempt as it was seen. Steps are numbers of complete steps; None: not seen."""

    attempt: int
    end: AttemptEnd
    first_step: int | None
    last_step: int | None
    newest_checkpoint_before: int | None
    exit_code: int | None
    seconds: float
    steps_logged: int
    checkpoints_seen: tuple[int, ...]
    stop: dict[str, object]
    last_words: str


@record
class DrillReport:
    """What was found. `verdict` is a `DrillVerdict`'s name in small letters, `words` its words; `kept` has both runs.

    `cut`: the reference was stopped before its end; `planned` are the steps at which to interrupt.
    """

    verdict: str
    words: str
    why: str
    passed: bool
    lines: tuple[DrillLine, ...]
    steps_done_again: int
    compared: int
    judged_by: str
    cut: bool
    planned: tuple[int, ...]
    reference: AttemptLine
    attempts: tuple[AttemptLine, ...]
    kept: str | None
    exit_code: int
