"""Campaigns behind ``make soak``: a training in a real Slurm is broken off again and again, and ends as undisturbed.

``HOLDFAST_SOAK_PREEMPTIONS`` sets how often it is preempted (20), ``HOLDFAST_SOAK_WARNINGS`` how often it is warned
ahead of its time limit (5), ``HOLDFAST_SOAK_SEED`` repeats the instants.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab
from tests.slurm.preempted import BrokenOff, list_waits
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(7200)]

PREEMPTIONS = int(os.environ.get("HOLDFAST_SOAK_PREEMPTIONS", "20"))
WARNINGS = int(os.environ.get("HOLDFAST_SOAK_WARNINGS", "5"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))


@pytest.fixture(params=["linuxproc", "cgroup"])
def patient_lab(
    request: pytest.FixtureRequest,
    isolated_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lab]:
    """The place `lab` of a Slurm with a KillWait as sites have it: a save on a busy box is in time."""
    with Slurm.started(kill_wait_s=30, tracker=request.param) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
        yield Lab(slurm, tmp_path)


@pytest.mark.requirement("SLM-03", "SLM-08")
def test_a_training_that_is_preempted_again_and_again_ends_with_the_same_weights(patient_lab: Lab) -> None:
    draw, slurm = random.Random(SEED), patient_lab.slurm
    training = BrokenOff(patient_lab, "--gpus", "4", "--slurm", "nodelist=n1", "--slurm", "partition=low")
    job = training.run.job
    for number in range(PREEMPTIONS):
        slurm.wait_for(job, "RUNNING", timeout_s=150)
        if draw.random() < 0.75:
            attempt = training.list_attempts()[-1] + (number > 0 and training.is_over(training.list_attempts()[-1]))
            wait_until(lambda at=attempt: training.read_steps(at), 150, what=f"attempt {attempt} counts; {SEED=}")  # type: ignore[misc]
        # Any instant of an attempt may be the one, also before its first step.
        time.sleep(draw.uniform(0.0, 3.0))
        high = slurm.sbatch("--partition=high", "--gres=gpu:4", "--nodelist=n1", "--wrap", "true")
        slurm.wait_for(high, "COMPLETED", timeout_s=150)
        print(f"preempted {number + 1} times, attempts {training.list_attempts()}")
    training.finish()
    assert slurm.show(job)["Restarts"] == str(PREEMPTIONS), f"{SEED=}"


@pytest.mark.requirement("SLM-02", "SLM-03", "SLM-13")
def test_a_training_that_is_warned_at_each_time_limit_loses_no_step(patient_lab: Lab) -> None:
    slurm = patient_lab.slurm
    training = BrokenOff(patient_lab, "--slurm", "time=1", "--slurm", "signal=B:USR1@20")
    job = training.run.job
    after = slurm.sbatch(f"--dependency=afterok:{job}", "--wrap", "true")
    for number in range(1, WARNINGS + 1):
        wait_until(lambda at=number: training.read_steps(at + 1), 300, what=f"attempt {number + 1} counts")  # type: ignore[misc]
        assert slurm.show(after)["JobState"] == "PENDING", "no warned end is a success"
    training.finish()
    slurm.wait_for(after, "COMPLETED")
    assert len(training.list_attempts()) == WARNINGS + 1
    own = []
    for attempt, waits in enumerate(list_waits(slurm, training), 1):
        own.append(waits.to_requeue_s + waits.to_step_s)
        print(f"attempt {attempt}: {waits}")
    print(f"of our own, with the start of Python and the library: median {statistics.median(own):.2f} s")
