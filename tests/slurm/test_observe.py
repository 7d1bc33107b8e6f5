"""What Slurm says of its jobs, and what comes of it: calls counted, signals heard, and ends that move."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.scheduler.slurm.scheduler import SlurmScheduler
from holdfast.model.scheduler import Phase
from tests.slurm.cluster import TRACKERS, on
from tests.slurm.lab import LabRun
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.cluster import Slurm
    from tests.slurm.lab import Lab

pytestmark = pytest.mark.cluster

COUNTS = """
import os, signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("begin", flush=True)
while not heard:
    time.sleep(0.02)
time.sleep(1)
print("heard", len(heard), flush=True)
os._exit(143)
"""
LEAVES = """
import json, os, sys
print("begin", os.environ["HOLDFAST_ATTEMPT"], os.environ["SLURM_JOB_END_TIME"], flush=True)
if os.environ["HOLDFAST_ATTEMPT"] == "1":
    with open(os.environ["HOLDFAST_RUN_DIR"] + "/attempts/1/stop.json", "w") as file:
        json.dump({"schema": 1, "why": "deadline", "detail": "SLURM_JOB_END_TIME", "saved": True, "step": 7}, file)
    sys.exit(143)
"""
"""A training that leaves by itself ahead of the end of its job, as the library does where a save would not fit."""


def _submit(lab: Lab, code: str, *words: str) -> LabRun:
    done = lab("run", "--on", "lab", "-d", *words, "--", sys.executable, "-c", code)
    return LabRun(lab, done.stdout.strip())


@on(*TRACKERS)
@pytest.mark.requirement("SLM-11")
def test_SLM_11_a_job_hears_of_its_end_once_whoever_slurm_tells(lab: Lab) -> None:
    """With linuxproc Slurm signals all processes itself, with cgroup only the supervisor."""
    run = _submit(lab, COUNTS)
    run.wait_begun()
    lab.slurm.call("scancel", run.job)
    wait_until((run.path / "attempts/1/exit.json").exists, what="attempt 1 has ended")
    assert run.output() == "begin\nheard 1\n"
    assert run.exit()["outcome"] == "stopped"


@pytest.mark.requirement("SLM-03", "SLM-04")
def test_SLM_03_a_training_that_leaves_ahead_of_its_jobs_end_is_put_back_too(lab: Lab) -> None:
    words = ("--slurm", "time=3", "--slurm", "signal=B:USR1@130")
    done = lab("run", "--on", "lab", "-d", *words, "--", sys.executable, "-c", LEAVES)
    assert "the job has 3m00s in all: it is asked to leave as soon as it begins" in done.stderr
    run = LabRun(lab, done.stdout.strip())
    assert lab("wait", run.name).returncode == 0
    checks = json.loads(lab("show", run.name, "--attempt", "1", "--json").stdout)["preflight"]
    (seen,) = (check["evidence"] for check in checks if check["id"] == "time.warning")
    assert "the warning comes 2m10s before the time limit" in seen
    assert "--slurm time=MINUTES" in seen
    assert (run.exit(1)["outcome"], run.exit(1)["exit_code"]) == ("preempted", 143)
    assert run.output(2).startswith("begin 2 ")
    assert lab.slurm.show(run.job)["Restarts"] == "1"


@pytest.mark.requirement("SLM-08", "SLM-09")
def test_hundreds_of_real_jobs_are_one_call(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = slurm.sbatch("--array=0-219%1", "--time=5", "--wrap", "sleep 600")
    calls = tmp_path / "calls"
    for name in ("squeue", "scontrol", "sacct"):
        wrapper = tmp_path / "bin" / name
        wrapper.parent.mkdir(exist_ok=True)
        wrapper.write_text(f'#!/bin/sh\necho {name} >> {calls}\nexec {shutil.which(name)} "$@"\n')
        wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    runs = []
    for job in [*(f"{array}_{task}" for task in range(220)), "4000001", "4000002"]:
        path = tmp_path / "runs" / job
        path.mkdir(parents=True)
        (path / "slurm.json").write_text(json.dumps({"name": "x", "comment": "y", "job_id": job}))
        runs.append(str(path))
    slurm.wait_for(f"{array}_0", "RUNNING")
    calls.unlink(missing_ok=True)
    scheduler = SlurmScheduler()
    found = scheduler.look(runs[:220])
    assert calls.read_text().split() == ["squeue"]
    assert found[runs[0]].phase is Phase.RUNNING
    assert "of its 5m00s used" in found[runs[0]].evidence
    assert {found[run].phase for run in runs[1:220]} == {Phase.WAITING}
    assert "as many tasks of its array run as may" in found[runs[5]].advice
    found = scheduler.look(runs)
    assert calls.read_text().split() == ["squeue", "squeue", "sacct"]
    assert found[runs[-1]].phase is Phase.OVER
    slurm.call("scancel", array)


@pytest.mark.requirement("SLM-03")
def test_who_follows_a_run_that_waits_hears_why_and_that_it_never_begins(lab: Lab) -> None:
    run = lab.submit("--slurm", "begin=now+3600")
    following = lab.begin("attach", run.name)
    assert following.stderr is not None
    assert "waits: PENDING (BeginTime)" in following.stderr.readline()
    assert "pending (BeginTime)" in lab("logs", run.name).stderr
    (row,) = json.loads(lab("ls", "--json").stdout)["runs"]
    assert (row["place"], row["condition"]) == ("lab", "pending (BeginTime)"), "as the place's, also on its own machine"
    assert lab("patrol").stdout == "1 run: 1 waiting\n"
    lab.slurm.call("scancel", run.job)
    _, said = following.communicate(timeout=LONG_S)
    assert following.returncode == 130
    assert "it left no record of its end, which `holdfast stop" in said
    assert "attempt 2" not in said
