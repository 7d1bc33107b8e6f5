"""Sweeps as arrays of a real Slurm: each job a run, whatever ends it, and the sweep's roster over them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster


def _runs(lab: Lab) -> dict[str, str]:
    """The run of each job by its name, as the record of the sweep has it."""
    content = json.loads(next(lab.root.glob(".sweeps-*/rates/sweep.json")).read_text())
    return {job["given"]["name"]: job["run_id"] for job in content["jobs"]}


@pytest.mark.requirement("QUEUE-14", "SLM-13")
def test_QUEUE_14_a_sweep_is_one_array_whose_tasks_are_runs(lab: Lab) -> None:
    command = ("sweep", "submit", "--on", "lab", "--name", "rates", "--grid", "steps=1,2,3", "--max-parallel", "2")
    words = ("--arguments", "{value}", "--", sys.executable, "train.py")
    told = lab(*command, *words)
    assert "3 jobs in group rates of lab" in told.stdout
    assert "3 jobs, at most 2 at once" in told.stderr
    (job,) = lab.list_jobs_whole()
    runs = _runs(lab)
    assert "in Slurm's own queue, and not in this one: rates" in lab("queue", "--on", "lab").stderr
    assert set(lab.list_states()) == set(runs.values())
    for run_id in runs.values():
        assert lab("wait", f"lab:{run_id}").returncode == 0
    assert lab("logs", "lab:rates/steps=2").stdout == "begin 0 1 start\ndone 2\n"
    record = json.loads((lab.root / runs["steps=2"] / "run.json").read_text())
    assert record["scheduler"] == "slurm"
    wait_until(lambda: lab.slurm.show(f"{job}_2").get("JobState") == "COMPLETED", what="Slurm has seen the last end")


def test_a_file_of_commands_is_one_array_too(lab: Lab) -> None:
    (lab.code / "night.txt").write_text("name=one true\nname=two MORE=1 sh -c 'test $MORE = 1'\nname=three false\n")
    command = ("submit", "--on", "lab", "--lines", "night.txt", "--max-parallel", "2")
    shown = lab(*command, "--dry-run").stdout
    assert "array 1 of 1: 3 jobs, at most 2 at once" in shown
    assert lab.list_jobs() == []
    told = lab(*command)
    assert "3 jobs in group night of lab" in told.stdout
    assert "holdfast sweep show night --on lab" in told.stderr
    assert len(lab.list_jobs_whole()) == 1
    assert "2 of 3 done, 1 failed" in lab("wait", "lab:night/", code=1).stdout
    # Handed in again with another line it adds what is new.
    with (lab.code / "night.txt").open("a") as file:
        file.write("name=four true\n")
    assert "1 job" in lab(*command).stderr
    assert "3 of 4 done, 1 failed" in lab("wait", "lab:night/", code=1).stdout
    held = lab(*command, "--paused", code=64)
    assert "--slurm begin=TIME" in held.stderr


def test_one_job_of_a_sweep_is_held_and_the_others_run(lab: Lab) -> None:
    blocker = lab.slurm.sbatch("--nodes=2", "--exclusive", "--wrap", "sleep 600")
    lab.slurm.wait_for(blocker, "RUNNING")
    lab("sweep", "submit", "--on", "lab", "--name", "rates", "--grid", "x=1,2", "--", "true", "{x}")
    runs, (job,) = _runs(lab), lab.list_jobs_whole()
    lab("queue", "pause", "--on", "lab", runs["x=1"])
    lab.slurm.call("scancel", blocker)
    assert lab("wait", f"lab:{runs['x=2']}").returncode == 0
    assert lab.slurm.show(f"{job}_0")["Reason"] == "JobHeldUser"
    lab("queue", "resume", "--on", "lab", runs["x=1"])
    assert "2 of 2 done" in lab("wait", "lab:rates/").stdout


ONCE = (
    *("sh", "-c"),
    """echo '{"loss": {x}}' > $HOLDFAST_ARTIFACT_DIR/metrics.json; test {x} != 2 || test $HOLDFAST_ATTEMPT = 2""",
)
"""A job that fails the first time."""


@pytest.mark.timeout(240)
@pytest.mark.requirement("QUEUE-14")
def test_the_roster_of_an_array_names_what_is_open_and_retry_is_a_new_array_of_just_that(
    lab: Lab, tmp_path: Path
) -> None:
    lab("sweep", "submit", "--on", "lab", "--name", "rates", "--grid", "x=1,2,3", "--", *ONCE)
    runs = _runs(lab)
    waited = lab("wait", "lab:rates/", code=1)
    assert "2 of 3 done, 1 failed" in waited.stdout
    assert "holdfast sweep retry --on lab rates" in waited.stderr
    checked = json.loads(lab("sweep", "check", "rates", "--on", "lab", "--json", code=1).stdout)
    assert checked["counts"] == {"done": 2, "failed": 1}
    assert checked["command"] == "holdfast sweep retry rates"
    shown = lab("sweep", "show", "rates", "--on", "lab").stdout
    assert "rates: 2 of 3 done, 1 failed" in shown

    told = lab("sweep", "retry", "rates", "--on", "lab")
    assert "1 job" in told.stderr
    assert _runs(lab) == runs, "the run goes on"
    assert "3 of 3 done" in lab("wait", "lab:rates/").stdout
    checked = json.loads(lab("sweep", "check", "rates", "--on", "lab", "--json").stdout)
    assert (checked["counts"], checked["command"]) == ({"done": 3}, None)
    assert len(lab.list_jobs_whole()) == 2
    table = tmp_path / "rates.json"
    lab("sweep", "export", "rates", str(table), "--on", "lab")
    rows = {row["job"]: row for row in json.loads(table.read_text())["jobs"]}
    assert {name: (row["attempts"], row["metrics"]["loss"]) for name, row in rows.items()} == {
        "x=1": (1, 1.0),
        "x=2": (2, 2.0),
        "x=3": (1, 3.0),
    }


TRAIN = ("--arguments", "{value}", "--", sys.executable, "train.py")


def _submit(lab: Lab, *words: str, command: tuple[str, ...] = TRAIN, code: int | None = 0) -> str:
    done = lab("sweep", "submit", "--on", "lab", "--name", "rates", *words, *command, code=code)
    return done.stdout + done.stderr


def _block(lab: Lab) -> list[str]:
    """Have all cards taken."""
    jobs = [lab.slurm.sbatch("--gres=gpu:4", f"--nodelist={node}", "--wrap", "sleep 600") for node in ("n1", "n2")]
    for job in jobs:
        lab.slurm.wait_for(job, "RUNNING")
    return jobs


def _array(lab: Lab, number: int) -> Path:
    return next(lab.root.glob(f".sweeps-*/rates/{number}"))


def _forget_job(lab: Lab, number: int) -> None:
    """What is on the disk when the submitter is killed after sbatch has answered, and before that is recorded."""
    path = _array(lab, number) / "slurm.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "job_id": None, "submitted_at": None}))


@pytest.mark.timeout(300)
@pytest.mark.requirement("QUEUE-14")
def test_a_sweep_that_is_handed_in_again_after_a_kill_has_every_job_once(lab: Lab) -> None:
    blockers = _block(lab)
    words = ("--gpus", "1", "--grid", "steps=1,2,3")
    _submit(lab, *words)
    runs, (job,) = _runs(lab), lab.list_jobs_whole()
    assert set(lab.list_states().values()) <= {"pending (Resources)", "pending (Priority)", "pending"}

    # After sbatch, before its answer was recorded: found by its script.
    _forget_job(lab, 1)
    _submit(lab, *words)
    assert (lab.list_jobs_whole(), _runs(lab)) == ([job], runs)

    # Before sbatch, with nothing made but the sweep's record: an array that somebody cancelled stands for it.
    _forget_job(lab, 1)
    lab.slurm.call("scancel", job)
    for run_id in runs.values():
        shutil.rmtree(lab.root / run_id)
    _submit(lab, *words)
    (second,) = (one for one in lab.list_jobs_whole() if one != job)
    assert _runs(lab) == runs
    assert set(lab.list_states()) == set(runs.values())

    # An edited sweep adds what is new; another configuration under a name is refused.
    told = _submit(lab, "--gpus", "1", "--grid", "steps=1,2,3,4")
    assert "3 of them handed in before" in told
    assert {name: _runs(lab)[name] for name in runs} == runs
    assert "with another configuration" in _submit(lab, "--gpus", "2", "--grid", "steps=1", code=64)

    # A power cut has taken a run that waits, and what is recorded of the array: its task makes and records both.
    shutil.rmtree(lab.root / runs["steps=2"])
    _forget_job(lab, 2)
    lab.slurm.call("scancel", *blockers)
    for run_id in _runs(lab).values():
        wait_until((lab.root / run_id / "attempts/1/exit.json").exists, 150 * PATIENCE, what=f"{run_id} has run")
    assert json.loads((_array(lab, 2) / "slurm.json").read_text())["job_id"] == second
    _submit(lab, "--gpus", "1", "--grid", "steps=1,2,3,4")
    assert len(lab.list_jobs_whole()) == 3, "the cancelled one, its successor, the one cell that was added"
    lab("wait", *(f"lab:{run_id}" for run_id in _runs(lab).values()))
    assert lab("sweep", "check", "rates", "--on", "lab").returncode == 0
    for name, run_id in _runs(lab).items():
        output = (lab.root / run_id / "attempts/1/output.log").read_text()
        assert output == f"begin 0 1 start\ndone {name.split('=')[1]}\n"


@pytest.mark.timeout(240)
@pytest.mark.requirement("QUEUE-14", "SLM-02", "SLM-13")
def test_a_task_is_put_back_stopped_and_cancelled_for_itself(lab: Lab) -> None:
    _submit(lab, "--gpus", "1", "--grid", "steps=60,100000")
    runs, (job,) = _runs(lab), lab.list_jobs_whole()

    def wait_begun(name: str, attempt: int = 1) -> None:
        path = lab.root / runs[name] / f"attempts/{attempt}/output.log"
        wait_until(lambda: path.exists() and "begin" in path.read_text(), 150 * PATIENCE, what=f"{name} counts")

    for name in runs:
        wait_begun(name)
    lab.slurm.call("scancel", "--batch", "--signal=USR1", f"{job}_0")
    wait_begun("steps=60", 2)
    assert lab("wait", f"lab:{runs['steps=60']}").returncode == 0
    assert not (lab.root / runs["steps=100000"] / "attempts/2").exists()
    assert lab.slurm.show(f"{job}_1")["Restarts"] == "0"
    lab("stop", f"lab:{runs['steps=100000']}")
    counts = json.loads(lab("sweep", "check", "rates", "--on", "lab", "--json", code=1).stdout)
    assert (counts["counts"], counts["command"]) == ({"done": 1, "failed": 1}, "holdfast sweep retry rates --all")
    assert "nothing to try again" in lab("sweep", "retry", "rates", "--on", "lab", code=1).stdout

    # Cancelled before it ever began, by Slurm's own word: it is run again, too.
    blockers = _block(lab)
    lab("sweep", "retry", "rates", "--all", "--on", "lab")
    (second,) = (one for one in lab.list_jobs_whole() if one != job)
    assert lab.list_states()[runs["steps=100000"]].startswith("pending")
    lab.slurm.call("scancel", second)
    wait_until(lambda: lab.list_states()[runs["steps=100000"]] == "stopped", what="it is cancelled")
    lab.slurm.call("scancel", *blockers)
    lab("sweep", "retry", "rates", "--all", "--on", "lab")
    wait_begun("steps=100000", 2)
    lab("stop", f"lab:{runs['steps=100000']}")


@pytest.mark.timeout(240)
@pytest.mark.requirement("QUEUE-14")
def test_a_whole_sweep_is_cancelled_by_one_command_of_slurm_and_can_be_taken_back(lab: Lab) -> None:
    blockers = _block(lab)
    _submit(lab, "--gpus", "1", "--grid", "steps=1,2,3")
    (job,) = lab.list_jobs_whole()
    one = lab("queue", "cancel", "rates/steps=1", "--on", "lab", "--yes", code=66)
    assert "a job of it is stopped as a run" in one.stderr
    told = lab("queue", "cancel", "rates/", "--on", "lab", "--yes")
    assert "holdfast sweep retry" in told.stderr
    assert "3 cancelled" in lab("sweep", "show", "rates", "--on", "lab").stdout
    assert set(lab.list_states().values()) == {"stopped"}
    assert "0 of 3 done, 3 cancelled" in lab("wait", "lab:rates/", code=1).stdout
    lab.slurm.call("scancel", *blockers)
    lab("sweep", "retry", "rates", "--all", "--on", "lab")
    assert "3 of 3 done" in lab("wait", "lab:rates/").stdout
    assert len(lab.list_jobs_whole()) == 2
    assert lab.slurm.show(f"{job}_1").get("JobState") != "COMPLETED"


@pytest.mark.requirement("QUEUE-14")
def test_arrays_are_shown_and_what_slurm_refuses_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text("name,x,job.gpus\n" + "".join(f"c{n},{n},{1 + n % 2}\n" for n in range(6)))
    words = ("--csv", str(table), "--max-parallel", "4")
    shown = _submit(lab, *words, "--dry-run", command=("--", "true"))
    assert "array 1 of 2: 3 jobs, at most 2 at once" in shown
    assert "#SBATCH --array=0-2%2" in shown
    assert "#SBATCH --gres=gpu:2" in shown
    for option, word in (
        (("--priority", "3"), "nice=N"),
        (("--after", "other"), "dependency=afterok"),
        (("--not-before", "22:00"), "begin=TIME"),
        (("--max-parallel", "1"), "cannot keep to 1"),
    ):
        assert word in _submit(lab, "--csv", str(table), *option, command=("--", "true"), code=64)
    table.write_text(table.read_text() + "c6,6,9\n")
    refused = _submit(lab, "--csv", str(table), "--max-parallel", "4", command=("--", "true"), code=78)
    assert "node configuration is not available" in refused
    assert "Slurm was given 6 jobs of rates, and 1 are still to be handed in" in refused
    checked = json.loads(lab("sweep", "check", "rates", "--on", "lab", "--json", code=1).stdout)
    assert checked["counts"]["missing"] == 1
    table.write_text(table.read_text().replace("c6,6,9", "c6,6,4"))
    assert "6 of them handed in before" in _submit(lab, "--csv", str(table), command=("--", "true"))
    assert len(_runs(lab)) == 7
    lab("wait", *(f"lab:{run_id}" for run_id in _runs(lab).values()))
    assert lab("sweep", "check", "rates", "--on", "lab").returncode == 0


@pytest.mark.timeout(600)
@pytest.mark.requirement("QUEUE-14", "SLM-09")
def test_a_thousand_jobs_are_one_sbatch_and_a_look_at_them_is_one_squeue(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "squeue", "scontrol", "scancel", "sacct"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name} >> {calls}\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def count(*words: str, code: int = 0) -> tuple[str, dict[str, int]]:
        calls.write_text("")
        done = lab(*words, code=code)
        return done.stdout, dict(Counter(calls.read_text().split()))

    axis = ",".join(map(str, range(1000)))
    sweep = ("sweep", "submit", "--on", "lab", "--name", "rates", "--slurm", "begin=now+1hour", "--max-parallel", "8")
    words = (*sweep, "--grid", f"steps={axis}", *TRAIN)
    assert count(*words)[1] == {"scontrol": 1, "sbatch": 1, "squeue": 2}
    assert count(*words)[1].get("sbatch", 0) == 0, "the same again"
    told, seen = count("ls", "--on", "lab", "--json")
    assert seen == {"squeue": 1}
    rows = json.loads(told)["runs"]
    assert {row["condition"] for row in rows} == {"pending (BeginTime)"}
    assert {row["run_id"] for row in rows} == set(_runs(lab).values())
    assert len(rows) == 1000
    told, seen = count("sweep", "check", "rates", "--on", "lab", "--json", code=1)
    assert (json.loads(told)["counts"], seen) == ({"open": 1000}, {"squeue": 1})
    assert count("queue", "cancel", "rates/", "--on", "lab", "--yes")[1]["scancel"] == 1
    assert "1000 cancelled" in lab("sweep", "show", "rates", "--on", "lab").stdout


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-14")
def test_two_desks_that_hand_one_sweep_in_at_once_have_one_array(lab: Lab, tmp_path: Path) -> None:
    command = ("sweep", "submit", "--on", "lab", "--name", "rates", "--slurm", "begin=now+1hour", "--grid", "steps=1,2")
    desks = []
    for name in ("one", "two"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / name))
            desks.append(lab.begin(*command, *TRAIN))
    told = [desk.communicate() for desk in desks]
    assert [desk.returncode for desk in desks] == [0, 0], told
    assert sorted("(2 of them handed in before)" in out for out, _ in told) == [False, True]
    assert len(lab.list_jobs_whole()) == 1
    assert set(lab.list_states()) == set(_runs(lab).values())
    assert len(_runs(lab)) == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.requirement("QUEUE-14")
def test_a_job_may_have_several_nodes_and_is_restarted_by_itself(lab: Lab) -> None:
    _submit(
        lab, "--nodes", "2", "--grid", "x=1,3", command=("--", "sh", "-c", "hostname; test $HOLDFAST_ATTEMPT = {x}")
    )
    assert "1 of 2 done, 1 failed" in lab("wait", "lab:rates/", code=1).stdout
    lab("restart", "lab:rates/x=3", "--slurm", "time=7", "--nodes", "1")
    assert "1 of 2 done, 1 failed" in lab("wait", "lab:rates/", code=1).stdout
    # What the restart has changed holds for the attempts after it.
    lab("sweep", "retry", "rates", "--on", "lab")
    assert "2 of 2 done" in lab("wait", "lab:rates/").stdout
    last = lab.slurm.show(max(lab.list_jobs(), key=lambda job: int(job.split("_")[0])))
    assert (last["TimeLimit"], last["NumNodes"]) == ("00:07:00", "1")
    assert lab("sweep", "check", "rates", "--on", "lab").returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.requirement("QUEUE-14")
def test_a_site_of_small_arrays_gets_several_and_a_controller_that_is_away_none(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Slurm.started(options="MaxArraySize=3") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        words = ("--grid", "steps=1,2,3,4,5", "--max-parallel", "3")
        away = tmp_path / "away.conf"
        away.write_text(slurm.conf.read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #") + "MessageTimeout=2\n")
        monkeypatch.setenv("SLURM_CONF", str(away))
        told = _submit(lab, *words, code=69)
        assert "controller does not answer" in told
        assert "no job is there twice" in told
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        told = _submit(lab, *words)
        assert "3 jobs, at most 2 at once" in told
        assert "2 jobs, at most 1 at once" in told
        assert "5 of 5 done" in lab("wait", "lab:rates/").stdout
        assert len(lab.list_jobs_whole()) == 2
