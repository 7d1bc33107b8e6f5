"""One order is one job of Slurm, wherever whoever submits it is killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab, LabRun

pytestmark = pytest.mark.cluster

RUN_ID = "20261123-101500-once-3fa2"


def _forget_job(run: LabRun) -> None:
    """What is on the disk when the submitter is killed after sbatch has answered, and before that is recorded."""
    path = run.path / "slurm.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "job_id": None, "submitted_at": None}))


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-01", "SLM-09")
def test_a_run_whose_job_was_not_recorded_is_stopped_all_the_same(lab: Lab) -> None:
    run = lab.submit("--slurm", "begin=now+1hour", steps=3)
    job = run.job
    _forget_job(run)
    lab("stop", run.name)
    assert (run.state, run.job, lab.slurm.show(job)["JobState"]) == ("stopped", job, "CANCELLED")


@pytest.mark.timeout(240)
@pytest.mark.requirement("SLM-01")
def test_an_order_that_is_sent_again_after_a_kill_is_the_same_job(lab: Lab) -> None:
    blockers = [lab.slurm.sbatch("--gres=gpu:4", f"--nodelist={node}", "--wrap", "sleep 600") for node in ("n1", "n2")]
    for blocker in blockers:
        lab.slurm.wait_for(blocker, "RUNNING")
    words = ("--gpus", "1", "--run-id", RUN_ID)
    run = lab.submit(*words, steps=3)
    job = run.job

    # After sbatch, before its answer was recorded: found by its script.
    _forget_job(run)
    assert lab.submit(*words, steps=3).job == job
    assert lab.list_jobs() == [job]

    # Before sbatch: the job that somebody cancelled stands for the one that was never submitted.
    _forget_job(run)
    lab.slurm.call("scancel", job)
    lab.slurm.wait_for(job, "CANCELLED")
    second = lab.submit(*words, steps=3).job
    assert second != job

    # Nobody asks again, and the job itself has recorded its id when it runs; asked afterwards nothing is submitted.
    _forget_job(run)
    lab.slurm.call("scancel", *blockers)
    wait_until((run.path / "attempts/1/exit.json").exists, what="it has run")
    assert run.job == second
    lab("wait", run.name)
    assert lab.submit(*words, steps=3).job == second
    assert sorted(lab.list_jobs()) == sorted([job, second])
    assert run.output() == "begin 0 1 start\ndone 3\n"

    # Another job under the same id is none of this run.
    taken = lab("run", "--on", "lab", "-d", "--run-id", RUN_ID, "--", "true", code=73)
    assert "another job" in taken.stderr


@pytest.mark.requirement("SLM-01")
def test_a_job_that_is_not_the_recorded_one_of_its_run_begins_nothing(lab: Lab) -> None:
    run = lab.submit(steps=3)
    lab("wait", run.name)
    other = lab.slurm.call("sbatch", "--parsable", str(run.path / "batch.sh")).strip()
    lab.slurm.wait_for(other, "FAILED")
    log = (run.path / f"slurm-{other}.log").read_text()
    assert f"is the run of job {run.job}, not of {other}" in log
    assert not (run.path / "attempts/2").exists()
