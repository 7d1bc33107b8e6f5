"""Sentinels as a person arms and reads them: waiting here, waiting detached, the list of those of one run.

A detached one is a fresh interpreter in a session of its own that outlives the command, without any marker.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from holdfast.agent.detached import build_command
from holdfast.agent.view.changes import ChangeWatch
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.process import processes
from holdfast.model.errors import StorageError
from holdfast.model.record import record

from . import records as sentinel_records
from . import wait as sentinel
from .process import keep_watch
from .records import SentinelRecord
from .wait import SentinelCondition

ARMED_WITHIN_S = 15.0
OURS = frozenset({"HOLDFAST_RUNS", "HOLDFAST_LEASE_DIR", "HOLDFAST_RULES", "HOLDFAST_SIMULATED_GPUS"})
"""What of holdfast's own variables goes along. The others say "this process belongs to that run", which would make a
sentinel that is started from inside a job one of the job's processes."""


@record
class ArmedSentinel:
    """A detached sentinel; not `armed` when it has ended already."""

    armed: bool
    sentinel: SentinelRecord


@record
class SentinelList:
    """The sentinels of one run; those in `waiting` (by condition) have a living process."""

    run_id: str
    sentinels: tuple[SentinelRecord, ...]
    waiting: tuple[str, ...]


@record
class SentinelResult:
    """How a wait ended."""

    run_id: str
    attempt: int
    condition: str
    verdict: str
    words: str
    exit_code: int


def parse_condition(text: str) -> SentinelCondition:
    """What is waited for: ``ended``, ``started``, ``failed``, ``stalled``, ``step=N`` or ``artifact=PATH``.

    Raises:
        UsageError: it is none of these.
    """
    return sentinel.parse_condition(text)


def list_sentinels(run_dir: str) -> SentinelList:
    """Which are armed, and how others ended."""
    run_id = os.path.basename(run_dir)
    records = tuple(
        record for _, record in sentinel_records.list_all() if record is not None and record.run_id == run_id
    )
    waiting = tuple(record.condition for record in records if sentinel_records.is_waiting(record))
    return SentinelList(run_id, records, waiting)


def wait_here(
    run_dir: str,
    condition: SentinelCondition,
    life_s: float,
    *,
    notify_command: str | None,
    tell: Callable[[str], None],
) -> SentinelResult:
    """Wait in this process until it is so, cannot become so, or `life_s` seconds are over; `tell` hears the rest.

    Raises:
        StorageError: it cannot be recorded that it waits.
    """
    attempt, answer = keep_watch(run_dir, condition, life_s, notify_command, detached=False, say=tell)
    run_id = os.path.basename(run_dir)
    return SentinelResult(run_id, attempt, condition.text, answer.verdict.value, answer.words, answer.exit_code)


def arm_detached(
    run_dir: str, condition: SentinelCondition, life_s: float, notify_command: str | None, attempt: int | None = None
) -> ArmedSentinel:
    """Start a detached sentinel and wait until it is armed, or has ended already; its record.

    With an `attempt` it takes the place of one that has not told its outcome.

    Raises:
        StorageError: it did not get armed; the message has what it said.
    """
    words = ["sentinel", run_dir, condition.text, str(life_s), *([notify_command] if notify_command else [])]
    words += [str(attempt)] if notify_command and attempt is not None else []
    sentinel_records.make_directory()
    path = sentinel_records.path_of(os.path.basename(run_dir), condition.text)
    log_path = path.removesuffix(".json") + ".log"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(log_path, flags, 0o600)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_") or name in OURS}
    try:
        child = subprocess.Popen(
            build_command(*words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(log)
    record = _wait_armed(child, path, log_path)
    child.returncode = 0  # it is nobody's to wait for: no complaint that it goes on
    return ArmedSentinel(not record.outcome, record)


def _wait_armed(child: subprocess.Popen[bytes], path: str, log_path: str) -> SentinelRecord:
    deadline = clock.monotonic_s() + ARMED_WITHIN_S
    with ChangeWatch(sentinel_records.directory()) as changes:
        changes.watch(processes.identify(child.pid))
        while True:
            gone = child.poll() is not None
            record = sentinel_records.read(path)
            if record is not None and record.process.pid == child.pid:
                return record
            if gone or clock.monotonic_s() >= deadline:
                said = files.read_tail(log_path, 500).decode("utf-8", "replace").strip() or "nothing"
                raise StorageError(f"the sentinel was not armed; it said: {said}", hint="try it without -d")
            changes.wait(deadline - clock.monotonic_s())
