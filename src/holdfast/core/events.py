"""What can happen to a run, and what can be done about it: the alphabet of `core.lifecycle`.

Events are facts in the past tense, actions are orders in the imperative; every action may be carried out twice without
harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..model.finding import Finding
from ..model.identity import JobProcess, ProcessId, WaitStatus
from ..model.lease import Busy, LeasedDevice
from ..model.run import Refusal, StopRecord, StopRequest


class Timer(str, Enum):
    """The deadlines a driver can be asked to watch; arming one again replaces it."""

    PREFLIGHT = "preflight"
    WAIT = "wait"
    RUN = "run"
    TOTAL = "total"
    GRACE = "grace"
    MAX_HOLD = "max_hold"
    STUCK = "stuck"
    POSTFLIGHT = "postflight"


@dataclass(frozen=True, slots=True)
class Now:
    """The moment of an event: ISO UTC for people, epoch seconds for arithmetic."""

    utc: str
    epoch_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the table needs to know of the job and the rules. Seconds; None is no limit.

    `grace_s` is the time between TERM and KILL, `grace_max_s` the ceiling while a shutdown makes progress.
    """

    wants_cards: bool = False
    preflight_s: float = 120.0
    wait_s: float = 0.0
    run_s: float | None = None
    total_s: float | None = None
    postflight_s: float = 300.0
    grace_s: float = 30.0
    grace_max_s: float = 600.0
    max_hold_s: float | None = None
    created_epoch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Began:
    """A supervisor has taken the run up for the first time."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A supervisor has taken up a run that another one left; what it sees of the job now.

    `job_alive`: the recorded leader lives and has exec'd. `members_alive`: the keeper or any other process of the
    tree lives. `status`: how the leader ended, if that was witnessed. `rebooted`: another boot, so nothing lives.
    """

    job_alive: bool
    members_alive: bool
    status: WaitStatus | None
    rebooted: bool = False


@dataclass(frozen=True, slots=True)
class ChecksDone:
    """Preflight has been through all its checks."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class LeaseBlocked:
    """No card for now; `final` when this run does not wait."""

    busy: tuple[Busy, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """All cards are locked and were checked again under the lock."""

    devices: tuple[LeasedDevice, ...]


@dataclass(frozen=True, slots=True)
class LeaseFailed:
    """Cards cannot be leased at all (no such card, no lease area, unhealthy)."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class JobReported:
    """Keeper and job exist, have said who they are, and wait for the word to go."""

    keeper: ProcessId
    job: JobProcess


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The exec of the job's command succeeded."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The job could not be started; nothing of it runs."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class JobExited:
    """The leader has ended and its status was witnessed."""

    status: WaitStatus


@dataclass(frozen=True, slots=True)
class JobVanished:
    """The leader is gone and nobody witnessed how."""


@dataclass(frozen=True, slots=True)
class TreeEmptied:
    """No process of the run is left: proven, not assumed. `stop` is what the training library wrote on leaving."""

    stop: StopRecord | None = None


@dataclass(frozen=True, slots=True)
class TreeStuck:
    """KILL was sent and these are still there, each described with what it waits on."""

    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Somebody or something wants the run to end."""

    request: StopRequest


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A deadline has passed. For GRACE, `progressing` says that the job's shutdown still writes."""

    timer: Timer
    progressing: bool = False


@dataclass(frozen=True, slots=True)
class ResultsChecked:
    """Postflight has been through all its checks."""

    findings: tuple[Finding, ...]


Event = (
    Began
    | Resumed
    | ChecksDone
    | LeaseBlocked
    | LeaseGranted
    | LeaseFailed
    | JobReported
    | JobStarted
    | StartFailed
    | JobExited
    | JobVanished
    | TreeEmptied
    | TreeStuck
    | StopWanted
    | TimerFired
    | ResultsChecked
)
EVENTS: tuple[type, ...] = (
    Began,
    Resumed,
    ChecksDone,
    LeaseBlocked,
    LeaseGranted,
    LeaseFailed,
    JobReported,
    JobStarted,
    StartFailed,
    JobExited,
    JobVanished,
    TreeEmptied,
    TreeStuck,
    StopWanted,
    TimerFired,
    ResultsChecked,
)


class Do(str, Enum):
    """Actions without data."""

    RUN_CHECKS = "run_checks"
    TAKE_LEASE = "take_lease"
    START_JOB = "start_job"
    LET_GO = "let_go"
    WATCH_JOB = "watch_job"
    TERM_TREE = "term_tree"
    KILL_TREE = "kill_tree"
    CHECK_RESULTS = "check_results"
    RELEASE_LEASE = "release_lease"
    WRITE_EXIT = "write_exit"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class EmptyTree:
    """TERM what outlived the leader, KILL it after `gentle_s`, prove that nothing is left."""

    gentle_s: float


@dataclass(frozen=True, slots=True)
class Arm:
    """Watch a deadline `delay_s` from now."""

    timer: Timer
    delay_s: float


@dataclass(frozen=True, slots=True)
class Disarm:
    """Forget a deadline."""

    timer: Timer


Action = Do | EmptyTree | Arm | Disarm
