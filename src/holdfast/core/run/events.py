"""Events and actions of the lifecycle table: what can happen to a run, and what can be done about it.

Events are facts in the past tense, actions are orders in the imperative; every action may be carried out twice without
harm.
"""

from __future__ import annotations

from enum import Enum

from holdfast.model.finding import Finding
from holdfast.model.identity import JobProcess, ProcessId, WaitStatus
from holdfast.model.lease import BusyReason, LeasedDevice
from holdfast.model.record import record
from holdfast.model.run import Refusal, StopRecord, StopRequest


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


@record
class Moment:
    """The moment of an event: ISO UTC for people, epoch seconds for arithmetic."""

    utc: str
    epoch_s: float


@record
class RunPlan:
    """What the table needs to know of the job and the rules. Seconds; None is no limit.

    `copies`: results are copied after a success, within `copy_s` at most. `grace_s` is the time between TERM and KILL,
    `grace_max_s` the ceiling while a shutdown makes progress.
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
    copies: bool = False
    copy_s: float = 86400.0


@record
class Began:
    """A supervisor has taken the run up for the first time."""


@record
class Resumed:
    """A supervisor has taken up a run that another one left; what it sees of the job now.

    `job_alive`: the recorded leader lives and has exec'd. `members_alive`: the keeper or any other process of the
    tree lives. `status`: how the leader ended, if that was witnessed. `rebooted`: nothing of it can live: another
    boot, or a place that is gone.
    """

    job_alive: bool
    members_alive: bool
    status: WaitStatus | None
    rebooted: bool = False


@record
class ChecksDone:
    """Preflight has been through all its checks."""

    findings: tuple[Finding, ...]


@record
class LeaseBlocked:
    """No card for now; `final` when this run does not wait. `short`: how many are asked for and free, in words.

    `sharing` says what would have to be for the run to share a card that another one has; empty where that helps not.
    """

    busy: tuple[BusyReason, ...]
    final: bool
    short: str = ""
    sharing: str = ""


@record
class LeaseGranted:
    """All cards are locked and were checked again under the lock."""

    devices: tuple[LeasedDevice, ...]


@record
class LeaseFailed:
    """Cards cannot be leased at all (no such card, no lease area, unhealthy)."""

    refusal: Refusal


@record
class JobReported:
    """Keeper and job exist, have said who they are, and wait for the word to go."""

    keeper: ProcessId
    job: JobProcess


@record
class JobStarted:
    """The exec of the job's command succeeded. `let_go` is when it was told to begin (ISO UTC).

    It may have written its results, and have ended, before this is heard.
    """

    let_go: str


@record
class StartFailed:
    """The job could not be started; nothing of it runs."""

    refusal: Refusal


@record
class JobExited:
    """The leader has ended and its status was witnessed."""

    status: WaitStatus


@record
class JobVanished:
    """The leader is gone and nobody witnessed how."""


@record
class TreeEmptied:
    """No process of the run is left: proven, not assumed. `stop` is what the training library wrote on leaving."""

    stop: StopRecord | None = None


@record
class TreeStuck:
    """KILL was sent and these are still there, each described with what it waits on."""

    survivors: tuple[str, ...]


@record
class StopWanted:
    """Somebody or something wants the run to end."""

    request: StopRequest


@record
class TimerFired:
    """A deadline has passed. For GRACE, `progressing` says that the job's shutdown still writes."""

    timer: Timer
    progressing: bool = False


@record
class ResultsChecked:
    """Postflight has been through all its checks."""

    findings: tuple[Finding, ...]


@record
class ResultsCopied:
    """The copy of the results is proven, or given up: all findings about the end."""

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
    | ResultsCopied
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
    ResultsCopied,
)


class SimpleAction(str, Enum):
    """Actions without data."""

    RUN_CHECKS = "run_checks"
    TAKE_LEASE = "take_lease"
    START_JOB = "start_job"
    LET_GO = "let_go"
    WATCH_JOB = "watch_job"
    TERM_TREE = "term_tree"
    KILL_TREE = "kill_tree"
    CHECK_RESULTS = "check_results"
    COPY_RESULTS = "copy_results"
    RELEASE_LEASE = "release_lease"
    WRITE_EXIT = "write_exit"
    LEAVE = "leave"


@record
class EmptyTree:
    """TERM what outlived the leader, KILL it after `gentle_s`, prove that nothing is left."""

    gentle_s: float


@record
class EndCopy:
    """Give the copy of the results up, and say so as `why`; one that is done stays done."""

    why: str


@record
class Arm:
    """Watch a deadline `delay_s` from now."""

    timer: Timer
    delay_s: float


@record
class Disarm:
    """Forget a deadline."""

    timer: Timer


Action = SimpleAction | EmptyTree | EndCopy | Arm | Disarm
