"""`RunView`: what one look at a run found, as values; `observe.observe_run` makes it.

It must not look itself: nothing here reads a file or the process table.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from holdfast.host.files.job_change import find_job
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun
from holdfast.model.identity import ABANDONED, ProcessId
from holdfast.model.ids import name_of
from holdfast.model.receipt import CopyMark
from holdfast.model.record import field, record
from holdfast.model.run import (
    Created,
    Ended,
    Finalizing,
    Outcome,
    Preflight,
    Running,
    RunRequest,
    RunState,
    Starting,
    State,
    Stopping,
    Waiting,
)

LOST = "lost"
UNREADABLE = "unreadable"
UNSUPERVISED = "unsupervised"


class Presence(str, Enum):
    """Whether one recorded process is there. `UNKNOWN` is not dead: it lives elsewhere, or was never readable."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNRECORDED = "unrecorded"


class RunReach(str, Enum):
    """How far this look reached."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    """Another machine or another table of processes (a container), or nothing proves that it is this one."""
    UNREADABLE = "unreadable"


@record
class Unreadable:
    """A file that should have told something and did not: its path, and what was seen."""

    path: str
    reason: str

    @property
    def words(self) -> str:
        """The same for people."""
        return f"{self.path} cannot be read ({self.reason})"


@record
class RunView:
    """One attempt of one run as this look saw it.

    `condition` is a lifecycle state, ``<state>, unsupervised``, an outcome, ``lost`` or ``unreadable``; `note` says
    in one sentence what it rests on, or what to do. `attempts` are the numbers of all attempts, `attempt` the one
    looked at (0: there is none yet). `record`, `manifest`, `status`, `exit` and `heartbeat` are the files' JSON
    objects, empty when absent or unreadable. `members` are living processes found by the run's marker, looked for
    only when nothing recorded lives. `holder` is the supervisor of an attempt whose state cannot be read: the process
    that holds the run's lock; None where that is not seen. `change` is the ``job.json`` in force, empty while nobody
    changed the job. `results` is what became of the copy of its results, but for the files. Where that was made up
    for after the end, `exit` and the end say that it succeeded, and ``exit.json`` still says what was so then. `copy`
    says of which run this is a copy, None for a run itself: a copy has no processes, whatever they say. `outside`:
    it is on this machine, and not to be seen from within this container or job.
    """

    run_dir: str
    run_id: str
    observed_at: str
    reach: RunReach
    condition: str
    note: str = ""
    host: str = ""
    attempts: tuple[int, ...] = ()
    attempt: int = 0
    state: RunState | None = None
    desired: RunRequest | None = None
    supervisor: Presence = Presence.UNRECORDED
    keeper: Presence = Presence.UNRECORDED
    job: Presence = Presence.UNRECORDED
    rebooted: bool = False
    members: tuple[ProcessId, ...] = ()
    holder: ProcessId | None = None
    record: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    exit: dict[str, Any] = field(default_factory=dict)
    heartbeat: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()
    copy: CopyMark | None = None
    outside: bool = False

    @property
    def name(self) -> str:
        """The run's human name."""
        return name_of(self.run_id)

    @property
    def spec(self) -> dict[str, Any]:
        """The job of this attempt, as JSON: as it was asked for, or as somebody changed it since."""
        return find_job(self.record, self.change)

    @property
    def ordered_by(self) -> str:
        """Who ordered it from another machine, as ``anna@desk``; empty where nobody did."""
        author = self.record.get("ordered_by")
        return author if isinstance(author, str) else ""

    @property
    def scheduler(self) -> str:
        """Who starts its attempts where that is no supervisor of ours (`RunOrigin.scheduler`); empty: holdfast does."""
        return _text(self.record.get("scheduler"))

    @property
    def attempt_dir(self) -> str:
        """The directory of the attempt looked at."""
        return wire.attempt_dir(self.run_dir, self.attempt)

    @property
    def end(self) -> Ended | None:
        """How it ended, when the supervisor has committed an end."""
        return self.state.state if self.state is not None and isinstance(self.state.state, Ended) else None

    @property
    def doubt(self) -> str:
        """The class of what speaks against a success; empty when nothing does, and of any other end."""
        kind = self.exit.get("failure_class")
        succeeded = self.end is not None and self.end.outcome is Outcome.SUCCEEDED
        return kind if succeeded and isinstance(kind, str) else ""

    @property
    def was_refused(self) -> bool:
        """Whether it ended before anything of its job was begun, in its first attempt."""
        return self.over and self.attempt == 1 and self.end is not None and self.end.refusal is not None

    @property
    def exit_code(self) -> int | None:
        """What `holdfast run` returns for it; None while it is not over."""
        code = self.exit.get("exit_code") if self.end is None else self.end.exit_code
        return code if self.over and isinstance(code, int) else None

    @property
    def supervised(self) -> bool:
        """Whether its supervisor is there."""
        return self.supervisor is Presence.ALIVE

    @property
    def supervisor_process(self) -> ProcessId | None:
        """Its supervisor, dead or alive: the one on record, else the one that holds its lock."""
        return self.holder if self.state is None else self.state.supervisor

    def find_unreadable(self, name: str) -> Unreadable | None:
        """What was seen of a record that cannot be read; None when it can be, or is not there."""
        return next((item for item in self.unreadable if item.path.endswith(f"/{name}")), None)

    @property
    def job_lives(self) -> bool:
        """Whether anything of the job, or its keeper, is there."""
        return Presence.ALIVE in (self.job, self.keeper) or bool(self.members)

    @property
    def vanished(self) -> bool:
        """Whether it has begun, is not over, and nobody is left who could end it: time to settle it."""
        return (
            self.reach is RunReach.HERE
            and self.state is not None
            and not self.over
            and self.supervisor is Presence.GONE
            and not self.job_lives
        )

    @property
    def over(self) -> bool:
        """Whether it has ended and everything about its end is written: no later look can differ.

        With an unreadable state the exit record alone tells.
        """
        return bool(self.exit) and (self.end is not None or (self.state is None and "outcome" in self.exit))


def recorded_processes(state: State) -> tuple[ProcessId | None, ProcessId | None]:
    """The keeper and the job's leader, as far as this state knows them."""
    if isinstance(state, (Starting, Running, Stopping, Finalizing)):
        return state.keeper, None if state.job is None else state.job.process
    return None, None


def is_never_taken(view: RunView) -> bool:
    """Whether the attempt was made and no supervisor has taken it up."""
    return view.state is not None and isinstance(view.state.state, Created) and view.state.supervisor is None


def is_unstarted(view: RunView) -> bool:
    """Whether the word to go was certainly never given to the job."""
    state = view.state.state if view.state is not None else None
    if isinstance(state, Starting):
        return state.job is None or view.status.get("source") == ABANDONED
    return isinstance(state, (Created, Preflight, Waiting))


def build_unbegun_error(view: RunView) -> NoSuchRun:
    """What is said of a run that has no attempt. It is made whole, with its first one: none is going to come."""
    return NoSuchRun(f"{view.run_id} has no attempt: nothing was ever started", hint=f"holdfast show {view.run_dir}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
