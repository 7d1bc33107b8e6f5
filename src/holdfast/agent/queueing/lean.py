"""Lean cells: many short commands without cards, each run by a fork of the worker with one record (docs/queue.md).

What a lean cell gives up is in `lean_jobs`; what it keeps: it runs at most once, and its exit status is exact. A cell's
*marker* ``<runs root>/lean/<group>/<name>.json`` tells where it stands. The worker commits it, with a lock on it that
the fork inherits, before it forks; the fork adds a line before it starts the command, and replaces the marker by the
record after the end. So, of a cell that is claimed:

    marker                              lock    means
    none, or of another claim           -       nothing was begun: start
    one line, of this boot              free    the fork never got to the command: start
    one or two lines                    held    it runs
    two lines, or one of another boot   free    it may have run and nobody knows how it ended: lost, never repeated
    record                              -       it ended

A claim's id names its boot: after a power cut, which may have taken the marker, a claim without a record is lost too.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ...core.cards import visible_devices
from ...core.environment import NO_CARDS
from ...core.rules import Rules
from ...host import files
from ...host.clock import boot_id, utc_now
from ...host.processes import send_signal
from ...model import wire
from ...model.errors import StorageError, UsageError
from ...model.identity import ProcessId
from ...model.job import JobSpec, Priority
from ...model.queue import CellState
from ...model.run import SCHEMA
from ..create import refuse_secrets
from . import lanes
from .lean_jobs import refuse
from .light import BY_LIMIT, supervise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...model.queue import Cell, Submission
    from .lanes import Fence

DIRECTORY = "lean"
PREFIX = "lean"
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the light supervisor needs. `identity` is what names the cell in its marker and its record."""

    record_path: str
    log_path: str
    command: tuple[str, ...]
    workdir: str
    environ: dict[str, str]
    umask: int
    nice: int | None
    limit_s: float | None
    grace_s: float
    identity: dict[str, Any]


class Phase(str, Enum):
    """Where a claimed lean cell stands; see the table above."""

    UNBEGUN = "unbegun"
    LIVE = "live"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LeanLook:
    """A lean cell at one moment: `record` is set when it has ENDED, `supervisor` when it is LIVE and has said so."""

    phase: Phase
    record: dict[str, Any] | None = None
    supervisor: ProcessId | None = None
    lane: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Light:
    """A light supervisor that was started just now: a child of ours, to be reaped, and its pidfd, to be closed."""

    pid: int
    pidfd: int


def new_claim() -> str:
    """An id for a claim of a lean cell, to be committed as its `run_id` before `start`: names the boot, then random."""
    return f"{PREFIX}-{boot_id().replace('-', '')[:8]}-{os.urandom(6).hex()}"


def record_path(cell: Cell) -> str:
    """The file of a cell's marker, later its record."""
    for word in (cell.group, cell.name):
        if word in ("", ".", "..") or "/" in word or "\0" in word:
            raise StorageError(f"{word!r} cannot name a file", hint="give the cell another name")
    return f"{cell.runs_root}/{DIRECTORY}/{cell.group}/{cell.name}.json"


def log_path(cell: Cell) -> str:
    """The file of a cell's output."""
    return f"{record_path(cell).removesuffix('.json')}.log"


def start(cell: Cell, submission: Submission, environ: Mapping[str, str], *, umask: int, queue: str) -> Light | None:
    """Fork the light supervisor of a cell that is CLAIMED under a new id and has not begun.

    None: it was begun already, or somebody stopped it before it began; `look` tells. A second start of one claim
    would be a second run, so that is asked here, whatever the caller believes.

    Args:
        cell: Its `run_id` is committed.
        submission: What it came with, this cell alone.
        environ: The environment it was handed in with.
        umask: The same.
        queue: The queue's id, for its marker.

    Raises:
        UsageError: its job is not for lean cells, or holds a secret.
        StorageError: the marker cannot be written, or no process can be had; nothing was begun.
        WireError: its job cannot be read.
    """
    plan = _plan(cell, submission, environ, umask=umask, queue=queue)
    phase = look(cell).phase
    if phase in (Phase.LIVE, Phase.ENDED) or (phase is Phase.LOST and _is_of_claim(plan)):
        return None
    try:
        _keep_aside(plan)
        marker = _commit_marker(plan)
        try:
            pid = os.fork()
            if pid == 0:
                supervise(plan, marker)
        finally:
            os.close(marker)
    except OSError as error:
        where = error.filename or plan.record_path
        raise StorageError(f"{where}: {error.strerror}", hint="see df and `ulimit -u`") from error
    try:
        # Ours until we reap it, so the number is still its own.
        return Light(pid, os.pidfd_open(pid))
    except OSError:
        # It is begun, and its marker finds it: were this said to have failed, it would be begun a second time.
        return None


def start_lane(
    cells: Sequence[tuple[Cell, Submission, Mapping[str, str], int]], fence: Fence, *, queue: str
) -> tuple[Light, int]:
    """Fork one lane for cells as `start` takes them (with environment and umask); the second is its token pipe.

    Raises:
        UsageError, StorageError, WireError: as `start`; nothing was begun.
    """
    plans = [_plan(cell, came, environ, umask=umask, queue=queue) for cell, came, environ, umask in cells]
    try:
        os.makedirs(os.path.dirname(plans[0].record_path), mode=0o700, exist_ok=True)
        for plan in plans:
            _keep_aside(plan)
        pid, tokens = lanes.fork(plans, fence)
        try:
            return Light(pid, os.pidfd_open(pid)), tokens
        except OSError:
            # What it has begun is found by its markers.
            lanes.end(pid)
            os.close(tokens)
            raise
    except OSError as error:
        raise StorageError(f"no lane could be started: {error.strerror}", hint="see df and `ulimit -u`") from error


def _plan(cell: Cell, submission: Submission, environ: Mapping[str, str], *, umask: int, queue: str) -> Plan:
    change = submission.cells[0].change if submission.cells else {}
    spec = wire.decode(JobSpec, {**submission.base, **change})
    problems = refuse(spec)
    if problems:
        raise UsageError(f"{cell.label} cannot be lean: {'; '.join(problems)}", hint="hand it in without --lean")
    refuse_secrets(spec)
    values = {**environ, **spec.env, **visible_devices([NO_CARDS]), "HOLDFAST_CELL": cell.name}
    return Plan(
        record_path=record_path(cell),
        log_path=log_path(cell),
        command=spec.command,
        workdir=spec.workdir,
        environ={**values, "HOLDFAST_GROUP": cell.group, "HOLDFAST_RUN_ID": str(cell.run_id)},
        umask=umask,
        nice=Rules().nice if spec.priority is Priority.LOW else None,
        limit_s=spec.timeouts.run_s,
        grace_s=GRACE_S if spec.grace_s is None else spec.grace_s,
        identity={
            "run_id": cell.run_id,
            "queue": queue,
            "key": cell.key,
            "group": cell.group,
            "name": cell.name,
            "sha256": cell.sha256,
        },
    )


def _commit_marker(plan: Plan) -> int:
    """Put the marker in its place, locked from the first moment on.

    Not synced: after a power cut its boot is another, and the claim is lost with or without it.
    """
    directory = os.path.dirname(plan.record_path)
    temporary = f"{directory}/.{plan.identity['run_id']}.tmp"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, flags, 0o600)
    except FileExistsError:
        # Of a start that was cut off here; its marker never was in place.
        files.remove_quietly(temporary)
        descriptor = os.open(temporary, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        line = {"schema": SCHEMA, **plan.identity, "boot_id": boot_id(), "claimed_at": utc_now()}
        files.write_all(descriptor, (json.dumps(line) + "\n").encode())
        os.rename(temporary, plan.record_path)
    except OSError:
        os.close(descriptor)
        files.remove_quietly(temporary)
        raise
    return descriptor


def _is_of_claim(plan: Plan) -> bool:
    """Whether the marker is of this very claim: then it was begun, whoever has lost it. An older one is in no way."""
    return bool((_read(plan.record_path) or {}).get("run_id") == plan.identity["run_id"])


def _keep_aside(plan: Plan) -> None:
    """Rename record and output of an earlier claim of this cell to ``<name>.<its id>``: attempts are kept."""
    found = _read(plan.record_path)
    if found is None or found.get("run_id") == plan.identity["run_id"]:
        return
    older = str(found.get("run_id") or "unreadable").replace("/", "_")
    for path in (plan.log_path, plan.record_path):
        stem, suffix = os.path.splitext(path)
        try:
            os.rename(path, f"{stem}.{older}{suffix}")
        except FileNotFoundError:
            continue


def _read(path: str) -> dict[str, Any] | None:
    """A marker or record: its lines in one; None when there is none, empty when it cannot be read."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError:
        return {}
    try:
        return wire.parse_object(data, path)
    except wire.WireError:
        facts: dict[str, Any] = {}
    for line in data.splitlines():
        try:
            facts |= wire.parse_object(line, path)
        except wire.WireError:
            break
    return facts


def look(cell: Cell) -> LeanLook:
    """Where a claimed cell stands; see the table above. Does not raise."""
    try:
        path = record_path(cell)
    except StorageError as error:
        return LeanLook(Phase.LOST, why=str(error))
    found, alive = _read(path), False
    if _is_open(found, cell):
        # In this order: whoever lets go of the lock has put the record in place before.
        alive = _is_locked(path)
        found = _read(path)
    if found is not None and found.get("run_id") == cell.run_id:
        if "ended_at" in found:
            return LeanLook(Phase.ENDED, record=found)
        supervisor = _read_supervisor(found)
        if alive:
            return LeanLook(Phase.LIVE, supervisor=supervisor, lane=found.get("lane") is True)
        if "supervisor" in found or found.get("boot_id") != boot_id():
            return LeanLook(Phase.LOST, why="its light supervisor is gone and left no record of its end")
        return LeanLook(Phase.UNBEGUN)
    if found == {}:
        return LeanLook(Phase.LOST, why=f"{path} cannot be read")
    if not str(cell.run_id).startswith(f"{PREFIX}-{boot_id().replace('-', '')[:8]}-"):
        return LeanLook(Phase.LOST, why="it was claimed before the box was started anew, and there is no record of it")
    return LeanLook(Phase.UNBEGUN)


def _is_open(found: dict[str, Any] | None, cell: Cell) -> bool:
    return found is not None and found.get("run_id") == cell.run_id and "ended_at" not in found


def _read_supervisor(found: dict[str, Any]) -> ProcessId | None:
    try:
        return wire.decode(ProcessId, found.get("supervisor"))
    except wire.WireError:
        return None


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks: nothing is known, so it is not said to be gone.
        return True
    finally:
        os.close(descriptor)
    return False


def judge(found: LeanLook) -> tuple[CellState, dict[str, Any]]:
    """State and facts (fields of `Cell`) for a cell that has ENDED or is LOST. Proven is: the record, with exit 0."""
    record = found.record
    if record is None:
        return CellState.FAILED, {"outcome": "lost", "exit_code": None, "note": f"lost: {found.why}"}
    code, number, outcome = record.get("exit_code"), record.get("signal"), str(record.get("outcome"))
    facts: dict[str, Any] = {"outcome": outcome, "exit_code": code if isinstance(code, int) else None}
    if outcome == "succeeded" and code == 0 and record.get("emptied") is True:
        return CellState.DONE, {**facts, "note": ""}
    words = f"exit code {code}" if isinstance(code, int) else f"signal {number}"
    state = CellState.FAILED
    if record.get("stopped_by"):
        words = f"stopped by {record['stopped_by']}"
        state = CellState.FAILED if str(record["stopped_by"]).startswith(BY_LIMIT) else CellState.CANCELLED
    elif record.get("emptied") is not True:
        words = f"{words}, but processes that it left could not be ended: {record.get('stuck')}"
    error = f": {record['error']}" if record.get("error") else ""
    return state, {**facts, "note": f"{words}{error}; output in {record.get('output')}"}


def stop(cell: Cell) -> bool:
    """Ask a live cell's light supervisor to end it: TERM, its grace, KILL; False when it has ended.

    One that is claimed and not begun gets a record that says so, which its start will find.

    Raises:
        OSError: that record cannot be written.
    """
    found = look(cell)
    if found.phase is Phase.UNBEGUN and cell.run_id is not None:
        identity = {"run_id": cell.run_id, "key": cell.key, "group": cell.group, "name": cell.name}
        end = {
            "ended_at": utc_now(),
            "outcome": "stopped",
            "exit_code": None,
            "stopped_by": "a person, before it began",
        }
        os.makedirs(os.path.dirname(record_path(cell)), mode=0o700, exist_ok=True)
        files.commit(record_path(cell), wire.to_bytes({**identity, **end}), durable=False)
        return True
    if found.phase is not Phase.LIVE or found.supervisor is None:
        return False
    if not found.lane:
        return bool(send_signal(found.supervisor, signal.SIGTERM))
    # By the time of the signal its lane may be at the next cell, which is told by this file that it is not meant.
    path = f"{os.path.dirname(record_path(cell))}/.{cell.run_id}.stop"
    files.commit(path, b"", durable=False)
    sent = bool(send_signal(found.supervisor, signal.SIGTERM))
    if not sent or look(cell).phase is not Phase.LIVE:
        files.remove_quietly(path)
    return sent


def find_records(runs_root: str, queue: str) -> list[dict[str, Any]]:
    """Markers and records of one queue's cells, for a rebuild: newest claim of each cell.

    Whether one without an end is alive or lost `look` says. What cannot be read has ``unreadable``, the path, and of
    ``group`` and ``name`` what the path tells: it may be of any queue, and of a cell that has run.
    """
    base = f"{runs_root}/{DIRECTORY}"
    found: list[dict[str, Any]] = []
    for group in _list(base, found):
        for name in _list(f"{base}/{group}", found, group=group):
            if not name.endswith(".json") or name[0] == ".":
                continue
            record = _read(f"{base}/{group}/{name}")
            stem = name.removesuffix(".json")
            if record is not None and not (record.get("queue") and record.get("name")):
                found.append({"unreadable": f"{base}/{group}/{name}", "group": group, "name": stem})
            elif record and record["queue"] == queue and stem == record["name"]:
                found.append(record)
    return found


def _list(path: str, found: list[dict[str, Any]], *, group: str = "") -> list[str]:
    """The names in a directory; one that cannot be read is noted in `found`."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        found.append({"unreadable": path, "group": group, "name": ""})
        return []
