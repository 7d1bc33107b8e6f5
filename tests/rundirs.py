"""Run directories as a supervisor leaves them, written through `model.wire`, for tests of readers.

Real files with real process identities; the processes are the test's own children where a test needs living ones.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from holdfast.host.box import read_box
from holdfast.host.clock import boot_id, utc_now
from holdfast.host.process.processes import identify
from holdfast.model import wire
from holdfast.model.identity import JobProcess, ProcessId, WaitStatus
from holdfast.model.job import JobSpec
from holdfast.model.origin import RunOrigin
from holdfast.model.record import replace
from holdfast.model.run import Created, Ended, Finalizing, Outcome, Running, RunState

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.lease import LeasedDevice
    from holdfast.model.run import State

DEAD = ProcessId(pid=4_194_303, start_ticks=1, boot_id="")
"""Nobody: the largest pid that Linux can give, started in the first tick."""


def own_run_id(name: str = "digits") -> str:
    """A run id that no other test on this box uses now: for runs whose marker a living process carries.

    What carries a marker is found by the id alone, also by the tests of another suite.
    """
    return f"20261120-100000-{name}{os.getpid()}-0a1b"


def dead_process() -> ProcessId:
    """A process of this boot that is gone."""
    return ProcessId(DEAD.pid, DEAD.start_ticks, boot_id())


def living_process(pid: int) -> ProcessId:
    """The identity of a living process."""
    found = identify(pid)
    assert found is not None
    return found


def job_of(process: ProcessId) -> JobProcess:
    """A job leader with this identity."""
    return JobProcess(process, sid=process.pid, pgid=process.pid, inner_pid=process.pid)


def running(
    *, keeper: ProcessId | None = None, job: ProcessId | None = None, devices: tuple[LeasedDevice, ...] = ()
) -> Running:
    """A running state; processes that are not given are gone."""
    return Running(since=utc_now(), devices=devices, keeper=keeper or dead_process(), job=job_of(job or dead_process()))


def finalizing(*, stuck: tuple[str, ...] = ()) -> Finalizing:
    """A finalizing state."""
    return Finalizing(since=utc_now(), stuck=stuck)


def ended(outcome: Outcome = Outcome.SUCCEEDED, exit_code: int = 0, at: str = "2026-11-20T10:00:05.000Z") -> Ended:
    """An end with the status that belongs to the code."""
    return Ended(
        at=at,
        outcome=outcome,
        exit_code=exit_code,
        evidence=f"the job ended with exit code {exit_code}",
        status=WaitStatus(exit_code, None, ended_at=at),
        started_at="2026-11-20T10:00:00.000Z",
    )


def make_run(
    root: Path | str,
    run_id: str = "20261120-100000-digits-0a1b",
    state: State | None = None,
    *,
    attempt: int = 1,
    supervisor: ProcessId | None = None,
    boot: str | None = None,
    host: str | None = None,
    created_at: str = "2026-11-20T09:59:59.000Z",
) -> str:
    """A run with one attempt in `state` (default: created); answers its directory. Call again for more attempts."""
    state = state or Created()
    run_dir = f"{root}/{run_id}"
    directory = wire.attempt_dir(run_dir, attempt)
    os.makedirs(directory, mode=0o700)
    for name in (wire.ARTIFACTS, wire.CHECKPOINTS, wire.SNAPSHOT):
        os.makedirs(f"{run_dir}/{name}", mode=0o700, exist_ok=True)
    origin = RunOrigin(
        run_id=run_id,
        created_at="2026-11-20T09:59:59.000Z",
        job=JobSpec(name=run_id[16:-5], command=("true",), workdir="/"),
        job_sha256="0" * 64,
        user="anna",
        uid=os.geteuid(),
        host=host or os.uname().nodename,
        cwd="/",
        argv=("holdfast", "run"),
        python="python3",
        version="0",
    )
    write(f"{run_dir}/{wire.RUN}", wire.to_bytes(origin))
    here = read_box()
    record = RunState(
        run_id=run_id,
        attempt=attempt,
        version=3,
        box=replace(here, host=host or here.host, boot_id=boot or (f"the boot of {host}" if host else here.boot_id)),
        created_at=created_at,
        supervisor=supervisor,
        state=state,
        updated_at="2026-11-20T10:00:05.000Z",
    )
    write(f"{directory}/{wire.STATE}", wire.to_bytes(record))
    if isinstance(state, Ended):
        facts = {"outcome": state.outcome, "exit_code": state.exit_code, "reason": state.evidence}
        write(f"{directory}/{wire.EXIT}", wire.to_bytes({**wire.encode(state), **facts}))
    return run_dir


def write(path: str, data: bytes | str) -> None:
    """Write a whole file."""
    with open(path, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_events(run_dir: str, attempt: int, *names: str) -> None:
    """Events with these names, one second of the monotonic clock apart."""
    lines = [
        json.dumps(
            {"seq": n, "utc": f"2026-11-20T10:00:{n:02d}.000Z", "monotonic_s": float(n), "event": name, "data": {}}
        )
        for n, name in enumerate(names, start=1)
    ]
    write(f"{wire.attempt_dir(run_dir, attempt)}/{wire.EVENTS}", "\n".join(lines) + "\n")
