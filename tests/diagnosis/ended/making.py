"""Ends of attempts for tests: evidence in memory, and run directories on disk."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.diagnosis.ended.evidence import DiskChange, EndedEvidence
from holdfast.diagnosis.evidence import Detection, KernelEvent, KernelKind, KernelLog, LogFacts, Reading
from holdfast.host.box import read_box
from holdfast.host.clock import boot_id, epoch_s, format_utc, monotonic_s, utc_now
from holdfast.model import wire
from holdfast.model.identity import WaitStatus
from holdfast.model.record import replace
from holdfast.model.run import Ended, Outcome, RunState

if TYPE_CHECKING:
    from pathlib import Path

RUN_ID = "20261120-104500-t-0a1b"
GROUP = f"{RUN_ID}.1"
GIB = 1024**3
PID = 4242


def ended(code: int | None = 1, signal: int | None = None, **fields: Any) -> Ended:
    """An end; `code` and `signal` None: nobody saw it."""
    # Of this moment, not of the session's begin: what is later than the end counts as somebody else's.
    at, started = format_utc(epoch_s()), format_utc(epoch_s() - 60.0)
    status = None if code is None and signal is None else WaitStatus(code, signal, ended_at=at)
    words = "nobody saw the end" if status is None else f"the job ended with {status.describe()}"
    outcome = Outcome.LOST if status is None else Outcome.SUCCEEDED if code == 0 else Outcome.FAILED
    known: dict[str, Any] = {"at": at, "outcome": outcome, "exit_code": 0 if code == 0 else 1, "evidence": words}
    known |= {"status": status, "started_at": started}
    return Ended(**{**known, **fields})


def disk(path: str = "/runs", free: int | None = 500 * GIB, role: str = "run", **fields: Any) -> DiskChange:
    """One disk at the end; `free` None: it could not be read."""
    bytes_free: Reading[int] = Reading(free) if free is not None else Reading(unread="no answer")
    return DiskChange(role, path, bytes_free, free_inodes=fields.pop("free_inodes", 1_000_000), **fields)


def evidence(end: Ended | None = None, **fields: Any) -> EndedEvidence:
    """An end of which everything could be read and nothing speaks; `fields` say what does."""
    calm = EndedEvidence(
        RUN_ID,
        1,
        end or ended(),
        rebooted=Reading(False),
        init_restarted=Reading(False),
        own_kills=Reading(0),
        host_kills=Reading(0),
        kernel=Reading(KernelLog()),
        killers=Reading(()),
        log=Reading(LogFacts("output.log", 0)),
        disks=(disk(),),
        pids=frozenset({PID}),
        group=GROUP,
        looked_s=0.5,
    )
    return replace(calm, **fields)


def oom_event(
    constraint: str = "CONSTRAINT_MEMCG", *, pid: int = PID, group: str = "/else", trusted: bool = True
) -> KernelEvent:
    """A kill by the kernel's OOM killer as its log has it."""
    values = {"constraint": constraint, "task_memcg": group, "task": "python", "oom_memcg": group}
    return KernelEvent(
        KernelKind.OOM_KILL, 5.0, "oom-kill:constraint", pid=pid, comm="python", trusted=trusted, values=values
    )


def log_of(*events: KernelEvent) -> Reading[KernelLog]:
    """A kernel log with these lines."""
    return Reading(KernelLog(events))


def said(*words: Detection, exception: str = "", tail: str = "") -> dict[str, Any]:
    """Fields of evidence: what the output says."""
    return {"words": words, "log": Reading(LogFacts("output.log", 9, exception=exception, tail=tail))}


def write_attempt(
    root: Path,
    end: Ended,
    output: bytes | str = "",
    *,
    usage: dict[str, Any] | None = None,
    manifest: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
    heartbeat: dict[str, Any] | None = None,
    findings: list[dict[str, Any]] | None = None,
) -> str:
    """A run directory with one ended attempt; answers its path."""
    run_dir = root / RUN_ID
    attempt = run_dir / "attempts" / "1"
    attempt.mkdir(parents=True)
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "job": record or {}}))
    state = RunState(RUN_ID, 1, 9, read_box(), format_utc(epoch_s() - 60.0), None, end)
    (attempt / wire.STATE).write_bytes(wire.to_bytes(state))
    exit_record = {**wire.encode(end), "usage": {"oom_kills": 0} if usage is None else usage, "final_cards": {}}
    (attempt / wire.EXIT).write_bytes(wire.to_bytes(exit_record))
    (attempt / wire.MANIFEST).write_text(json.dumps({**launch(str(run_dir)), **(manifest or {})}))
    (attempt / wire.OUTPUT).write_bytes(output if isinstance(output, bytes) else output.encode())
    (attempt / wire.HEARTBEAT).write_text(json.dumps(heartbeat or {}))
    (attempt / wire.POSTFLIGHT).write_text(json.dumps({"schema": 1, "findings": findings or []}))
    return str(run_dir)


def launch(run_dir: str) -> dict[str, Any]:
    """A manifest as of a launch on this box."""
    baseline = {
        "boot_id": boot_id(),
        "init_start_ticks": None,
        "monotonic_s": monotonic_s(),
        "disks": [{"role": "run", "path": run_dir, "read_only": False}],
    }
    return {"schema": 1, "host": os.uname().nodename, "written_at": utc_now(), "baseline": baseline}
