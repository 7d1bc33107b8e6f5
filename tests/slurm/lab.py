"""A desk beside the login node of the tests' own Slurm: the place `lab`, and the command line that reaches it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.slurm.cluster import Slurm

TRAINING = """\
import os, signal, sys, time
saved = os.path.join(os.environ["HOLDFAST_RUN_DIR"], "step.txt")
step = int(open(saved).read()) if os.path.exists(saved) else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("begin", step, os.environ["HOLDFAST_ATTEMPT"], os.environ["HOLDFAST_REASON"], flush=True)
enough = os.path.join(os.environ["HOLDFAST_RUN_DIR"], "enough")
while step < int(sys.argv[1]) and not os.path.exists(enough):
    time.sleep(0.05)
    step += 1
    if asked:
        with open(saved, "w") as file:
            file.write(str(step))
        print("saved", step, flush=True)
        os._exit(143)
print("done", step, flush=True)
"""
"""Counts steps; a TERM has it save and leave, and the next attempt goes on from there."""


class Lab:
    """The place `lab`, whose Slurm is `slurm`. `code` is the directory that commands are typed in."""

    def __init__(self, slurm: Slurm, tmp_path: Path) -> None:
        """Configure the place."""
        self.slurm, self.root, self.code = slurm, tmp_path / "lab-runs", tmp_path / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(TRAINING)
        self("place", "add", "lab", "--kind", "slurm", "--root", str(self.root))

    def __call__(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Type a command; `code` None: whatever it ends with."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words], cwd=self.code, capture_output=True, text=True, check=False
        )
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command that goes on for a while."""
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=self.code,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def submit(self, *words: str, steps: int = 100_000) -> LabRun:
        """Order the training, and come back at once."""
        command = ("run", "--on", "lab", "-d", *words, "--", sys.executable, "train.py", str(steps))
        return LabRun(self, self(*command).stdout.strip())

    def list_states(self) -> dict[str, str]:
        """The state of each run of the place in ``holdfast ls``."""
        rows = json.loads(self("ls", "--on", "lab", "--json").stdout)["runs"]
        return {row["run_id"]: row["condition"] for row in rows}

    def list_jobs(self) -> list[str]:
        """The ids of all jobs that this Slurm has taken for this place, as far as it knows."""
        lines = self.slurm.call("squeue", "--states=PD,R,CG,CD,CA", "--noheader", "--format=%i|%o").splitlines()
        return [line.split("|")[0] for line in lines if line.split("|")[1].startswith(str(self.root))]

    def list_jobs_whole(self) -> list[str]:
        """As `list_jobs`, an array once."""
        return list(dict.fromkeys(job.split("_")[0] for job in self.list_jobs()))


class LabRun:
    """A run at the place; `name` is what people type for it."""

    def __init__(self, lab: Lab, name: str) -> None:
        """The run that was ordered as `name`."""
        self.lab, self.name = lab, name
        self.run_id = name.removeprefix("lab:")
        self.path = lab.root / self.run_id

    @property
    def job(self) -> str:
        """Slurm's id of its job."""
        return str(json.loads((self.path / "slurm.json").read_text())["job_id"])

    @property
    def state(self) -> str:
        """What `holdfast ls` says of it."""
        return self.lab.list_states()[self.run_id]

    def log(self) -> str:
        """What Slurm's own log of the job has."""
        return (self.path / f"slurm-{self.job}.log").read_text()

    def output(self, attempt: int = 1) -> str:
        """What the job has written; empty as long as there is nothing."""
        path = self.path / f"attempts/{attempt}/output.log"
        return path.read_text() if path.exists() else ""

    def exit(self, attempt: int = 1) -> dict[str, Any]:
        """The exit record of an attempt."""
        found: dict[str, Any] = json.loads((self.path / f"attempts/{attempt}/exit.json").read_text())
        return found

    def wait_begun(self, attempt: int = 1) -> None:
        """Wait until an attempt's training counts steps."""
        wait_until(
            lambda: "begin" in self.output(attempt), 150 * PATIENCE, what=f"attempt {attempt} of {self.run_id} counts"
        )

    def finish(self) -> None:
        """Have the training end as soon as it counts, in this attempt or a later one."""
        (self.path / "enough").touch()

    def kill_batch(self, name: str) -> None:
        """Send its batch process a signal, as Slurm does where its controller is there."""
        subprocess.run(["pkill", f"-{name}", "-f", f"slurm-batch --run {self.path}"], check=True)

    def kill_supervised(self) -> None:
        """End all processes of the run at once, as an end that nobody can record."""
        pids = [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if self._is_of(int(pid))]
        # One that is left while its child is killed would record that end.
        for signum in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)

    def _is_of(self, pid: int) -> bool:
        mark = os.fsencode(self.run_id)
        try:
            return pid != os.getpid() and any(
                mark in Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")
            )
        except OSError:
            return False


@pytest.fixture
def lab(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The place, with nothing in it; nodes have four simulated cards each."""
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
    return Lab(slurm, tmp_path)
