"""Supervisors in the foreground for tests: an order, the process that carries it out, and what became of the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agent import detached
from holdfast.core.job.job_hash import hash_job
from holdfast.host.files import files
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.job import JobSpec, Retries
from holdfast.model.order import Order
from tests.agent.driving import Driven
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.agent.driving import Drive

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
AS_INIT = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""Process 1 of a PID namespace of its own, as in a container."""
STEPD = (
    "import subprocess, sys; open('/proc/self/comm', 'w').write('slurmstepd'); sys.exit(subprocess.call(sys.argv[1:]))"
)
"""Slurm's slurmstepd as an ancestor: by its name, which is what is looked at."""
SAVES = (
    "sh",
    "-c",
    "trap 'echo 7 > \"$HOLDFAST_CHECKPOINT_DIR/saved\"; exit 0' TERM; echo ready; while :; do sleep 0.02; done",
)
"""A job that saves when it is asked to leave."""


@dataclass(slots=True)
class Standing:
    """One process that stands in the foreground of a run."""

    process: subprocess.Popen[bytes]
    run: Driven

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor itself, which may be process 1 below the one that we started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(), number)

    def pid(self) -> int:
        return self.process.pid if self.process.args[0] != AS_INIT[0] else _find_init(self.process)  # type: ignore[index]

    def ready(self) -> None:
        wait_until(lambda: b"ready\n" in self.run.output(), what=f"the job is ready: {self.run.log()[-600:]}")

    def end(self, timeout_s: float = LIMIT_S) -> int:
        """Its exit code, once it has left."""
        self.process.wait(timeout_s)
        return self.process.returncode

    def said(self) -> tuple[str, str]:
        """Its standard output and error; once it has left."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return out.decode(), err.decode()


def _find_init(process: subprocess.Popen[bytes]) -> int:
    """The child of unshare(1)."""

    def look() -> int:
        if process.poll() is not None:
            return process.pid
        children = files.read_text_or_none(f"/proc/{process.pid}/task/{process.pid}/children") or ""
        return int(children.split()[0]) if children.split() else 0

    return wait_until(look, what="process 1 of the namespace is there")


def hears(pid: int) -> bool:
    """Whether TERM is no longer lost on a process of ours: it is held back, or there is a handler."""
    command = processes.read_command(pid) or ""
    if "stand" not in command or command.startswith(AS_INIT[0]):
        return False  # unshare(1) holds signals back around its fork
    status = files.read_text_or_none(f"/proc/{pid}/status") or ""
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigBlk:", "SigCgt:"))]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


@dataclass(slots=True)
class Stands:
    """Makes orders, and starts what carries them out."""

    drive: Drive
    directory: Path
    started: list[Standing] = field(default_factory=list)

    def order(self, *command: str, **fields: Any) -> tuple[str, Driven]:
        """An order in a file, and the run that is going to be its."""
        fields.setdefault("retries", Retries(max=0))
        job = JobSpec(fields.pop("name", "t"), command, fields.pop("workdir", ""), **fields)
        run_id = self._draw_run_id(job.name)
        path = self.directory / f"{run_id}.json"
        path.write_bytes(wire.to_bytes(Order(run_id=run_id, job=job, job_sha256=hash_job(job), bundle="b")))
        run = Driven(f"{self.drive.root}/{run_id}", run_id, self.drive.environ)
        self.drive.runs.append(run)
        return str(path), run

    def _draw_run_id(self, name: str) -> str:
        """One that no order has: in every fourth campaign two of its 200 runs have the same of 65,536 numbers."""
        while True:
            run_id = f"20261122-100000-{name}-{os.urandom(2).hex()}"
            if not (self.directory / f"{run_id}.json").exists():
                return run_id

    def __call__(
        self,
        order: tuple[str, Driven],
        *words: str,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        held_back: bool = False,
    ) -> Standing:
        """Carry it out in the foreground. `held_back`: whoever starts it blocks its signals before it exists."""
        path, run = order
        command = [*prefix, *build_stand("--root", self.drive.root, "--order", path, *words)]
        return self._start(command, run, environ, held_back=held_back)

    def go_on(
        self, run: Driven, *words: str, prefix: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> Standing:
        """Go on with a run that is there."""
        return self._start([*prefix, *build_stand("--run", run.run_dir, *words)], run, environ, held_back=False)

    def _start(
        self, command: list[str], run: Driven, environ: Mapping[str, str] | None, *, held_back: bool
    ) -> Standing:
        process = subprocess.Popen(
            command,
            env={**self.drive.environ, **(environ or {})},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_hold_back if held_back else None,  # noqa: PLW1509 - tests have no threads
        )
        made = Standing(process, run)
        self.started.append(made)
        return made

    def clear(self) -> None:
        for standing in self.started:
            if standing.process.poll() is None:
                standing.process.kill()
            standing.process.communicate()


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


def build_stand(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", detached.ENTRY, "stand", *words)


def read_exit(run: Driven) -> dict[str, Any]:
    """The exit record."""
    found: dict[str, Any] = json.loads(Path(run.path(wire.EXIT)).read_text(encoding="utf-8"))
    return found
