"""Everything known about one attempt as a record, gathered from its files.

Reads only. A part that is missing is left out or said to be missing; nothing is guessed: seeds that nobody stated are
"not stated".
"""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import Any

from holdfast.agent.plan.placement import read_placement
from holdfast.agent.view import observe, run_view
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.live.metrics import read_curve
from holdfast.agent.view.live.undelivered import list_undelivered
from holdfast.agent.view.nodes import read_nodes
from holdfast.agent.view.observe import find_durable_step
from holdfast.agent.view.retries import read_requeue
from holdfast.agent.view.run_view import Presence, RunReach, RunView, Unreadable
from holdfast.agent.view.scheduled import hear
from holdfast.agent.view.source_change import find_git
from holdfast.agent.view.time_limits import TimeLimit, list_time_limits
from holdfast.diagnosis.ended.judgement import read_judgement
from holdfast.host.clock import parse_utc
from holdfast.host.files import fallback, files
from holdfast.host.files.snapshot import load_difference
from holdfast.host.job.output import read_lost_output
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun
from holdfast.model.identity import LostOutput, ProcessId
from holdfast.model.nodes import NodesRecord
from holdfast.model.record import field, record
from holdfast.model.requeue import AttemptPlacement
from holdfast.model.run import Outcome, RunRequest, RunState
from holdfast.model.units import format_bytes, format_duration
from holdfast.model.verdict import Verdict

from .container_view import ContainerView, read_container
from .phases import PHASES
from .run_cards import devices_of, is_simulated, name_cards

FILES = (wire.OUTPUT, wire.SUPERVISOR_LOG, wire.FAILURE, wire.VERDICT, "first_error.txt")
Facts = dict[str, Any]


@record
class ObservedState:
    """What can be seen now, and by whom; the pids are those that are recorded."""

    at: str
    by: str
    supervisor: Presence
    keeper: Presence
    job: Presence
    members: tuple[ProcessId, ...]
    rebooted: bool
    supervisor_pid: int | None
    keeper_pid: int | None
    job_pid: int | None


@record
class Reachability:
    """How far the look reached, and where the run is."""

    reach: RunReach
    host: str


@record
class FileLine:
    """One file of the attempt that is there."""

    name: str
    path: str
    bytes: int


@record
class Dossier:
    """One attempt of one run. Desired, last committed and observed stay apart.

    `origin`, `manifest`, `status`, `exit`, `heartbeat`, `health` (the last sample) and `events` are the files' own
    objects, empty when absent. `over` says that no later look can differ. `requeue` is what the queue decided after
    this attempt, in words.
    `loss_curve` is the course of `loss_name` in few points, empty without one. `devices` are the cards that it leases
    or had. `lost_output` is what the disk refused of the output. `durable_step` is the step of the newest checkpoint:
    of the newest attempt that on disk, of an earlier one that which it told of; None: none is known. `git` is the state
    of the repository in which this attempt was begun (`origin` has that of the first), empty where none is recorded.
    """

    run_id: str
    name: str
    run_dir: str
    attempt: int
    attempts: tuple[Facts, ...]
    condition: str
    note: str
    ended: bool
    over: bool
    exit_code: int | None
    desired: RunRequest | None
    committed: RunState | None
    observed: ObservedState
    reachability: Reachability
    unreadable: tuple[Unreadable, ...]
    origin: Facts
    manifest: Facts
    simulated: bool
    devices: tuple[Facts, ...]
    cards: str
    placement: AttemptPlacement | None
    status: Facts
    exit: Facts
    failure: Verdict | None
    requeue: str | None
    heartbeat: Facts
    durable_step: int | None
    health: Facts
    preflight: tuple[Facts, ...]
    postflight: tuple[Facts, ...]
    phases: tuple[Facts, ...]
    events: tuple[Facts, ...]
    undelivered: tuple[str, ...]
    seed: str
    determinism: str
    grace_s: float
    time_limits: tuple[TimeLimit, ...]
    job: Facts
    changed: tuple[Facts, ...]
    duration_s: float | None
    files: tuple[FileLine, ...]
    loss_name: str = ""
    loss_curve: tuple[float, ...] = ()
    container: ContainerView | None = None
    nodes: NodesRecord | None = None
    lost_output: LostOutput | None = None
    git: Facts = field(default_factory=dict)


@record
class CodeDiff:
    """The saved difference between the code that ran and its commit; bytes that are no text are replaced."""

    run_id: str
    git: Facts
    diff: str


def read_dossier(run_dir: str, attempt: int | None) -> Dossier:
    """Everything about one attempt, the newest unless told; a run that vanished is finished first.

    Raises:
        NoSuchRun: there is no such attempt.
    """
    view = hear(observe.observe_run(run_dir))
    if attempt is not None:
        require_attempt(view, attempt)
        view = observe.observe_run(run_dir, attempt=attempt)
    events = observe.read_events(run_dir, view.attempt)
    loss_name, loss_curve = read_curve(f"{view.attempt_dir}/{wire.METRICS}")
    return Dossier(
        run_id=view.run_id,
        name=view.name,
        run_dir=view.run_dir,
        attempt=view.attempt,
        attempts=_list_attempts(view),
        condition=view.condition,
        note=view.note,
        ended=view.over,
        over=view.over,
        exit_code=view.exit_code,
        desired=view.desired,
        committed=view.state,
        observed=_describe_observed(view),
        reachability=Reachability(view.reach, view.host),
        unreadable=(*view.unreadable, *_find_unread(f"{view.attempt_dir}/{wire.EVENTS}")),
        origin=view.record,
        manifest=view.manifest,
        simulated=is_simulated(view),
        devices=tuple(devices_of(view)),
        cards=name_cards(view),
        container=read_container(view.attempt_dir),
        nodes=read_nodes(view.attempt_dir),
        placement=read_placement(view.attempt_dir),
        status=view.status,
        exit=view.exit,
        failure=_judge(view),
        requeue=_describe_requeue(view),
        heartbeat=view.heartbeat,
        durable_step=find_durable_step(view),
        loss_name=loss_name,
        loss_curve=loss_curve,
        health=_read_last(f"{view.attempt_dir}/{wire.HEALTH}"),
        preflight=_read_findings(view, wire.PREFLIGHT),
        postflight=_read_findings(view, wire.POSTFLIGHT),
        phases=tuple(build_phases(events)),
        events=tuple(events),
        undelivered=list_undelivered(view, events),
        seed=describe_seed(view),
        determinism=describe_stated(view, "determinism"),
        grace_s=grace_of(view),
        time_limits=list_time_limits(view),
        job=view.spec,
        changed=_list_changed(view),
        duration_s=_measure(view),
        files=_list_files(view),
        lost_output=read_lost_output(view.run_id, view.attempt, view.attempt_dir),
        git=_find_git(view),
    )


def require_attempt(view: RunView, attempt: int) -> None:
    """Refuse an attempt that the run does not have.

    Raises:
        NoSuchRun: there is no such attempt.
    """
    if attempt not in view.attempts:
        known = ", ".join(map(str, view.attempts)) or "none"
        raise NoSuchRun(f"{view.run_id} has no attempt {attempt}; it has {known}", hint="leave --attempt out")


def read_diff(dossier: Dossier) -> tuple[CodeDiff, bytes]:
    """The saved difference of an attempt, and its very bytes; empty when none was saved.

    Raises:
        StorageError: there is one and it cannot be read.
    """
    git = dossier.git
    name, data = git.get("diff"), b""
    if isinstance(name, str):
        data = load_difference(dossier.run_dir, name)
    return CodeDiff(dossier.run_id, git, data.decode("utf-8", "replace")), data


def _list_attempts(view: RunView) -> tuple[Facts, ...]:
    earlier = [observe.observe_run(view.run_dir, attempt=number) for number in view.attempts if number != view.attempt]
    found = [{"attempt": old.attempt, "condition": old.condition, "exit_code": old.exit_code} for old in earlier]
    return (*found, {"attempt": view.attempt, "condition": view.condition, "exit_code": view.exit_code})


def _describe_observed(view: RunView) -> ObservedState:
    supervisor = view.supervisor_process
    keeper, job = (None, None) if view.state is None else run_view.recorded_processes(view.state.state)
    return ObservedState(
        at=view.observed_at,
        by=os.uname().nodename,
        supervisor=view.supervisor,
        keeper=view.keeper,
        job=view.job,
        members=view.members,
        rebooted=view.rebooted,
        supervisor_pid=None if supervisor is None else supervisor.pid,
        keeper_pid=None if keeper is None else keeper.pid,
        job_pid=None if job is None else job.pid,
    )


def _describe_requeue(view: RunView) -> str | None:
    """What the queue decided after this attempt; None when it did not have to."""
    if not os.path.lexists(f"{view.attempt_dir}/{wire.REQUEUE}"):
        return None
    found = read_requeue(view.run_dir, view.attempt)
    if found is None:
        return f"{wire.REQUEUE} cannot be read"
    pause = f" after {format_duration(found.wait_s)}" if found.wait_s else ""
    return f"{'another attempt' if found.again else 'no other attempt'}{pause}: {found.why}"


def _find_git(view: RunView) -> Facts:
    """The state of the repository; where what says it cannot be read, no state but a note of that."""
    try:
        found = find_git(view.run_dir, view.attempt, view.record)
    except wire.WireError as error:
        return {"note": str(error)}
    return {} if found is None else dict(wire.encode(found))


def _list_changed(view: RunView) -> tuple[Facts, ...]:
    """What somebody changed of the job, the last time that somebody did."""
    found = view.change.get("changed")
    return tuple(item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()


def _measure(view: RunView) -> float | None:
    """Seconds from the job's exec to its end; None when it never ran or has not ended."""
    recorded = view.exit.get("duration_s")
    if isinstance(recorded, (int, float)):
        return float(recorded)
    if view.end is None or not view.end.started_at:
        return None
    try:
        return max(0.0, parse_utc(view.end.at) - parse_utc(view.end.started_at))
    except ValueError:
        return None


def _list_files(view: RunView) -> tuple[FileLine, ...]:
    paths = [(name, f"{view.attempt_dir}/{name}") for name in FILES]
    return tuple(FileLine(name, path, os.path.getsize(path)) for name, path in paths if os.path.exists(path))


def _judge(view: RunView) -> Verdict | None:
    """Why it failed, or what speaks against its success; None for what was stopped or has not ended."""
    if view.end is None or view.end.outcome is Outcome.STOPPED:
        return None
    if view.end.outcome is Outcome.SUCCEEDED and not view.doubt:
        return None
    stored = read_judgement(view.run_dir, view.attempt)
    if stored is not None:
        return stored.verdict
    from holdfast.diagnosis.ended.judge import examine_attempt  # lazy: an end that nobody has judged is rare

    return examine_attempt(view.run_dir, view.attempt, view.end).verdict


def _find_unread(path: str) -> tuple[Unreadable, ...]:
    """That of a huge event stream only the end was read."""
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    if size <= files.MAX_LINES_BYTES:
        return ()
    read = format_bytes(files.MAX_LINES_BYTES)
    return (Unreadable(path, f"it has {format_bytes(size)}, more than holdfast writes; its last {read} were read"),)


def _read_findings(view: RunView, name: str) -> tuple[Facts, ...]:
    path = f"{view.attempt_dir}/{name}"
    try:
        value = wire.parse_object(fallback.read(view.run_id, view.attempt, path), path).get("findings")
    except (OSError, wire.WireError):
        return ()
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


LAST_BYTES = 256 * 1024
"""More than the longest line of health samples."""


def _read_last(path: str) -> Facts:
    try:
        lines = files.read_last_lines(path, LAST_BYTES)
        return wire.parse_object(lines[-1], path) if lines else {}
    except (OSError, wire.WireError):
        return {}


def build_phases(events: list[Facts]) -> list[Facts]:
    """Each lifecycle state that was entered, with when and for how many seconds (by the monotonic clock)."""
    entered = [event for event in events if event.get("event") in PHASES]
    found = []
    for event, following in zip_longest(entered, entered[1:]):
        begin, end = event.get("monotonic_s"), None if following is None else following.get("monotonic_s")
        known = isinstance(begin, (int, float)) and isinstance(end, (int, float)) and end >= begin
        found.append(
            {
                "phase": event["event"],
                "since": event.get("utc"),
                "seconds": round(end - begin, 6) if known else None,  # type: ignore[operator]  # known says numbers
            }
        )
    return found


def describe_seed(view: RunView) -> str:
    """The seed in use, as far as it was stated, and the job's where the training told of another one (OBS-06)."""
    used, stated = view.heartbeat.get("seed"), view.spec.get("seed")
    if None in (used, stated) or used == stated:
        return describe_stated(view, "seed")
    return f"{used}, which the script gave; the job states {stated}, which was not used"


def describe_stated(view: RunView, name: str) -> str:
    """The seed, or the determinism flags, that the training or the job stated; or that none was stated (OBS-06)."""
    for source in (view.heartbeat, view.manifest, view.spec):
        stated = source.get(name)
        if stated is not None:
            return str(stated)
    return "not stated"
