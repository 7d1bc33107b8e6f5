"""A sweep on its way to Slurm is killed at every point, on the login node; handed in again no job is lost, none twice.

The entry dies before each of its calls that changes something (`tests.agent.killing`); every step is taken by
``make soak``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.detached import ENTRY
from holdfast.core.queue.job_hasher import JobHasher
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.queue import GroupKind, NewJob, OrderedJobs, Submission
from holdfast.model.queue_order import QueueOrder
from tests.agent.killing import FRONT_NAME, build_library
from tests.budget import examples
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.cluster

FEW = 3
JOBS = ("a", "b")


def _order(name: str, tmp_path: Path) -> QueueOrder:
    base = wire.encode(JobSpec("job", ("true",), str(tmp_path)))
    hasher = JobHasher(base)
    changes = {name: {"command": ["sh", "-c", f': {name}; echo x >> "$HOLDFAST_RUN_DIR/ran"']} for name in JOBS}
    jobs = tuple(NewJob(name, dict(change), sha256=hasher.hash(change)) for name, change in changes.items())
    ordered = OrderedJobs(f"20261123-101500-{name}-0000", "0" * 64)
    submission = Submission(
        name, base, jobs, "", "", (), "", "2026-11-23T10:15:00.000Z", kind=GroupKind.SWEEP, ordered=ordered
    )
    return QueueOrder(submission, named=True, scheduler="slurm")


def _judge(root: Path, names: list[str]) -> list[str]:
    """What is wrong with some sweeps, once all of their jobs have ended."""
    wrong: list[str] = []
    known: set[str] = set()
    for name in names:
        content = json.loads((root / f".sweeps-{os.geteuid()}" / name / "sweep.json").read_text())
        runs = {job["given"]["name"]: job["run_id"] for job in content["jobs"]}
        known.update(runs.values())
        wrong += [] if tuple(runs) == JOBS else [f"{name}: {runs}"]
        for run_id in runs.values():
            run_dir = root / run_id
            wait_until((run_dir / "attempts/1/exit.json").exists, 300 * PATIENCE, what=f"{run_id} has ended")
            ran = (run_dir / "ran").read_text().count("x")
            attempts = len(os.listdir(run_dir / "attempts"))
            wrong += [] if (ran, attempts) == (1, 1) else [f"{name}: {run_id} ran {ran} times in {attempts} attempts"]
    others = {path for path in os.listdir(root) if not path.startswith(".")} - known
    return [*wrong, *(f"a run of no sweep: {path}" for path in others)]


def _check(tmp_path: Path, most: int) -> None:
    # The library knows the entry by this word.
    root = tmp_path / FRONT_NAME

    def submit(name: str, environ: Mapping[str, str]) -> str:
        command = [sys.executable, "-I", "-S", ENTRY, "slurm-sweep", "--root", str(root)]
        sent = wire.to_bytes(_order(name, tmp_path))
        done = subprocess.run(command, input=sent, env={**os.environ, **environ}, capture_output=True, check=False)
        return "" if done.returncode == 0 else f"{name}: {done.returncode}: {done.stdout!r} {done.stderr!r}"

    told = {"LD_PRELOAD": build_library(tmp_path), "KILL_WHO": "front"}
    counted = tmp_path / "count"
    assert not submit("first", {})
    assert not submit("count", {**told, "KILL_AT": "0", "KILL_COUNT": str(counted)})
    total = counted.stat().st_size
    assert total > FEW, "the library is not in the process"
    names, wrong = ["first", "count"], []
    for at in range(1, total + 1, max(1, total // most)):
        names.append(f"step{at}")
        submit(names[-1], {**told, "KILL_AT": str(at)})
        if problem := submit(names[-1], {}):
            wrong.append(problem)
    wrong += _judge(root, names)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("QUEUE-14")
@pytest.mark.usefixtures("slurm")
def test_a_hand_in_that_is_killed_has_every_job_once_when_it_is_said_again(tmp_path: Path) -> None:
    _check(tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("slurm")
def test_a_hand_in_that_is_killed_at_any_step(tmp_path: Path) -> None:
    _check(tmp_path, 100_000)
