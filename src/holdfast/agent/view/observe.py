"""What can be seen of one run, from its directory and the process table, at one moment.

A reader: it writes nothing, signals nothing, starts nothing, and never raises for what it finds in a run directory.
Three facts are kept apart: what somebody *desires* (``desired.json``), what the run's supervisor *last committed*
(``state.json``), and what *this look* could reach (`RunReach`, `Presence`). Invariants:

- A file that cannot be read or parsed is named in `RunView.unreadable`; the view then falls back to the exit record,
  the status file, the event stream and the process table, and says which it used. A supervisor that no state names is
  known by the lock of the run, which it holds for its life.
- `lost` needs positive evidence: this very machine was rebooted since, or every recorded process is gone, nothing
  carries the run's marker, and no status was left. A run that was not provably begun on this box, in this table of
  processes, is only "last seen": its pids prove nothing here, whatever the host is called (`host.box`).
- A dead supervisor over a living job is ``running, unsupervised``, not an end.
- An end counts when the exit record is there, which is written last; a state of kind `ended` alone is `finalizing`.
- Processes are looked for after the files were read. Where the supervisor is gone the files are read again: what it
  wrote just before it left is seen.

It must not know how a run is driven; settling and adopting belong to the supervisor's side.
"""

from __future__ import annotations

import os
from typing import Any

from holdfast.agent.requests import read_request
from holdfast.core.run.copied import describe_copy, make_good, may_have_copy
from holdfast.host import clock
from holdfast.host.box import BoxMatch, find_box, is_outside, may_be_same, read_box
from holdfast.host.files import fallback, files
from holdfast.host.files.filesystems import is_local
from holdfast.host.files.job_change import find_newest_step, read_job_change
from holdfast.host.formats.copy_mark import describe_mark, find_copy
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD
from holdfast.model.identity import ProcessId
from holdfast.model.record import replace
from holdfast.model.run import (
    Ended,
    Finalizing,
    Outcome,
    RunRequest,
    RunState,
    State,
    Stopping,
    Waiting,
)
from holdfast.model.units import format_duration

from .newer import find_newer
from .retries import count_automatic
from .run_view import (
    LOST,
    UNREADABLE,
    UNSUPERVISED,
    Presence,
    RunReach,
    RunView,
    Unreadable,
    is_never_taken,
    is_unstarted,
    recorded_processes,
)

LARGEST_RECORD_BYTES = 4 * 1024**2
"""A file of a run that is larger is none that holdfast wrote: its job, or another account, made it so."""
UNTAKEN_S = 120.0
"""After this a run that no supervisor has taken up is nobody's: one comes up within seconds, also on a busy box."""


def list_attempts(run_dir: str) -> tuple[int, ...]:
    """The numbers of the attempts that exist, ascending; none when the directory cannot be read."""
    try:
        return read_attempts(run_dir)
    except OSError:
        return ()


def list_begun(run_dir: str) -> tuple[int, ...]:
    """The numbers of the attempts that were begun, ascending: a directory without a state never was (a crash)."""
    numbers = list_attempts(run_dir)
    return tuple(number for number in numbers if os.path.lexists(f"{wire.attempt_dir(run_dir, number)}/{wire.STATE}"))


def read_attempts(run_dir: str) -> tuple[int, ...]:
    """The numbers of the attempts that exist, ascending.

    A directory in which nothing stands is none: whoever made it was killed before it said what it is for.

    Raises:
        OSError: the directory is there and cannot be read.
    """
    try:
        names = os.listdir(f"{run_dir}/{wire.ATTEMPTS}")
    except FileNotFoundError:
        return ()
    numbers = (int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0")
    return tuple(sorted(number for number in numbers if _holds_anything(wire.attempt_dir(run_dir, number))))


def _holds_anything(directory: str) -> bool:
    """Whether something stands in an attempt's directory, beyond what a killed commit left."""
    if os.path.lexists(f"{directory}/{wire.STATE}"):
        return True
    try:
        return any(not files.is_temporary(name) for name in os.listdir(directory))
    except OSError:
        return True


def observe_run(run_dir: str, *, attempt: int | None = None) -> RunView:
    """Look at one attempt of a run (the newest unless told)."""
    view = _look(run_dir, attempt)
    if view.supervisor is Presence.GONE:
        # It may have written the end between our look at the files and our look for it.
        view = _look(run_dir, attempt)
    return _judge(view)


def _look(run_dir: str, attempt: int | None) -> RunView:
    run_dir = run_dir.rstrip("/")
    attempts = list_attempts(run_dir)
    number = attempt if attempt is not None else (attempts[-1] if attempts else 0)
    reader = _Reader(os.path.basename(run_dir), number)
    where = wire.attempt_dir(run_dir, number)
    record = reader.read_object(f"{run_dir}/{wire.RUN}", required=True)
    state = reader.read_state(f"{where}/{wire.STATE}")
    manifest = reader.read_object(f"{where}/{wire.MANIFEST}")
    mark = find_copy(run_dir, record.get("run_id"))
    reach, rebooted = _judge_reach(run_dir, state, _text(record.get("host")))
    if mark is not None and reach is RunReach.HERE:
        reach, rebooted = RunReach.ELSEWHERE, False
    view = RunView(
        run_dir=run_dir,
        run_id=os.path.basename(run_dir) if mark is None or not mark.place else mark.run_id,
        observed_at=clock.utc_now(),
        reach=reach,
        condition="",
        host=state.box.host if state is not None else _text(record.get("host")),
        rebooted=rebooted,
        attempts=attempts,
        attempt=number,
        state=state,
        desired=reader.read_desired(run_dir, _find_generation(run_dir, number, state)),
        record=record,
        manifest=manifest,
        status=reader.read_status(where),
        exit=reader.read_object(f"{where}/{wire.EXIT}"),
        heartbeat=wire.clean_heartbeat(reader.read_object(f"{where}/{wire.HEARTBEAT}")),
        change=reader.read_change(run_dir),
        copy=mark,
    )
    if may_have_copy(view.spec, view.exit):
        told = reader.read_object(f"{where}/{wire.RESULTS}")
        view = _with(view, results={key: value for key, value in told.items() if key != "files"})
        good = make_good(view.end, view.exit, view.results) if view.over and view.end is not None else None
        if good is not None and view.state is not None:
            view = _with(view, state=replace(view.state, state=good[0]), exit=good[1])
    return _look_for_processes(_with(view, unreadable=tuple(reader.problems)))


def find_durable_step(view: RunView) -> int | None:
    """The step of an attempt's newest checkpoint; None where none is known.

    Of the newest attempt it is the one on disk, from which a restart goes on; of an earlier one, or where none is seen
    on disk, the one that the training told of.
    """
    found = find_newest_step(view.run_dir, view.spec) if view.attempt == max(view.attempts, default=0) else None
    if found is not None:
        return found
    left = None if view.end is None else view.end.stop
    told = (None if left is None else left.checkpoint_step, view.heartbeat.get("last_durable_step"))
    return max((step for step in told if isinstance(step, int)), default=None)


def _find_generation(run_dir: str, attempt: int, state: RunState | None) -> int:
    """The generation of an attempt; what is asked of a run is asked of one."""
    return attempt - count_automatic(run_dir, attempt) if state is None else state.generation


def read_events(run_dir: str, attempt: int) -> list[dict[str, Any]]:
    """The events of one attempt, oldest first. A torn or damaged line is left out; of a huge file the end is read."""
    found = []
    try:
        lines = files.read_last_lines(f"{wire.attempt_dir(run_dir, attempt)}/{wire.EVENTS}")
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
            data = fallback.read(self._run_id, self._attempt, path, limit=LARGEST_RECORD_BYTES)
            return wire.parse_object(data, os.path.basename(path))
        except FileNotFoundError:
            if required:
                self.problems.append(Unreadable(path, "it does not exist"))
        except (OSError, wire.WireError) as error:
            self.problems.append(Unreadable(path, _reason(error)))
        return {}

    def read_status(self, directory: str) -> dict[str, Any]:
        """The end of the job's leader; not that of a container's client which left before the container."""
        found = self.read_object(f"{directory}/{wire.STATUS}")
        return {} if found and self.read_object(f"{directory}/{CONTAINER_RECORD}").get("lost") is True else found

    def read_state(self, path: str) -> RunState | None:
        data = self.read_object(path)
        if not data:
            return None
        try:
            wire.require_format(data, wire.STATE)
            return wire.decode(RunState, data, wire.STATE)
        except wire.WireError as error:
            self.problems.append(Unreadable(path, str(error)))
            return None

    def read_change(self, run_dir: str) -> dict[str, Any]:
        try:
            return read_job_change(run_dir, self._attempt)[1]
        except (OSError, wire.WireError) as error:
            paths = [f"{wire.attempt_dir(run_dir, number)}/{wire.JOB}" for number in range(self._attempt, 0, -1)]
            self.problems.append(Unreadable(next(filter(os.path.lexists, paths), paths[0]), _reason(error)))
            return {}

    def read_desired(self, run_dir: str, generation: int) -> RunRequest | None:
        try:
            return read_request(run_dir, generation)
        except (OSError, wire.WireError) as error:
            self.problems.append(Unreadable(f"{run_dir}/{wire.DESIRED}", _reason(error)))
            return None


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _judge_reach(run_dir: str, state: RunState | None, host: str) -> tuple[RunReach, bool]:
    """How far a look reaches, and whether this machine was started again since the attempt was begun."""
    if not os.access(run_dir, os.R_OK | os.X_OK):
        return RunReach.UNREADABLE, False
    here = read_box()
    if state is None:
        # Nothing tells of its processes then: they are only looked for by their marker, which no other run has.
        return RunReach.ELSEWHERE if host and host != here.host else RunReach.HERE, False
    match = find_box(state.box, (state.supervisor, *recorded_processes(state.state)))
    # Machines from one image have one machine id; that two of them have one local disk is out of the question.
    if match is BoxMatch.REBOOTED and is_local(run_dir):
        return RunReach.HERE, True
    # Nothing is left to be judged by its processes.
    ended_here = isinstance(state.state, Ended) and may_be_same(state.box, here)
    return RunReach.HERE if match is BoxMatch.SAME or ended_here else RunReach.ELSEWHERE, False


def _look_for_processes(view: RunView) -> RunView:
    if view.state is None:
        seen = _with(view, members=_find_members(view)) if view.attempt and not view.over else view
        return _look_for_holder(seen) if seen.attempt else seen
    if view.over:
        return _with(view, rebooted=False)
    if view.reach is not RunReach.HERE:
        unknown = Presence.UNKNOWN
        outside = is_outside(view.state.box, read_box())
        return _with(view, supervisor=unknown, keeper=unknown, job=unknown, outside=outside)
    keeper, job = recorded_processes(view.state.state)
    seen = _with(
        view,
        supervisor=Presence.GONE if _is_abandoned(view) else _presence(view.state.supervisor),
        keeper=_presence(keeper),
        job=_presence(job),
    )
    if seen.supervisor is Presence.GONE and not seen.job_lives and not seen.rebooted:
        return _with(seen, members=_find_members(seen))
    return seen


def _look_for_holder(view: RunView) -> RunView:
    """Whether somebody supervises a run whose state cannot be read, and who: whoever holds the lock of the run."""
    path = f"{view.run_dir}/{wire.SUPERVISOR_LOCK}"
    if view.over or view.reach is not RunReach.HERE or view.attempt != view.attempts[-1] or not files.is_locked(path):
        return view
    from holdfast.host.lease.holders import locks_on, read_kernel_locks  # lazy: for a damaged run that lives alone

    takers = (lock.pid for lock in locks_on(path, read_kernel_locks() or ()) if lock.exclusive and lock.pid > 0)
    found = next(filter(None, map(processes.identify, takers)), None)
    seen = _with(view, supervisor=Presence.ALIVE, holder=found)
    if view.find_unreadable(wire.STATE) is None:
        # An attempt is made with its state, so somebody has removed it.
        gone = Unreadable(f"{view.attempt_dir}/{wire.STATE}", "it does not exist")
        return _with(seen, unreadable=(*view.unreadable, gone))
    return seen


def _is_abandoned(view: RunView) -> bool:
    """Whether it has been created for so long without a supervisor that none will come: whoever made it was killed.

    A run of the queue is taken up by the next worker, also after a restart of the box; one of a scheduler by that.
    """
    if not is_never_taken(view) or view.record.get("queued") is not None or view.scheduler:
        return False
    assert view.state is not None
    age_s = clock.find_age(view.state.created_at, clock.epoch_s())
    locked = files.is_locked(f"{view.run_dir}/{wire.SUPERVISOR_LOCK}")
    return view.rebooted or (age_s is not None and age_s > UNTAKEN_S and locked is False)


def _presence(process: ProcessId | None) -> Presence:
    if process is None:
        return Presence.UNRECORDED
    return Presence.ALIVE if processes.is_alive(process) else Presence.GONE


def _find_members(view: RunView) -> tuple[ProcessId, ...]:
    if view.reach is not RunReach.HERE:
        return ()
    return tuple(processes.find_marked(view.run_id, view.attempt))


def _judge(view: RunView) -> RunView:
    condition, note = _judge_state(view, view.state) if view.state is not None else _judge_without_state(view)
    if view.copy is not None:
        note = describe_mark(view.copy) + (f"; {note}" if note and view.over else "")
    return _with(view, condition=condition, note=note)


def _judge_state(view: RunView, state: RunState) -> tuple[str, str]:
    end = view.end
    if end is not None and view.over:
        return end.outcome.value, end.evidence
    kind = "finalizing" if end is not None else type(state.state).__name__.lower()
    if view.reach is not RunReach.HERE:
        return kind, _describe_elsewhere(view, state.updated_at or state.created_at)
    if is_never_taken(view) and not view.vanished:
        return kind, "no supervisor has taken it up yet"
    if view.supervised:
        assert state.supervisor is not None
        if (asleep := processes.read_stat(state.supervisor.pid)) is not None and asleep.state in "Tt":
            pid = state.supervisor.pid
            return kind, f"its supervisor (pid {pid}) was stopped by a signal and does nothing until kill -CONT {pid}"
        return kind, _describe(state.state) or describe_copy(state.state, view.results)
    if view.job_lives:
        if view.job is Presence.GONE and not view.members:
            return f"finalizing, {UNSUPERVISED}", f"its supervisor is gone; holdfast adopt {view.run_id} finishes it"
        return f"running, {UNSUPERVISED}", f"its supervisor is gone, the job lives; holdfast adopt {view.run_id}"
    return _judge_vanished(view, kind)


def _judge_vanished(view: RunView, kind: str) -> tuple[str, str]:
    """Of a run that nobody is left of."""
    if view.end is not None:
        words = f"it is {view.end.outcome.value}, and its supervisor died before all of its end was written"
        return f"{kind}, {UNSUPERVISED}", f"{words}; holdfast reconcile writes it"
    if is_unstarted(view) and not view.rebooted:
        who = "no supervisor took it up" if is_never_taken(view) else "its supervisor died before the job started"
        return f"{kind}, {UNSUPERVISED}", f"{who}; holdfast restart {view.run_id}"
    if view.status:
        return f"finalizing, {UNSUPERVISED}", "the job has ended and left its status; nobody has finished the run yet"
    if view.rebooted:
        return LOST, "the box was rebooted while it ran (its boot id is not today's)"
    gone = "every process that was recorded is gone, none carries the run's marker, and no status was left"
    if view.state is not None and view.state.unlocked:
        gone += f"; its directory takes no locks, so it is not settled by itself: holdfast adopt {view.run_id}"
    return LOST, gone


def _describe_elsewhere(view: RunView, seen_at: str) -> str:
    try:
        age = f" ({format_duration(max(0.0, clock.epoch_s() - clock.parse_utc(seen_at)))} ago)"
    except ValueError:
        age = ""
    whose = f"it belongs to host {view.host or 'unknown'}"
    if view.outside:
        whose = "its processes are outside of this container or job: look from there"
    elif view.state is not None and may_be_same(view.state.box, read_box()):
        whose = "no boot id tells whether this is its box, and none of its processes is seen here"
    elif view.host == os.uname().nodename:
        whose = (
            f"it was begun on another {view.host}: a machine or container of that name, or this one before it was "
            f"started; if that is gone for good: holdfast adopt --gone REASON {view.run_id}"
        )
    return f"last seen {seen_at}{age}; {whose}"


def _describe(state: State) -> str:
    if isinstance(state, Waiting):
        return "; ".join(busy.words for busy in state.blocked_by)
    if isinstance(state, Stopping):
        return f"{state.request.words}, rung {state.rung.value}"
    if isinstance(state, Finalizing) and state.stuck:
        return "survived KILL so far: " + "; ".join(state.stuck)
    return ""


def _judge_without_state(view: RunView) -> tuple[str, str]:
    broken = view.find_unreadable(wire.STATE)
    if broken is None:
        if view.reach is RunReach.UNREADABLE:
            return UNREADABLE, f"{view.run_dir} cannot be read"
        return ("created", "") if view.record else (UNREADABLE, "there is no run.json in it")
    reader = _describe_reader(view)
    outcome = view.exit.get("outcome")
    if outcome in {item.value for item in Outcome}:
        return str(outcome), f"by {wire.EXIT}: {broken.words}{reader}"
    if view.supervised and not reader:
        return UNREADABLE, f"{broken.words}; {_describe_holder(view)}"
    if view.members:
        pids = ", ".join(str(member.pid) for member in view.members)
        return UNREADABLE, f"{broken.words}; processes with the run's marker live: {pids}{reader}"
    last = _last_event(view)
    told = f"; the last event is {last}" if last else ""
    return UNREADABLE, f"{broken.words}{told}{reader}"


def _describe_holder(view: RunView) -> str:
    """Of a run whose state cannot be read, and whose supervisor lives: what to do."""
    who = "its supervisor" if view.holder is None else f"its supervisor (pid {view.holder.pid})"
    stat = None if view.holder is None else processes.read_stat(view.holder.pid)
    if stat is not None and stat.state in "Tt":
        return f"{who} was stopped by a signal, and writes it anew after kill -CONT {stat.pid}"
    return f"{who} lives, and `holdfast stop {view.run_id}` works; it writes the file anew at its next step"


def _describe_reader(view: RunView) -> str:
    """How to see a run that a newer holdfast wrote."""
    newer = find_newer(view.run_dir, view.attempt)
    if newer is None:
        return ""
    return f"; see it with {newer.script} -- show {view.run_id}" if newer.script else f"; use holdfast {newer.version}"


def _last_event(view: RunView) -> str:
    events = read_events(view.run_dir, view.attempt)
    return f"{events[-1].get('event')} at {events[-1].get('utc')}" if events else ""


def _with(view: RunView, **changes: Any) -> RunView:  # noqa: ANN401 - passed on to `replace`
    return replace(view, **changes)
