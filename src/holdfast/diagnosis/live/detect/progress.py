"""Whether a run gets on, judged from what it says itself: heartbeat, artifacts, log. Pure.

Theory. Only a *completed* step, a written artifact or a line of the log is progress; CPU time is not (a deadlock's
neighbour spins, a busy loop computes nothing). A heartbeat with steps can be overdue: five of the run's own usual
intervals have passed, or twice the longest seen (NVRx learns five times the longest; diagnosis is asked by a person who
already suspects something, so it starts from the usual one), and never less than `patience_s`. A log alone can only be
silent: a job may print once an hour.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from statistics import median

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.gather.run_files import HealthSample, RunFacts
from holdfast.model.record import record
from holdfast.model.verdict import Clue

PATIENCE_S = 30.0
BEAT_S = 1.0
"""The training library writes its heartbeat about once a second."""
LATE_S = 5.0
STARTUP_S = 600.0
LONG_PHASE_S = 1800.0
MANY_INTERVALS = 5.0
MANY_GAPS = 2.0
RECKONED_INTERVALS = 2.0
"""Of an interval that is reckoned, which counts the start of the job too and so is more than the real one."""
LONG_PHASES = frozenset(
    {
        "eval",
        "evaluate",
        "evaluation",
        "val",
        "validate",
        "validation",
        "test",
        "save",
        "saving",
        "checkpoint",
        "compile",
    }
    | {"compiling", "setup", "load", "loading", "restore", "restoring", "init", "warmup", "prepare", "export", "upload"}
)
"""Phases that may take long without a step (MON-07: a slow but moving trainer is not stalled)."""


class Pace(str, Enum):
    """How the run's own signs of progress stand."""

    MOVING = "moving"
    """A sign moved between the two looks."""
    RECENT = "recent"
    """Not between the looks, but the last sign is not older than usual."""
    LATE = "late"
    """Later than five usual intervals, and not yet so late that a pause of any kind is out of question."""
    OVERDUE = "overdue"
    """The heartbeat's steps stand still for longer than this run ever needs."""
    SILENT = "silent"
    """No heartbeat; the log and artifacts stand still, which many healthy jobs do."""
    UNKNOWN = "unknown"
    """Nothing to judge by, or it could not be read."""


@record
class ProgressJudgement:
    """The judgement.

    `age_s` is how old the last sign is, `limit_s` what is too old, `usual_s` the usual interval between two signs (a
    heartbeat is written once a second at most), `step_s` what a step takes, measured or reckoned.

    `starting` is True before the first step and in a phase that may take long; then `limit_s` is that phase's.
    """

    pace: Pace
    clues: tuple[Clue, ...] = ()
    age_s: float | None = None
    limit_s: float | None = None
    usual_s: float | None = None
    starting: bool = False
    phase: str = ""
    unread: str = ""
    log_silent_s: float | None = None
    log_grew: bool | None = None
    step_s: float | None = None

    @property
    def is_alive(self) -> bool:
        """Whether there are signs of life that forbid to speak of a hang."""
        return self.pace in (Pace.MOVING, Pace.RECENT, Pace.LATE)


def judge_progress(
    before: Reading[RunFacts],
    after: Reading[RunFacts],
    *,
    job_age_s: float | None,
    patience_s: float = PATIENCE_S,
    startup_s: float = STARTUP_S,
) -> ProgressJudgement:
    """How the run gets on between two looks at its files. `job_age_s` is None where it is not known."""
    if before.value is None or after.value is None:
        return ProgressJudgement(Pace.UNKNOWN, unread=after.unread or before.unread)
    old, new = before.value, after.value
    silent = None if new.log_at_s is None else max(0.0, new.now_s - new.log_at_s)
    grew = None if new.log_bytes is None or old.log_bytes is None else new.log_bytes != old.log_bytes
    if new.heartbeat_at_s is not None and new.heartbeat:
        found = _from_heartbeat(old, new, job_age_s, patience_s, startup_s)
    else:
        found = _from_files(old, new, grew=grew)
    return ProgressJudgement(
        found.pace, found.clues, found.age_s, found.limit_s, found.usual_s, found.starting, found.phase,
        "; ".join(new.unread), silent, grew, found.step_s,
    )  # fmt: skip


def _wrote_artifacts(old: RunFacts, new: RunFacts) -> bool:
    return new.artifacts_at_s is not None and (
        new.artifacts > old.artifacts or old.artifacts_at_s is None or new.artifacts_at_s > old.artifacts_at_s
    )


def _from_heartbeat(
    old: RunFacts, new: RunFacts, job_age_s: float | None, patience_s: float, startup_s: float
) -> ProgressJudgement:
    phase = new.phase
    if new.step != old.step and new.step is not None:
        text = f"the heartbeat's step went from {old.step} to {new.step} between the two looks"
        return ProgressJudgement(Pace.MOVING, (Clue(text, "heartbeat"),), 0.0, phase=phase)
    if _wrote_artifacts(old, new):
        clue = Clue("artifacts or checkpoints were written between the two looks", "artifacts")
        return ProgressJudgement(Pace.MOVING, (clue,), 0.0, phase=phase)
    age = _step_age(new)
    if new.artifacts_at_s is not None:
        age = min(age, max(0.0, new.now_s - new.artifacts_at_s))
    measured = _measure_step(new)
    usual = None if measured is None else max(BEAT_S, measured)
    step_s = measured if measured is not None else _reckon_step(new, job_age_s, age)
    least = MANY_INTERVALS * usual if usual is not None else min(RECKONED_INTERVALS * (step_s or 0.0), startup_s)
    limit = max(patience_s, least, MANY_GAPS * _longest_gap(new.samples))
    starting = not new.step
    if starting:
        limit = max(limit, startup_s)
        age = min(age, job_age_s) if job_age_s is not None else age
    elif phase.lower() in LONG_PHASES:
        starting, limit = True, max(limit, LONG_PHASE_S)
    if new.stall_limit_s is not None:
        # Its supervisor knows the job longer, or was told a limit.
        limit = min(limit, new.stall_limit_s)
    where = "no step yet" if not new.step else f"step {new.step}"
    usually = "" if usual is None else f"; usual interval {usual:.3g} s"
    text = f"{where}, last sign {age:.0f} s ago, overdue from {limit:.0f} s on{usually}"
    if phase:
        text += f"; phase {phase!r}"
    pace = Pace.RECENT if age <= limit else Pace.OVERDUE
    if pace is Pace.RECENT and not starting and usual is not None and age > max(LATE_S, MANY_INTERVALS * usual):
        pace = Pace.LATE
    return ProgressJudgement(pace, (Clue(text, "heartbeat"),), age, limit, usual, starting, phase, step_s=step_s)


def _from_files(old: RunFacts, new: RunFacts, *, grew: bool | None) -> ProgressJudgement:
    if _wrote_artifacts(old, new):
        return ProgressJudgement(Pace.MOVING, (Clue("artifacts were written between the two looks", "artifacts"),), 0.0)
    if grew:
        return ProgressJudgement(Pace.MOVING, (Clue("the log grew between the two looks", "log"),), 0.0)
    times = [at for at in (new.log_at_s, new.artifacts_at_s) if at is not None]
    if not times:
        return ProgressJudgement(
            Pace.UNKNOWN, (Clue("no heartbeat, no log file and no artifacts to judge progress by"),)
        )
    age = max(0.0, new.now_s - max(times))
    clue = Clue(f"no heartbeat; log and artifacts last changed {age:.0f} s ago", "log, artifacts")
    return ProgressJudgement(Pace.SILENT, (clue,), age)


def _step_age(facts: RunFacts) -> float:
    """Seconds since the step last changed: the heartbeat's own age, or more where samples saw this step earlier.

    A heartbeat that is written anew with an old step (a thread that only says "alive") is no progress.
    """
    written = facts.now_s - (facts.heartbeat_at_s or facts.now_s)
    seen = 0.0
    for sample in reversed(facts.samples):
        if sample.step != facts.step or facts.step is None:
            break
        seen = facts.now_s - sample.at_s
    return max(0.0, written, seen)


def _measure_step(facts: RunFacts) -> float | None:
    """What a step takes, from the heartbeat's and the samples' rates; None where nobody has measured it."""
    rates = [sample.steps_per_s for sample in facts.samples if sample.steps_per_s]
    own = facts.heartbeat.get("steps_per_s")
    if isinstance(own, (int, float)) and own > 0:
        rates.append(float(own))
    counted = [(sample.at_s, sample.step) for sample in facts.samples if sample.step is not None]
    if not rates and counted and counted[-1][1] > counted[0][1] and counted[-1][0] > counted[0][0]:
        rates.append((counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0]))
    rates = [rate for rate in rates if 0 < rate < 1e9]
    return 1.0 / median(rates) if rates else None


def _reckon_step(facts: RunFacts, job_age_s: float | None, age_s: float) -> float | None:
    """What a step can have taken at most, from how long the job ran until its last one; None where that is not known.

    A first attempt made all its steps in that time. A later one goes on from a checkpoint, and of its steps only the
    last is certainly its own.
    """
    if job_age_s is None or not facts.step:
        return None
    return max(0.0, job_age_s - age_s) / (facts.step if facts.first_attempt else 1)


def _longest_gap(samples: tuple[HealthSample, ...]) -> float:
    """The longest time between two changes of the step that the samples saw."""
    changes: list[HealthSample] = []
    for sample in samples:
        if sample.step is not None and (not changes or sample.step != changes[-1].step):
            changes.append(sample)
    return max((new.at_s - old.at_s for old, new in pairwise(changes)), default=0.0)
