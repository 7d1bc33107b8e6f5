"""The run's own files: log, heartbeat, samples, artifacts.

They may lie on a mount that does not answer, so they are read in a disposable child with a deadline (`read_run_files`).
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from holdfast.core.control_characters import one_line
from holdfast.diagnosis.evidence import Reading
from holdfast.host.clock import parse_utc
from holdfast.host.files import files
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.model import wire
from holdfast.model.record import field, record

TAIL_BYTES = 64 * 1024
MOST_ARTIFACTS = 2000
LONGEST_TOLD = 200
RUN_DEADLINE_S = 2.0


@record
class HealthSample:
    """One line of the health samples, as far as diagnosis needs it."""

    at_s: float
    step: int | None = None
    steps_per_s: float | None = None
    cpu_s: float | None = None


@record
class RunFacts:
    """The run's files at one moment. Times are epoch seconds by the box's clock, None where there is no such file.

    `artifacts_at_s` is when the newest artifact or checkpoint changed; `rank_beats` the heartbeats of ranks other than
    0; `flight` the Flight Recorder's dumps; `unread` what is there and could not be read. `first_attempt` says that no
    checkpoint of an earlier attempt can have been loaded. `stalled` is what its supervisor said of a stall from which
    it has not recovered (empty: nothing), and `stall_limit_s` the limit of a step that ran out then.
    """

    now_s: float
    log_bytes: int | None = None
    log_at_s: float | None = None
    heartbeat: dict[str, object] = field(default_factory=dict)
    heartbeat_at_s: float | None = None
    rank_beats: dict[str, dict[str, object]] = field(default_factory=dict)
    artifacts_at_s: float | None = None
    artifacts: int = 0
    stop_why: str = ""
    samples: tuple[HealthSample, ...] = ()
    stack_records: tuple[str, ...] = ()
    flight: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    first_attempt: bool = False
    stalled: str = ""
    stall_limit_s: float | None = None

    @property
    def step(self) -> int | None:
        """The step of the heartbeat."""
        return wire.as_whole(self.heartbeat.get("step"))

    @property
    def phase(self) -> str:
        """What the training says it is doing."""
        value = self.heartbeat.get("phase")
        return value if isinstance(value, str) else ""


@record
class RunFiles:
    """Where the run's files are; empty for a process that is no run of ours."""

    log: str = ""
    heartbeat: str = ""
    attempt_dir: str = ""
    artifact_dirs: tuple[str, ...] = ()
    flight_dir: str = ""


def read_run_files(files: RunFiles, *, deadline_s: float = RUN_DEADLINE_S) -> Reading[RunFacts]:
    """The run's files, read in a disposable child: a mount that does not answer costs the deadline, not the caller."""
    if files == RunFiles():
        return Reading(RunFacts(now_s=time.time()))
    work = Offload(lambda: wire.encode(read_run(files)))
    try:
        return Reading(wire.decode(RunFacts, work.wait(deadline_s)))
    except (OffloadFailed, wire.WireError) as error:
        return Reading(unread=f"the run's files could not be read: {error}")


def read_run(files: RunFiles) -> RunFacts:
    """As `read_run_files`, here: may block where the run's files lie on a dead mount."""
    unread: list[str] = []
    log_bytes, log_at_s = _stat(files.log, unread)
    _, beat_at_s = _stat(files.heartbeat, unread)
    newest, count = _newest(files.artifact_dirs, unread)
    attempt = files.attempt_dir
    stop = _read_json(f"{attempt}/{wire.STOP}", unread) if attempt else {}
    record = wire.clean_stop(stop)
    stalled, limit_s = _read_stall(f"{attempt}/{wire.EVENTS}") if attempt else ("", None)
    return RunFacts(
        now_s=time.time(),
        log_bytes=log_bytes,
        log_at_s=log_at_s,
        heartbeat=dict(wire.clean_heartbeat(_read_json(files.heartbeat, unread))) if files.heartbeat else {},
        heartbeat_at_s=beat_at_s,
        rank_beats=_read_rank_beats(attempt, unread) if attempt else {},
        artifacts_at_s=newest,
        artifacts=count,
        stop_why="" if record is None else record.why,
        samples=_read_samples(f"{attempt}/{wire.HEALTH}", unread) if attempt else (),
        stack_records=_list(attempt, "stacks", ".json"),
        flight=_list(files.flight_dir, "", ""),
        unread=tuple(unread),
        first_attempt=attempt.endswith(f"/{wire.ATTEMPTS}/1"),
        stalled=stalled,
        stall_limit_s=limit_s,
    )


def _list(directory: str, prefix: str, suffix: str) -> tuple[str, ...]:
    if not directory:
        return ()
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    return tuple(f"{directory}/{name}" for name in names if name.startswith(prefix) and name.endswith(suffix))[:1024]


def _stat(path: str, unread: list[str]) -> tuple[int | None, float | None]:
    if not path:
        return None, None
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        unread.append(f"{path}: {error.strerror}")
        return None, None
    return facts.st_size, facts.st_mtime


def _read_json(path: str, unread: list[str]) -> dict[str, Any]:
    try:
        return wire.parse_object(files.read_bytes(path, limit=wire.LARGEST_STOP_BYTES), path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        unread.append(f"{path}: {error.strerror}")
    except wire.WireError as error:
        unread.append(str(error))
    return {}


def _read_rank_beats(attempt: str, unread: list[str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for path in _list(attempt, "heartbeat.rank-", ".json"):
        beat = dict(wire.clean_heartbeat(_read_json(path, unread)))
        if beat:
            found[path.rpartition("rank-")[2].removesuffix(".json")] = beat
    return found


def _newest(directories: tuple[str, ...], unread: list[str]) -> tuple[float | None, int]:
    """When the newest file changed. Directories of one level below are looked into; a bounded number of entries."""
    newest: float | None = None
    count, pending = 0, [(directory, 2) for directory in directories if directory]
    while pending and count < MOST_ARTIFACTS:
        directory, depth = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    count += 1
                    changed = entry.stat(follow_symlinks=False).st_mtime
                    newest = changed if newest is None else max(newest, changed)
                    if depth and entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth - 1))
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(f"{directory}: {error.strerror}")
    return newest, count


def _read_stall(path: str) -> tuple[str, float | None]:
    """What the supervisor last said of a stall, and the limit of a step that ran out; nothing where it goes on."""
    for line in reversed(files.read_tail(path, TAIL_BYTES).splitlines()):
        try:
            event = wire.parse_object(line, path)
        except wire.WireError:
            continue
        if event.get("event") == "recovered":
            break
        if event.get("event") != "stalled":
            continue
        told = event.get("data")
        data = told if isinstance(told, dict) else {}
        limit_s = data.get("limit_s") if data.get("clock") == "no_progress" else None
        words = one_line(f"{data.get('what')}, at {event.get('utc')}", LONGEST_TOLD)
        return words, float(limit_s) if isinstance(limit_s, (int, float)) else None
    return "", None


def _read_samples(path: str, unread: list[str]) -> tuple[HealthSample, ...]:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        unread.append(f"{path}: {error.strerror}")
        return ()
    lines = data.split(b"\n")[(1 if size > TAIL_BYTES else 0) : -1]
    found = []
    for line in lines:
        try:
            row = json.loads(line)
            at_s = parse_utc(row["utc"])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            continue
        step, rate, cpu = row.get("step"), row.get("steps_per_s"), row.get("cpu_s")
        found.append(
            HealthSample(
                at_s,
                wire.as_whole(step),
                float(rate) if isinstance(rate, (int, float)) else None,
                float(cpu) if isinstance(cpu, (int, float)) else None,
            )
        )
    return tuple(found)
