"""The queue: jobs, groups, submissions, orders. What they are; `core.queue.choose` says what follows from them.

A *job* is one entry of the queue; it becomes one run, with as many attempts as that needs. A *group* is a named set of
jobs with limits of its own; a sweep and a file of commands are groups too. A *submission* is what somebody handed in
at once, an *order* what somebody wants of jobs that are there. Submissions and orders are committed as files; the
database is made from them (docs/queue.md).
"""

from __future__ import annotations

from enum import Enum

from .order import CodeRef
from .profile import Profile
from .record import field, record

DEFAULT_GROUP = "default"


class JobState(str, Enum):
    """Where a job stands. No state is skipped, and each step up has its evidence (QUEUE-16)."""

    BLOCKED = "blocked"
    """Something that it needs has not been proven done."""
    QUEUED = "queued"
    """It may start when there is room."""
    HELD = "held"
    """Only a person lets it go on; the note says why."""
    CLAIMED = "claimed"
    """Its run id is committed; its run directory and supervisor are being made."""
    RUNNING = "running"
    """Its supervisor has been started; where the run itself stands (checks, line, running) its own state says."""
    PRODUCED = "produced"
    """Its run ended as succeeded; the results have not been held against the roster yet."""
    DONE = "done"
    """Proven: exit record, results, configuration."""
    FAILED = "failed"
    """Ended without success, and nothing follows by itself."""
    CANCELLED = "cancelled"
    """Somebody took it out."""
    ELSEWHERE = "elsewhere"
    """Another box has claimed it or has proven it done (shared directory)."""


WAITING_STATES = frozenset({JobState.BLOCKED, JobState.QUEUED, JobState.HELD})
ACTIVE_STATES = frozenset({JobState.CLAIMED, JobState.RUNNING, JobState.PRODUCED})
CLOSED_STATES = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


class GroupKind(str, Enum):
    """Where a group's jobs come from."""

    PLAIN = "plain"
    SWEEP = "sweep"
    LINES = "lines"


class IfChanged(str, Enum):
    """What happens when config or script differ at the start from what was submitted (docs/queue.md)."""

    RUN = "run"
    HOLD = "hold"


@record
class JobRef:
    """Which job a run is of; stored in ``run.json``, so that the queue can be rebuilt from the runs.

    `queue` is the queue's own id (random, made with it), `key` the job's identity there.
    """

    queue: str
    key: str
    group: str
    name: str


@record
class NewJob:
    """One job as it is handed in. `name` is unique in its group (letters, digits, ``-_.=``).

    `change` are fields of the encoded base job that this job has otherwise: top-level keys of
    ``wire.encode(JobSpec)``, each replaced whole; `params` the varied parameters as text, for tables. `needs` are
    jobs (``name`` of the same group, ``group/name``) or whole groups (``group/``) that must be proven done first.
    `not_before` is epoch seconds, `expected_s` the expected seconds (None: not known), `sha256` the hash of the
    resolved job.
    """

    name: str
    change: dict[str, object] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    priority: int = 0
    not_before: float | None = None
    expected_s: float | None = None
    sha256: str = ""


@record
class OrderedJobs:
    """What jobs have beyond themselves when a desk elsewhere ordered them (`model.queue_order`).

    In such jobs a relative path means below the working directory of the `code`; ``~`` and ``$NAME`` are the box's.
    Each run gets the code when it is made: a copy of its own where that is small, unless the jobs of the submission
    are so many that they share the read-only tree. `setup` are lines of sh before each job. `order_id` and `sha256`
    say which order this is: the same one is taken once. `profile` is as in `model.order.Order`.
    """

    order_id: str
    sha256: str
    code: CodeRef | None = None
    setup: tuple[str, ...] = ()
    shares_tree: bool = False
    profile: Profile | None = None


@record
class Submission:
    """What is handed in at once: a base job, and the jobs that are made from it.

    `base` is ``wire.encode(JobSpec)`` with every field. `files` are SHA-256 by absolute path of the configuration,
    entry script and lock file as they were; `environment` names the stored environment. `claims` is the shared
    directory in which jobs are claimed, for several boxes. `source` is the file that it was made from. `paused`: its
    group begins, or becomes, paused in the same act. `ordered`: a desk elsewhere handed it in.
    """

    group: str
    base: dict[str, object]
    jobs: tuple[NewJob, ...]
    runs_root: str
    cwd: str
    argv: tuple[str, ...]
    by: str
    at: str
    kind: GroupKind = GroupKind.PLAIN
    environment: str = ""
    files: dict[str, str] = field(default_factory=dict)
    max_parallel: int | None = None
    if_changed: IfChanged = IfChanged.RUN
    claims: str | None = None
    source: str | None = None
    hold_after: int = 0
    paused: bool = False
    ordered: OrderedJobs | None = None


class OrderVerb(str, Enum):
    """What may be wanted of jobs, of a group, or of the whole queue."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    CANCEL = "cancel"
    MOVE = "move"
    EDIT = "edit"
    RETRY = "retry"
    CLEAR = "clear"


@record
class QueueAct:
    """An order as it is stored. Without `group` and `jobs` it is about the whole queue.

    `jobs` are keys. `values` by verb: MOVE ``{"to": "first"|"last"|"before", "key": ...}``; EDIT any of ``priority``,
    ``not_before``, ``max_parallel``, ``hold_after``, ``cpu_slots``; RESUME ``{"accept_changes": true}``; PAUSE of
    jobs ``{"reason": ...}``.
    """

    verb: OrderVerb
    by: str
    at: str
    group: str | None = None
    jobs: tuple[str, ...] = ()
    values: dict[str, object] = field(default_factory=dict)


@record
class QueuedJob:
    """One job as the queue knows it.

    `id` grows with submission; `place` orders jobs of one priority (smaller is earlier). `cards` and `slots` are
    what it takes: leased cards, or CPU slots for a job without cards. Times are epoch seconds by the wall clock.
    `run_id` is set from CLAIMED on, `attempts` how many attempts its run has had as far as the worker saw.
    `outcome`, `exit_code` and `failure` (a FailureClass) are those of the last ended attempt. `note` says in words
    why it is held, failed or waiting. `requeued` counts the attempts that the worker began because one was lost,
    preempted or out of memory. `open_needs` counts what is not proven done yet. `accepts_changes`: somebody wants
    it to run although files differ from what was submitted.
    """

    id: int
    key: str
    group: str
    name: str
    state: JobState
    priority: int = 0
    place: float = 0.0
    cards: int = 0
    slots: int = 1
    not_before: float | None = None
    open_needs: int = 0
    expected_s: float | None = None
    params: dict[str, str] = field(default_factory=dict)
    sha256: str = ""
    claims: str | None = None
    run_id: str | None = None
    runs_root: str = ""
    attempts: int = 0
    requeued: int = 0
    outcome: str | None = None
    exit_code: int | None = None
    failure: str = ""
    note: str = ""
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    accepts_changes: bool = False

    @property
    def label(self) -> str:
        """``group/name``, as people name it; the bare name in the default group."""
        return self.name if self.group == DEFAULT_GROUP else f"{self.group}/{self.name}"

    @property
    def run_dir(self) -> str | None:
        """The run's directory; None before it has one."""
        return f"{self.runs_root}/{self.run_id}" if self.run_id is not None else None


@record
class JobGroup:
    """A group and its limits. `paused` was asked for by a person; `held` (words, else empty) stopped it by itself.

    `max_parallel` None: no limit of its own. `hold_after` jobs in a row that fail hold the group; 0: never.
    """

    name: str
    kind: GroupKind = GroupKind.PLAIN
    max_parallel: int | None = None
    paused: bool = False
    held: str = ""
    hold_after: int = 0
    source: str | None = None
    made_at: float = 0.0


@record
class QueueSettings:
    """What holds for the whole queue. `cpu_slots` None: as many as this account may use CPUs.

    `paused`: nothing new starts. `draining`: the same, and the worker leaves when what runs has ended.
    """

    queue_id: str
    paused: bool = False
    draining: bool = False
    cpu_slots: int | None = None
