"""A training that can be broken off at any instant, and what its attempts are judged by."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.slurm.lab import LabRun

if TYPE_CHECKING:
    from tests.slurm.cluster import Slurm
    from tests.slurm.lab import Lab

STEPS = 20_000
PROGRAM = """\
import array, hashlib, os, random, sys, time
from holdfast import training
steps, hurry = int(sys.argv[1]), sys.argv[2]
weights = array.array("d", [0.0]) * 8
with training.run(every=None, seed=7) as run:
    run.track(weights=weights)
    for step in run.steps(steps):
        if not os.path.exists(hurry):
            time.sleep(0.02)
        for index in range(len(weights)):
            weights[index] += random.gauss(0, 1) / (step + 1)
        if step % 100 == 99 or not os.path.exists(hurry):
            print("step", step, time.time(), flush=True)
    print("weights", hashlib.sha256(weights.tobytes()).hexdigest(), flush=True)
"""
"""Saves when it is asked to leave, and only then; from when the file `hurry` is there it takes no time.

Its weights depend on every draw, in their order: one that is lost, or drawn twice, shows.
"""
WHEN = re.compile(r"^\[([0-9T:.-]+)\] (.*)$")


class BrokenOff:
    """The training as a run at the place `lab`, and the weights that it has when nothing disturbs it."""

    def __init__(self, lab: Lab, *words: str) -> None:
        """Order it."""
        self.lab, self.hurry = lab, lab.code / "hurry"
        (lab.code / "train.py").write_text(PROGRAM)
        self.weights = self._train_undisturbed()
        self.hurry.unlink()
        command = ("run", "--on", "lab", "-d", *words, "--", sys.executable, "train.py", str(STEPS), str(self.hurry))
        self.run = LabRun(lab, lab(*command).stdout.strip())

    def _train_undisturbed(self) -> str:
        self.hurry.touch()
        environ = {**os.environ, "HOLDFAST_CHECKPOINT_DIR": str(self.lab.code / "undisturbed")}
        command = [sys.executable, "train.py", str(STEPS), str(self.hurry)]
        said = subprocess.run(command, cwd=self.lab.code, env=environ, capture_output=True, text=True, check=True)
        return said.stdout.split()[-1]

    def list_attempts(self) -> list[int]:
        """The numbers of the attempts that were begun."""
        return sorted(int(name) for name in os.listdir(self.run.path / "attempts"))

    def read_steps(self, attempt: int) -> list[tuple[int, float]]:
        """The steps that an attempt has told of, and when."""
        lines = (line.split() for line in self.run.output(attempt).splitlines())
        return [(int(words[1]), float(words[2])) for words in lines if words[:1] == ["step"] and len(words) == 3]

    def is_over(self, attempt: int) -> bool:
        """Whether its end is on record."""
        return (self.run.path / f"attempts/{attempt}/exit.json").exists()

    def finish(self) -> None:
        """Let it end, and judge all of it: no step is lost or taken twice, and the weights are the undisturbed ones."""
        self.hurry.touch()
        self.lab("wait", self.run.name)
        attempts = self.list_attempts()
        outcomes = [self.run.exit(one)["outcome"] for one in attempts]
        assert outcomes == ["preempted"] * (len(attempts) - 1) + ["succeeded"], outcomes
        assert self.run.output(attempts[-1]).split()[-1] == self.weights
        told = [self.read_steps(one) for one in attempts]
        for before, after in pairwise(told):
            # Of the last attempt only every hundredth step is told once it hurries.
            assert not after or not before or 0 < after[0][0] - before[-1][0] <= 100, (before[-1], after[0])
        listed = self.lab.slurm.call("squeue", "--states=all", "--noheader", "--format=%i|%o").splitlines()
        assert [line.split("|")[0] for line in listed if str(self.run.path) in line] == [self.run.job], "one job of it"


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from the exit record of an attempt to the requeue, from there to Slurm's start, to the first step."""

    to_requeue_s: float
    of_slurm_s: float
    to_step_s: float


def list_waits(slurm: Slurm, training: BrokenOff) -> list[Waits]:
    """What passed between each attempt of a training that was put back, and the one after it."""
    job = training.run.job
    lines = [match for one in (slurm.root / "slurmctld.log").read_text().splitlines() if (match := WHEN.match(one))]
    told = [(datetime.fromisoformat(one[1]).timestamp(), one[2]) for one in lines]
    asked = [when for when, words in told if words == f"Requeuing JobId={job}"]
    begun = [when for when, words in told if re.search(rf"(?:Allocate|Started) JobId={job} ", words)]
    found = []
    for attempt, (put_back, started) in enumerate(zip(asked, begun[1:], strict=True), 1):
        record = training.run.path / f"attempts/{attempt}/exit.json"
        first = training.read_steps(attempt + 1)[0][1]
        found.append(Waits(put_back - record.stat().st_mtime, started - put_back, first - started))
    return found
