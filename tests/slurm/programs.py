"""Slurm's commands as scripts that say what a test has them say, and note each call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.scheduler.slurm.files import write_record
from holdfast.model.slurm import SlurmRecord
from tests.rundirs import make_run

if TYPE_CHECKING:
    from holdfast.model.run import State


class Programs:
    """Slurm's commands as scripts on the PATH, each of which notes that it was called."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """None is there yet."""
        self.bin, self.log = tmp_path / "bin", tmp_path / "calls"
        self.bin.mkdir()
        self.log.touch()
        self.runs = tmp_path / "runs"
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def write(self, name: str, body: str) -> None:
        """Make a command of it."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{body}\n')
        path.chmod(0o755)

    def answer(self, name: str, text: str) -> None:
        """Have a command print this; squeue as it is asked to, with the mark of its format before each line."""
        path = self.bin / f"{name}.txt"
        path.write_text(text)
        marked = (
            f'for word; do case "$word" in --format=*) word=${{word#*=}}; sed "s/^/${{word%%|*}}|/" {path};; esac; done'
        )
        self.write(name, marked if name == "squeue" else f"cat {path}")

    def list_calls(self) -> list[str]:
        """What was called, by name."""
        return [line.split(" ", maxsplit=1)[0] for line in self.log.read_text().splitlines()]

    def take_jobs(self) -> None:
        """Have sbatch take whatever it is given, as jobs 1, 2 and so on."""
        last = self.bin / "last"
        last.write_text("0")
        self.write("sbatch", f'n=$(($(cat {last}) + 1)); echo $n | tee {last}; cp "$2" {self.bin}/job-$n.sh')
        self.answer("scontrol", "MaxArraySize = 1001\n")

    def read_script(self, job_id: int) -> str:
        """What sbatch was given as this job."""
        return (self.bin / f"job-{job_id}.sh").read_text()

    def count(self, name: str) -> int:
        """How often a command was called."""
        return self.list_calls().count(name)

    def add_run(self, job_id: str | None, name: str = "") -> str:
        """A run whose job has this id, or none that is recorded."""
        run_dir = self.runs / (name or str(job_id))
        run_dir.mkdir(parents=True)
        (run_dir / "slurm.json").write_text(json.dumps({"name": "x", "comment": "y", "job_id": job_id}))
        return str(run_dir)

    def make_run(
        self, state: State | None = None, *, job_id: str | None = "7", name: str = "train", attempt: int = 1
    ) -> str:
        """A whole run of Slurm with one attempt in this state (default: never taken up); again for more attempts."""
        run_dir = make_run(self.runs, f"20261123-101500-{name}-3fa2", state, attempt=attempt)
        origin = Path(run_dir, "run.json")
        origin.write_text(json.dumps({**json.loads(origin.read_text()), "scheduler": "slurm"}))
        write_record(run_dir, SlurmRecord("x", "y", job_id=job_id))
        return run_dir

    def list_job(self, run_dir: str, state: str, *, job_id: str = "7", reason: str = "None") -> None:
        """Have squeue list one job, that of a run."""
        self.answer("squeue", f"{job_id}|{state}|N/A|0:00|1:00:00|{reason}|()|{run_dir}/batch.sh\n")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Commands of a Slurm that has never heard of anything."""
    made = Programs(tmp_path, monkeypatch)
    made.answer("squeue", "")
    made.write("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    made.write("scontrol", "exit 1")
    made.write("scancel", "")
    return made
