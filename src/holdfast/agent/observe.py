"""What can be seen of one run, from its directory and the process table, at one moment.

A reader: it writes nothing, signals nothing, starts nothing, and never raises for what it finds in a run directory.
Three facts are kept apart: what somebody *desires* (``desired.json``), what the run's supervisor *last committed*
(``state.json``), and what *this look* could reach (`Reach`, `Presence`). Invariants:

- A file that cannot be read or parsed is named in `RunView.unreadable`; the view then falls back to the exit record,
  the
  status file, the event stream and the process table, and says which it used.
- `lost` needs positive evidence: the box was rebooted since, or every recorded process is gone, nothing carries the
  run's marker, and no status was left. A run of another host is only "last seen": its boot id proves nothing here.
- A dead supervisor over a living job is ``running, unsupervised``, not an end.

It must not know how a run is driven; settling and adopting belong to the supervisor's side.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..host import clock, fallback, files, processes
from ..model import wire
from ..model.ids import name_of
from ..model.run import Created, Desired, Ended, Finalizing, Outcome, Running, RunState, Starting, Stopping, Waiting

if TYPE_CHECKING:
    from ..model.identity import ProcessId
    from ..model.run import State

LOST = "lost"
UNREADABLE = "unreadable"
UNSUPERVISED = "unsupervised"
EVENT_TAIL_BYTES = 64 * 1024


class Presence(str, Enum):
    """Whether one recorded process is there. `UNKNOWN` is not dead: it lives on another host, or was never readable."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    UNRECORDED = "unrecorded"


class Reach(str, Enum):
    """How far this look reached."""

    HERE = "here"
    OTHER_HOST = "other_host"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that should have told something and did not: its path, and what was seen."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunView:
    """One attempt of one run as this look saw it.

    `condition` is a lifecycle state, ``<state>, unsupervised``, an outcome, ``lost`` or ``unreadable``; `note` says
    in one sentence what it rests on, or what to do. `attempts` are the numbers of all attempts, `attempt` the one
    looked at (0: there is none yet). `record`, `manifest`, `status`, `exit` and `heartbeat` are the files' JSON
    objects, empty when absent or unreadable. `members` are living processes found by the run's marker, looked for
    only when nothing recorded lives.
    """

    run_dir: str
    run_id: str
    observed_at: str
    reach: Reach
    condition: str
    note: str = ""
    host: str = ""
    attempts: tuple[int, ...] = ()
    attempt: int = 0
    state: RunState | None = None
    desired: Desired | None = None
    supervisor: Presence = Presence.UNRECORDED
    keeper: Presence = Presence.UNRECORDED
    job: Presence = Presence.UNRECORDED
    rebooted: bool = False
    members: tuple[ProcessId, ...] = ()
    record: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    exit: dict[str, Any] = field(default_factory=dict)
    heartbeat: dict[str, Any] = field(default_factory=dict)
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def name(self) -> str:
        """The run's human name."""
        return name_of(self.run_id)

    @property
    def attempt_dir(self) -> str:
        """The directory of the attempt looked at."""
        return wire.attempt_dir(self.run_dir, self.attempt)

    @property
    def end(self) -> Ended | None:
        """How it ended, when the supervisor has committed an end."""
        return self.state.state if self.state is not None and isinstance(self.state.state, Ended) else None

    @property
    def ended(self) -> bool:
        """Whether an end is on record: in the state, or, the state being unreadable, in the exit record."""
        return self.end is not None or (self.state is None and "outcome" in self.exit)

    @property
    def exit_code(self) -> int | None:
        """What `holdfast run` returns for it; None while it has not ended."""
        if self.end is not None:
            return self.end.exit_code
        code = self.exit.get("exit_code")
        return code if self.ended and isinstance(code, int) else None

    @property
    def supervised(self) -> bool:
        """Whether its supervisor is there."""
        return self.supervisor is Presence.ALIVE

    @property
    def job_lives(self) -> bool:
        """Whether anything of the job, or its keeper, is there."""
        return Presence.ALIVE in (self.job, self.keeper) or bool(self.members)

    @property
    def vanished(self) -> bool:
        """Whether it has begun, is not over, and nobody is left who could end it: time to settle it."""
        return (
            self.reach is Reach.HERE
            and self.state is not None
            and not self.over
            and self.supervisor is Presence.GONE
            and not self.job_lives
        )

    @property
    def over(self) -> bool:
        """Whether it has ended and everything about its end is written: no later look can differ."""
        return self.ended and bool(self.exit)


def list_attempts(run_dir: str) -> tuple[int, ...]:
    """The numbers of the attempts that exist, ascending; none when the directory cannot be read."""
    try:
        return read_attempts(run_dir)
    except OSError:
        return ()


def read_attempts(run_dir: str) -> tuple[int, ...]:
    """The numbers of the attempts that exist, ascending.

    Raises:
        OSError: the directory is there and cannot be read.
    """
    try:
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except FileNotFoundError:
        return ()
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0"))


def observe(run_dir: str, *, attempt: int | None = None) -> RunView:
    """Look at one attempt of a run (the newest unless told)."""
    run_dir = run_dir.rstrip("/")
    attempts = list_attempts(run_dir)
    number = attempt if attempt is not None else (attempts[-1] if attempts else 0)
    reader = _Reader(os.path.basename(run_dir), number)
    where = wire.attempt_dir(run_dir, number)
    record = reader.read_object(f"{run_dir}/{wire.RUN}", required=True)
    state = reader.read_state(f"{where}/{wire.STATE}")
    manifest = reader.read_object(f"{where}/{wire.MANIFEST}")
    host = _text(manifest.get("host")) or _text(record.get("host"))
    view = RunView(
        run_dir=run_dir,
        run_id=os.path.basename(run_dir),
        observed_at=clock.utc_now(),
        reach=_judge_reach(run_dir, host),
        condition="",
        host=host,
        attempts=attempts,
        attempt=number,
        state=state,
        desired=reader.read_desired(f"{where}/{wire.DESIRED}"),
        record=record,
        manifest=manifest,
        status=reader.read_object(f"{where}/{wire.STATUS}"),
        exit=reader.read_object(f"{where}/{wire.EXIT}"),
        heartbeat=wire.clean_heartbeat(reader.read_object(f"{where}/{wire.HEARTBEAT}")),
    )
    view = _with(view, unreadable=tuple(reader.problems))
    return _judge(_look_for_processes(view))


def read_events(run_dir: str, attempt: int) -> list[dict[str, Any]]:
    """The events of one attempt, oldest first. A torn or damaged line is left out."""
    found = []
    try:
        lines = list(files.read_lines(f"{wire.attempt_dir(run_dir, attempt)}/{wire.EVENTS}"))
    except OSError:
        return []
    for line in lines:
        try:
            found.append(wire.parse_object(line, wire.EVENTS))
        except wire.WireError:
            continue
    return found


class _Reader:
    """Reads the files of one attempt, wherever they had to be put, and keeps what could not be read."""

    def __init__(self, run_id: str, attempt: int) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self.problems: list[Unreadable] = []

    def read_object(self, path: str, *, required: bool = False) -> dict[str, Any]:
        try:
            return wire.parse_object(fallback.read(self._run_id, self._attempt, path), os.path.basename(path))
        except FileNotFoundError:
            if required:
                self.problems.append(Unreadable(path, "it does not exist"))
        except (OSError, wire.WireError) as error:
            self.problems.append(Unreadable(path, _reason(error)))
        return {}

    def read_state(self, path: str) -> RunState | None:
        data = self.read_object(path)
        if not data:
            return None
        try:
            return wire.decode(RunState, data, wire.STATE)
        except wire.WireError as error:
            self.problems.append(Unreadable(path, str(error)))
            return None

    def read_desired(self, path: str) -> Desired | None:
        data = self.read_object(path)
        if not data:
            return None
        try:
            return wire.decode(Desired, data, wire.DESIRED)
        except wire.WireError as error:
            self.problems.append(Unreadable(path, str(error)))
            return None


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _judge_reach(run_dir: str, host: str) -> Reach:
    if not os.access(run_dir, os.R_OK | os.X_OK):
        return Reach.UNREADABLE
    return Reach.OTHER_HOST if host and host != os.uname().nodename else Reach.HERE


def recorded_processes(state: State) -> tuple[ProcessId | None, ProcessId | None]:
    """The keeper and the job's leader, as far as this state knows them."""
    if isinstance(state, (Starting, Running, Stopping, Finalizing)):
        return state.keeper, None if state.job is None else state.job.process
    return None, None


def _look_for_processes(view: RunView) -> RunView:
    if view.state is None:
        return _with(view, members=_find_members(view)) if view.attempt and not view.ended else view
    if view.over:
        return view
    if view.reach is not Reach.HERE:
        unknown = Presence.UNKNOWN
        return _with(view, supervisor=unknown, keeper=unknown, job=unknown)
    keeper, job = recorded_processes(view.state.state)
    seen = _with(
        view,
        supervisor=_presence(view.state.supervisor),
        keeper=_presence(keeper),
        job=_presence(job),
        rebooted=view.state.boot_id != clock.boot_id(),
    )
    if seen.supervisor is Presence.GONE and not seen.job_lives and not seen.rebooted:
        return _with(seen, members=_find_members(seen))
    return seen


def _presence(process: ProcessId | None) -> Presence:
    if process is None:
        return Presence.UNRECORDED
    return Presence.ALIVE if processes.is_alive(process) else Presence.GONE


def _find_members(view: RunView) -> tuple[ProcessId, ...]:
    if view.reach is not Reach.HERE:
        return ()
    return tuple(processes.find_marked(view.run_id, view.attempt))


def _judge(view: RunView) -> RunView:
    condition, note = _judge_state(view, view.state) if view.state is not None else _judge_without_state(view)
    return _with(view, condition=condition, note=note)


def _judge_state(view: RunView, state: RunState) -> tuple[str, str]:
    kind = type(state.state).__name__.lower()
    if isinstance(state.state, Ended):
        return state.state.outcome.value, state.state.evidence
    if view.reach is not Reach.HERE:
        return kind, f"last seen {state.updated_at or state.created_at}; it belongs to host {view.host or 'unknown'}"
    if isinstance(state.state, Created) and state.supervisor is None and not view.rebooted:
        return kind, "no supervisor has taken it up yet"
    if view.supervised:
        assert state.supervisor is not None
        if (asleep := processes.read_stat(state.supervisor.pid)) is not None and asleep.state in "Tt":
            pid = state.supervisor.pid
            return kind, f"its supervisor (pid {pid}) was stopped by a signal and does nothing until kill -CONT {pid}"
        return kind, _describe(state.state)
    if view.job_lives:
        if view.job is Presence.GONE and not view.members:
            return f"finalizing, {UNSUPERVISED}", f"its supervisor is gone; holdfast adopt {view.run_id} finishes it"
        return f"running, {UNSUPERVISED}", f"its supervisor is gone, the job lives; holdfast adopt {view.run_id}"
    if view.status:
        return f"finalizing, {UNSUPERVISED}", "the job has ended and left its status; nobody has finished the run yet"
    if view.rebooted:
        return LOST, "the box was rebooted while it ran (its boot id is not today's)"
    return LOST, "every process that was recorded is gone, none carries the run's marker, and no status was left"


def _describe(state: State) -> str:
    if isinstance(state, Waiting):
        return "; ".join(f"{busy.label} is held by {busy.holder}" for busy in state.blocked_by)
    if isinstance(state, Stopping):
        return f"{state.request.words}, rung {state.rung.value}"
    if isinstance(state, Finalizing) and state.stuck:
        return "survived KILL so far: " + "; ".join(state.stuck)
    return ""


def _judge_without_state(view: RunView) -> tuple[str, str]:
    broken = next((p for p in view.unreadable if p.path.endswith("/" + wire.STATE)), None)
    if broken is None:
        if view.reach is Reach.UNREADABLE:
            return UNREADABLE, f"{view.run_dir} cannot be read"
        return ("created", "") if view.record else (UNREADABLE, "there is no run.json in it")
    outcome = view.exit.get("outcome")
    if outcome in {item.value for item in Outcome}:
        return str(outcome), f"by {wire.EXIT}: {broken.path} is unreadable ({broken.reason})"
    if view.members:
        pids = ", ".join(str(member.pid) for member in view.members)
        return UNREADABLE, f"{broken.path}: {broken.reason}; processes with the run's marker live: {pids}"
    last = _last_event(view)
    return (
        UNREADABLE,
        f"{broken.path}: {broken.reason}; the last event is {last}" if last else f"{broken.path}: {broken.reason}",
    )


def _last_event(view: RunView) -> str:
    events = read_events(view.run_dir, view.attempt)
    return f"{events[-1].get('event')} at {events[-1].get('utc')}" if events else ""


def _with(view: RunView, **changes: Any) -> RunView:  # noqa: ANN401 - passed on to dataclasses.replace
    from dataclasses import replace

    return replace(view, **changes)
