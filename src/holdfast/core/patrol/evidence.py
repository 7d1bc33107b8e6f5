"""The evidence of a patrol about one run, for the completion test and the alarm test, kept apart (MON-08).

Plain data that a gatherer fills and `core.patrol.patrol` judges. None is "not known" or "not applicable", never "fine".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import pairwise

from holdfast.core.run.stall import BUSY_FACTOR, CEILING_S, EXEMPT, FACTOR, FLOOR_S, STARTUP_S
from holdfast.model.record import record
from holdfast.model.scheduler import SchedulerReport


class RunStatus(str, Enum):
    """Where a run stands on present evidence. UNKNOWN is "could not be seen", which is neither well nor dead."""

    RUNNING = "running"
    WAITING = "waiting"
    """For its checks or its cards: it has not begun."""
    FINISHED = "finished"
    """Ended as meant: it succeeded, or somebody asked it to stop."""
    STALLED = "stalled"
    DEAD = "dead"
    """Ended without success, or gone without a word."""
    UNKNOWN = "unknown"


@record
class CompletionEvidence:
    """The completion test's evidence.

    `phase` is the lifecycle state as committed (empty: no readable state); ``ended`` without an `outcome` is an end of
    which not everything is written. `supervisor` and `job` say whether exactly the recorded processes live, None where
    that could not be told. Ages in seconds; None is not known. `unread` names what could not be read, `incomplete` what
    is not there and should be. `outside`: it is on this machine, outside of the container or job that asks. `refused`:
    nothing was ever begun of it, and who started it was told so. `untold` says why nobody has heard of its end though
    its job asks for that. `scheduler` starts its attempts, if any does, and said `word` of it.
    """

    phase: str = ""
    outcome: str = ""
    evidence: str = ""
    ended_age_s: float | None = None
    failure_class: str = ""
    refused: bool = False
    untold: str = ""
    remedy: str = ""
    fast: str = ""
    here: bool = True
    outside: bool = False
    host: str = ""
    supervisor: bool | None = None
    asleep_pid: int | None = None
    job: bool | None = None
    rebooted: bool = False
    status_left: bool = False
    stuck: tuple[str, ...] = ()
    incomplete: str = ""
    newer_schema: int = 0
    unread: tuple[str, ...] = ()
    scheduler: str = ""
    word: SchedulerReport | None = None


@record
class DiskReading:
    """The disk under one path of a run. Shares are used / all, None where the file system does not tell."""

    path: str
    free_bytes: int
    byte_share: float | None = None
    inode_share: float | None = None
    full_in_s: float | None = None


@record
class AlarmEvidence:
    """The alarm test's evidence: only what is so now. Seconds; None is not known or not applicable.

    `told` is what the run's own clocks say of a stall that goes on. `progress_age_s` is the time since `progress` last
    moved (``step``, ``files``: newest artifact, checkpoint or output; empty: nothing to go by). `usual_s` is the
    longest interval between steps so far, None before enough were seen. `done` is how many steps this attempt did.
    `card_pct` is the busiest leased card in the last samples, `cpu_share` the cores in use lately.
    """

    told: str = ""
    progress: str = ""
    progress_age_s: float | None = None
    usual_s: float | None = None
    stated_limit_s: float | None = None
    startup_s: float | None = None
    phase: str = ""
    step: int | None = None
    done: int | None = None
    cards: int = 0
    card_pct: int | None = None
    cpu_share: float | None = None
    sample_age_s: float | None = None
    sample_every_s: float | None = None
    memory_share: float | None = None
    oom_kills: int = 0
    faults: tuple[str, ...] = ()
    places: tuple[DiskReading, ...] = ()
    unread: tuple[str, ...] = ()


@record
class StallLimits:
    """When no progress is a stall: the rules of a run's own clocks, applied to what its samples show.

    The limit is `factor` x the longest interval seen, within floor and ceiling. Before the first steps, in a phase
    without steps and for a job without a heartbeat it is `first_s`; cards at work raise it by `busy_factor`.
    """

    factor: float = FACTOR
    exempt: int = EXEMPT
    floor_s: float = FLOOR_S
    ceiling_s: float = CEILING_S
    first_s: float = STARTUP_S
    busy_factor: float = BUSY_FACTOR


LIMITS = StallLimits()


@record
class RunEvidence:
    """One run as one look saw it. `alive` says whether a process that was recorded as its own lives.

    `damaged` names what of its job's record cannot be read, and why; empty when all can be.
    """

    ending: CompletionEvidence
    vitals: AlarmEvidence = AlarmEvidence()
    attempt: int = 0
    alive: bool = False
    damaged: str = ""


def learn_pace(
    samples: Iterable[tuple[float, object]], exempt: int = LIMITS.exempt
) -> tuple[float | None, float | None]:
    """From (time, mark) pairs, oldest first: when the mark last changed, and the longest interval between changes.

    A mark is whatever shows progress (step, epoch, phase). The first `exempt` intervals do not count: they hold
    compilation and warm caches. None for what was not seen often enough to tell. A clock that was set back counts as no
    interval.
    """
    changed: list[float] = []
    last: object = None
    for at, mark in samples:
        if mark is None or mark == last:
            continue
        changed.append(at)
        last = mark
    intervals = [after - before for before, after in pairwise(changed)]
    usual = max((interval for interval in intervals[exempt:] if interval >= 0), default=None)
    return (changed[-1] if changed else None), usual
