"""Runs of Slurm that are begun again once they are over: one job at a time, wherever whoever restarts is killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.slurm.lab import LabRun
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytestmark = pytest.mark.cluster


def _saved(run: LabRun, attempt: int) -> str:
    return run.output(attempt).split()[-1]


def _blocked(lab: Lab) -> list[str]:
    """Jobs that keep all cards busy, so that what asks for one waits."""
    blockers = [lab.slurm.sbatch("--gres=gpu:4", f"--nodelist={node}", "--wrap", "sleep 600") for node in ("n1", "n2")]
    for blocker in blockers:
        lab.slurm.wait_for(blocker, "RUNNING")
    return blockers


@pytest.mark.requirement("SLM-01")
def test_a_run_that_was_stopped_goes_on_as_another_job_with_more_time(lab: Lab) -> None:
    run = lab.submit("--slurm", "time=5")
    run.wait_begun()
    running = lab("restart", run.name, code=64)
    assert "is not over: Slurm: job" in running.stderr
    assert f"holdfast stop lab:{run.run_id} first" in running.stderr
    lab("stop", run.name)
    first = run.job

    shown = lab("restart", run.name, "--slurm", "time=7", "--dry-run").stdout
    assert "slurm.time 5 -> 7" in shown
    again = lab("restart", run.name, "--slurm", "time=7", "--timeout", "6m")
    assert f"is job {run.job} now, which begins it as attempt 2" in again.stderr
    assert run.job != first
    run.finish()
    assert lab("wait", run.name).returncode == 0
    assert run.output(2).startswith(f"begin {_saved(run, 1)} 2 restart\ndone ")
    assert lab.slurm.show(run.job)["TimeLimit"] == "00:07:00"
    assert "slurm.time" in lab("show", run.name).stdout
    # What the old job does now changes nothing: Slurm may be told to begin it again.
    lab.slurm.call("scontrol", "requeue", first)
    lab.slurm.wait_for(first, "FAILED")
    assert f"is the run of job {run.job}, not of {first}" in (run.path / f"slurm-{first}.log").read_text()
    adopted = lab("adopt", run.name, code=64)
    assert "slurm starts its supervisor" in adopted.stderr


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-01")
def test_a_restart_that_is_refused_or_cut_off_leaves_one_attempt_and_one_job(lab: Lab) -> None:
    run = lab.submit("--gpus", "1", steps=3)
    lab("wait", run.name)
    blockers = _blocked(lab)
    first = run.job
    before = (run.path / "slurm.json").read_bytes()

    refused = lab("restart", run.name, "--slurm", "time=120", "--slurm", "partition=low", code=78)
    assert "beyond that of partition low" in refused.stderr
    assert not (run.path / "attempts/2").exists()
    assert (run.path / "slurm.json").read_bytes() == before

    lab("restart", run.name, "--env", "MORE=1")
    second = run.job
    # Slurm says why only after it has looked at the job.
    wait_until(lambda: run.state == "pending (Resources)", what="Slurm says what it waits for")
    # Said twice it is the same job; said otherwise it is refused.
    assert f"is job {second} now, which begins it as attempt 2" in lab("restart", run.name).stderr
    assert "is not over" in lab("restart", run.name, "--env", "MORE=2", code=64).stderr
    made = (run.path / "slurm.json").read_bytes()

    # Killed after sbatch, before its answer was recorded.
    (run.path / "slurm.json").write_bytes(json.dumps({**json.loads(made), "job_id": None}).encode())
    assert run.state == "pending (Resources)"
    assert f"is job {second} now" in lab("restart", run.name).stderr

    # Killed before sbatch; and before that was on record at all.
    lab.slurm.call("scancel", second)
    lab.slurm.wait_for(second, "CANCELLED")
    (run.path / "slurm.json").write_bytes(json.dumps({**json.loads(made), "job_id": None}).encode())
    lab("restart", run.name)
    third = run.job
    assert third not in (first, second)
    lab.slurm.call("scancel", third)
    lab.slurm.wait_for(third, "CANCELLED")
    (run.path / "slurm.json").write_bytes(before)
    lab("restart", run.name, "--env", "OTHER=1")
    lab.slurm.call("scancel", *blockers)
    assert lab("wait", run.name).returncode == 0
    assert sorted(path.name for path in (run.path / "attempts").iterdir()) == ["1", "2"]
    assert run.output(2) == "begin 0 2 restart\ndone 3\n"
    change = json.loads((run.path / "attempts/2/job.json").read_text())
    assert {item["key"] for item in change["changed"]} == {"env.MORE", "env.OTHER"}
    assert {first, second, third, run.job} <= set(lab.list_jobs())
    assert len(lab.list_jobs()) == 4


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-08", "SLM-09")
def test_reconcile_writes_an_end_that_only_slurm_saw_and_restart_goes_on_from_it(lab: Lab) -> None:
    run = lab.submit()
    run.wait_begun()
    run.kill_supervised()
    run.finish()
    lab.slurm.wait_for(run.job, "FAILED", "NODE_FAIL", "CANCELLED")
    told = lab("reconcile", "--on", "lab", "--dry-run", code=1).stdout
    assert "its end is written as its scheduler tells it" in told
    assert not (run.path / "attempts/1/exit.json").exists()
    lab("reconcile", "--on", "lab")
    assert run.exit()["outcome"] in ("lost", "failed")
    note = (run.path / "attempts/1/failure.md").read_text()
    assert "holdfast restart" in note
    lab("restart", run.name)
    assert lab("wait", run.name).returncode == 0

    # Once more, and nobody but the restart itself has the end written.
    other = lab.submit()
    other.wait_begun()
    other.kill_supervised()
    other.finish()
    lab.slurm.wait_for(other.job, "FAILED", "NODE_FAIL", "CANCELLED")
    lab("restart", other.name)
    wait_until((other.path / "attempts/2").exists, what="attempt 2 is there")
    assert other.exit()["outcome"] in ("lost", "failed")
    assert lab("wait", other.name).returncode == 0


@pytest.mark.requirement("SLM-01")
def test_an_edited_job_file_is_taken_up_with_its_options_of_sbatch(lab: Lab) -> None:
    file = lab.code / "job.yaml"
    file.write_text("command: [sh, -c, 'echo $LEVEL']\nenv: {LEVEL: low}\nslurm: {time: 5, nice: 3}\n")
    name = lab("run", "--on", "lab", "-d", "job.yaml").stdout.strip()
    run = LabRun(lab, name)
    lab("wait", name)
    assert (lab.slurm.show(run.job)["TimeLimit"], lab.slurm.show(run.job)["Nice"]) == ("00:05:00", "3")
    file.write_text("command: [sh, -c, 'echo $LEVEL']\nenv: {LEVEL: high}\nslurm: {time: 7}\n")
    lab("restart", "--job", "job.yaml", name, "--slurm", "partition=high")
    lab("wait", name)
    shown = lab.slurm.show(run.job)
    assert (shown["TimeLimit"], shown["Nice"], shown["Partition"]) == ("00:07:00", "0", "high")
    assert (run.output(1), run.output(2)) == ("low\n", "high\n")
