"""A run's life as data: the lifecycle states, the outcome, the facts that are kept apart.

A state carries exactly what is true in it. The outcome is a second type, set once, with its evidence. What somebody
wants (`RunRequest`) and what was seen (`RunState`) are different files with different writers.
"""

from __future__ import annotations

from enum import Enum

from .finding import Finding
from .identity import BoxIdentity, JobProcess, ProcessId, WaitStatus
from .lease import BusyReason, LeasedDevice
from .record import record

SCHEMA = 1
"""The format of every file in a run directory. It grows when a field gets another meaning, not when one is added."""


class StopCause(str, Enum):
    """Why a run is being ended before its time."""

    OPERATOR = "operator"
    SIGNAL = "signal"
    PREEMPTION = "preemption"
    DEADLINE = "deadline"
    DISK_FULL = "disk_full"
    LEASE_MISMATCH = "lease_mismatch"
    MEMORY = "memory"
    MAX_HOLD = "max_hold"
    STALLED = "stalled"


TAKEN_FOR_GONE = "its place was taken for gone"
"""Who ends a run that somebody goes on with elsewhere, because this place was said to be gone."""


class StopRung(str, Enum):
    """Where the stop ladder stands: TERM and the grace that follows, or KILL."""

    TERM = "term"
    KILL = "kill"


class Outcome(str, Enum):
    """How a run ended; set exactly once."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"
    LOST = "lost"


_ENDED = {
    Outcome.SUCCEEDED.value: "has succeeded",
    Outcome.FAILED.value: "has failed",
    Outcome.STOPPED.value: "was stopped",
    Outcome.PREEMPTED.value: "was preempted",
    Outcome.TIMED_OUT.value: "has timed out",
}


def say_condition(condition: str) -> str:
    """How a run stands, behind its name in a sentence: ``is running``, ``has succeeded``, ``is lost``."""
    return _ENDED.get(condition, f"is {condition}")


class CopyState(str, Enum):
    """Where the copy of a run's results stands (`model.results`)."""

    COPYING = "copying"
    COPIED = "copied"
    FAILED = "failed"


@record
class StopRequest:
    """Why the run is being stopped, by whom (a phrase for people), and whether to skip straight to KILL.

    `warned`: its place has warned it ahead of ending it, and has not begun to.
    """

    cause: StopCause
    by: str
    force: bool = False
    detail: str = ""
    warned: bool = False

    @property
    def words(self) -> str:
        """Cause and author as a phrase: ``asked to stop by anna``, ``deadline by holdfast``."""
        cause = "asked to stop" if self.cause is StopCause.OPERATOR else self.cause.value.replace("_", " ")
        return f"{cause} by {self.by}"


@record
class Refusal:
    """Why the job never ran: a stable `code`, holdfast's `exit_code` for it, and the words.

    For a busy card `busy` names the holders; for failed checks `findings` has them.
    """

    code: str
    exit_code: int
    message: str
    hint: str = ""
    busy: tuple[BusyReason, ...] = ()
    findings: tuple[Finding, ...] = ()


@record
class StopRecord:
    """Why a training left before its supervisor made it, as its library wrote it into ``stop.json`` (LIB-18).

    `why` is ``signal``, ``deadline``, ``operator``, ``memory``, ``user``, ``nonfinite``, ``save_failed``, ``exception``
    or ``finished``; `step` the last step done, `checkpoint_step` the newest durable one, `saved` whether that was
    written on leaving, `seconds` what leaving took. The job writes it: a claim, to be held against its exit status.
    """

    why: str
    detail: str = ""
    step: int | None = None
    checkpoint_step: int | None = None
    saved: bool = False
    seconds: float | None = None
    at: str = ""
    traceback: str = ""


@record
class Created:
    """The run directory exists; nothing has been done."""


@record
class Preflight:
    """Checks are running since `since` (ISO UTC)."""

    since: str


@record
class Waiting:
    """Cards are being leased, at once or in line; `blocked_by` says who is in the way."""

    since: str
    blocked_by: tuple[BusyReason, ...] = ()


@record
class Starting:
    """Leases are held; keeper and job are coming up. `job` is committed before the job may exec.

    `began` is when the leases were taken (epoch seconds), None in a record that did not say.
    """

    since: str
    devices: tuple[LeasedDevice, ...] = ()
    keeper: ProcessId | None = None
    job: JobProcess | None = None
    began: float | None = None


@record
class Running:
    """The job's exec was seen to succeed.

    `began` is when that was and `held_from` when its cards were leased (epoch seconds), so that a supervisor that takes
    over arms only what is left of the limits; None in a record that did not say.
    """

    since: str
    devices: tuple[LeasedDevice, ...]
    keeper: ProcessId
    job: JobProcess
    began: float | None = None
    held_from: float | None = None


@record
class Stopping:
    """The stop ladder is at `rung`; the whole stop began at `began` (epoch seconds).

    `status` is set when the leader has left while others of its tree are still at work within the grace.
    """

    since: str
    devices: tuple[LeasedDevice, ...]
    keeper: ProcessId
    job: JobProcess
    request: StopRequest
    rung: StopRung
    began: float
    status: WaitStatus | None = None


@record
class Finalizing:
    """The leader is gone or never was: empty the tree, check the results, give the cards back.

    At most one of `status` and `refusal` is set, or neither when the job's end was not witnessed. `emptied` turns True
    when the tree was proven empty; `stuck` lists what survived KILL so far. `stop` is what the training library left,
    read once nobody is there who could still write it. `copying` is since when its results are being copied: the job
    has succeeded and its cards are given back.
    """

    since: str
    devices: tuple[LeasedDevice, ...] = ()
    keeper: ProcessId | None = None
    job: JobProcess | None = None
    started_at: str | None = None
    status: WaitStatus | None = None
    refusal: Refusal | None = None
    request: StopRequest | None = None
    emptied: bool = False
    stuck: tuple[str, ...] = ()
    stop: StopRecord | None = None
    copying: str | None = None


@record
class Ended:
    """Over. `exit_code` is what `holdfast run` returns; `evidence` proves the outcome.

    `stop` is what the training library said about its leaving; None when it said nothing.
    """

    at: str
    outcome: Outcome
    exit_code: int
    evidence: str
    status: WaitStatus | None = None
    refusal: Refusal | None = None
    request: StopRequest | None = None
    started_at: str | None = None
    warnings: tuple[str, ...] = ()
    stop: StopRecord | None = None


State = Created | Preflight | Waiting | Starting | Running | Stopping | Finalizing | Ended
STATES: tuple[type, ...] = (Created, Preflight, Waiting, Starting, Running, Stopping, Finalizing, Ended)


@record
class RunState:
    """The content of ``state.json``: who supervises, and where the run stands.

    `version` grows by one with every commit; a supervisor that finds a newer version than its own has been replaced
    and must stop writing. `box` is where the attempt was begun. `generation` is the number of the attempt that somebody
    asked for: those that holdfast begins after it by itself keep it, and so share what is asked of them. `unlocked`:
    the run's directory takes no locks, so nothing keeps a second supervisor out by force. `boot_epoch_s` is when the
    box was started by the wall clock of the attempt's creation; deadlines are counted from it and the time since, so
    that no later setting of the wall clock moves them. None: written before there was this field.
    """

    run_id: str
    attempt: int
    version: int
    box: BoxIdentity
    created_at: str
    supervisor: ProcessId | None
    state: State
    updated_at: str = ""
    generation: int = 1
    unlocked: bool = False
    boot_epoch_s: float | None = None


@record
class PlaceGone:
    """The content of ``gone.json``: the word of a person, or of a scheduler, that the place of an attempt is gone.

    `box` is where it was begun. `cause` is why the place ended it, where a scheduler told.
    """

    by: str
    at: str
    reason: str
    box: BoxIdentity
    cause: StopCause | None = None


class RequestKind(str, Enum):
    """What somebody may want of a live run."""

    STOP = "stop"
    STOP_NOW = "stop_now"


@record
class RunRequest:
    """The content of a run's ``desired.json``: a durable request, seen by the supervisor whenever it looks.

    It is about the attempts of one `generation` (`RunState`): an old stop does not end a run that was started again.
    """

    kind: RequestKind
    by: str
    at: str
    reason: str = ""
    generation: int = 1


@record
class LimitsRequest:
    """The content of ``limits_wanted.json``: somebody wants other limits of a live job (LIM-11).

    `values` are JSON values by field of `JobSpec` (``limits.memory_bytes``). `force`: also where the job is above a
    limit now, and would be killed by it.
    """

    id: str
    by: str
    at: str
    values: dict[str, object]
    force: bool = False


@record
class CheckpointRequest:
    """The content of ``checkpoint_wanted.json``: somebody wants the job to save and go on (LIB-17)."""

    id: str
    by: str
    at: str
    reason: str = ""
