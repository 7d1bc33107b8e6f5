"""Runs that a real Slurm starts: from the order to the end on record, whatever ends them on the way."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import TRACKERS, Slurm, on
from tests.slurm.lab import Lab, LabRun
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster

AWKWARD = (
    *("$HOME", "`id`", ";reboot", "a b", "'", '"', "|", "\n", "--", "-n", "*", "\\", "$(x)", "", "a=b", "%j"),
    *("é\U0001f600", "\x01\x7f"),
)


@pytest.mark.requirement("SLM-01", "SLM-09", "SLM-12")
def test_SLM_01_a_run_becomes_one_job_whose_script_slurm_accepts(lab: Lab, tmp_path: Path) -> None:
    shown = lab("run", "--on", "lab", "--dry-run", "--gpus", "2", "--", "true").stdout
    script = tmp_path / "shown.sh"
    script.write_text(shown[shown.index("#!/bin/sh") : shown.index("\nchecks\n")])
    script.write_text(script.read_text().replace(str(lab.root), str(tmp_path)))
    lab.slurm.call("sbatch", "--test-only", f"--chdir={tmp_path}", str(script))
    assert "#SBATCH --gres=gpu:2" in script.read_text()
    assert not any(word in script.read_text() for word in ("nohup", "tmux", "setsid"))

    run = lab.submit("--gpus", "2", "--slurm", "time=10", steps=3)
    assert lab("wait", run.name).returncode == 0
    assert run.output() == "begin 0 1 start\ndone 3\n"
    assert lab("logs", run.name).stdout == run.output()
    (row,) = json.loads(lab("ls", "--on", "lab", "--json").stdout)["runs"]
    assert row["cards"] == "0,1"
    assert lab.slurm.show(run.job)["TimeLimit"] == "00:10:00"
    assert lab.slurm.wait_for(run.job, "COMPLETED")["ExitCode"] == "0:0"
    assert lab.list_jobs() == [run.job]


@pytest.mark.requirement("RAIL-13", "B-16")
def test_RAIL_13_words_of_any_kind_reach_the_job(lab: Lab) -> None:
    draw = random.Random(13)
    words = ["".join(draw.choices(AWKWARD, k=draw.randint(0, 4))) for _ in range(200 * 5)]
    tell = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = lab("run", "--on", "lab", "-d", "--", sys.executable, "-c", tell, *words)
    run = LabRun(lab, done.stdout.strip())
    assert lab("wait", run.name).returncode == 0
    assert json.loads(run.output()) == words


@pytest.mark.requirement("SLM-05", "B-37")
def test_place_probe_tells_what_slurm_is_and_has(lab: Lab) -> None:
    facts = json.loads(lab("place", "probe", "lab", "--json").stdout)["facts"]["slurm"]
    assert (facts["version"], facts["cluster"], facts["kill_wait_s"]) == ("22.05.8", "hf", 5.0)
    assert (facts["cards"], facts["nodes"], facts["accounting"], facts["requeue"]) == ({"": 4}, 2, False, True)
    low, high = facts["partitions"]
    assert (low["name"], low["default"], low["max_time_s"], low["preempt_mode"]) == ("low", True, 3600.0, "REQUEUE")
    assert (high["name"], high["preempt_mode"]) == ("high", "OFF")
    shown = lab("place", "show", "lab").stdout
    assert "KILL comes 5 s after TERM, which is all that a preemption gives" in shown
    assert "low (default): at most 1h00m, 2 nodes, preempted jobs: requeue" in shown


@on(*TRACKERS)
@pytest.mark.requirement("SLM-02", "SLM-03", "SLM-16")
def test_SLM_03_a_warned_run_saves_is_put_back_and_goes_on_at_the_saved_step(lab: Lab) -> None:
    run = lab.submit(steps=60)
    run.wait_begun()
    with lab.begin("attach", run.name) as following:
        assert following.stdout is not None
        begun = following.stdout.readline()
        lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
        words = wait_until(lambda: re.findall(r"saved (\d+)\n", run.output()), what="it has saved")
        saved = int(words[-1])
        told, remarks = following.communicate()
    assert (following.returncode, begun + told) == (0, run.output(1) + run.output(2))
    assert "waiting for attempt 2" in remarks
    assert "holdfast restart" not in remarks
    assert run.exit(1)["outcome"] == "preempted"
    assert "USR1" in run.exit(1)["evidence"]
    assert run.output(2) == f"begin {saved} 2 requeue\ndone 60\n"
    assert lab.slurm.show(run.job)["Restarts"] == "1"
    assert "attempt 1" in run.log()
    assert "attempt 2" in run.log()


@pytest.mark.timeout(240)
@pytest.mark.requirement("SLM-02", "SLM-03", "B-34", "B-35")
def test_SLM_02_the_warning_ahead_of_the_time_limit_is_heard_while_the_job_runs(lab: Lab) -> None:
    run = lab.submit("--slurm", "time=1", "--slurm", "signal=B:USR1@30")
    run.wait_begun(2)
    assert run.exit(1)["outcome"] == "preempted"
    assert "USR1" in run.exit(1)["evidence"]
    # The warning may come up to a minute early: before the first step.
    saved = (run.output(1).split() or ["0"])[-1]
    assert run.output(2).startswith(f"begin {saved} 2 requeue")
    lab("stop", run.name)


@on(*TRACKERS)
@pytest.mark.requirement("SLM-08")
def test_a_preempted_run_says_so_and_goes_on(lab: Lab) -> None:
    run = lab.submit("--gpus", "4", "--slurm", "nodelist=n1", steps=60)
    run.wait_begun()
    lab.slurm.sbatch("--partition=high", "--gres=gpu:4", "--nodelist=n1", "--wrap", "true")
    wait_until((run.path / "attempts/1/exit.json").exists, what="attempt 1 has ended")
    assert run.exit(1)["outcome"] == "preempted"
    assert run.state.startswith(("pending", "preflight", "starting", "running", "succeeded"))
    assert lab("wait", run.name).returncode == 0
    assert run.output(2).startswith(f"begin {run.output(1).split()[-1]} 2 requeue")


@on(*TRACKERS)
@pytest.mark.requirement("SLM-11", "SLM-13")
def test_SLM_11_scancel_has_the_job_save_and_is_a_stop_that_satisfies_no_dependency(lab: Lab) -> None:
    run = lab.submit()
    run.wait_begun()
    after = lab.slurm.sbatch(f"--dependency=afterok:{run.job}", "--kill-on-invalid-dep=yes", "--wrap", "true")
    lab.slurm.call("scancel", run.job)
    assert lab("wait", run.name, code=None).returncode == 130
    assert run.output().split()[-2] == "saved"
    assert (run.exit()["outcome"], run.state) == ("stopped", "stopped")
    lab.slurm.wait_for(after, "CANCELLED")


SAVES_SLOWLY = """\
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("begin", flush=True)
while not asked:
    time.sleep(0.05)
print("saving", flush=True)
while not os.path.exists(os.path.join(os.environ["HOLDFAST_RUN_DIR"], "enough")):
    time.sleep(0.05)
    with open(os.path.join(os.environ["HOLDFAST_CHECKPOINT_DIR"], "part"), "a") as part:
        part.write("x")
sys.exit(143)
"""


@on(*TRACKERS)
@pytest.mark.requirement("SLM-11")
def test_SLM_11_scancel_while_a_warned_run_saves_is_a_stop_and_nothing_is_put_back(lab: Lab) -> None:
    (lab.code / "train.py").write_text(SAVES_SLOWLY)
    run = lab.submit()
    run.wait_begun()
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    wait_until(lambda: "saving" in run.output(), what="it saves")
    lab.slurm.call("scancel", run.job)
    events = run.path / "attempts/1/events.jsonl"
    wait_until(lambda: events.read_text().count('"stop_requested"') == 2, what="scancel is heard, too")
    run.finish()
    assert lab("wait", run.name, code=None).returncode == 130
    assert (run.exit()["outcome"], run.exit()["exit_code"], run.state) == ("stopped", 130, "stopped")
    assert "back into the queue" not in run.log()
    assert lab.slurm.wait_for(run.job, "CANCELLED")["Restarts"] == "0"


@pytest.mark.requirement("SLM-11")
def test_SLM_11_a_save_that_outlasts_the_scancel_of_a_warned_run_is_ended_by_us_and_on_record(lab: Lab) -> None:
    (lab.code / "train.py").write_text(SAVES_SLOWLY)
    run = lab.submit("--slurm", "signal=B:USR1@200")
    run.wait_begun()
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    wait_until(lambda: "saving" in run.output(), what="it saves")
    lab.slurm.call("scancel", run.job)
    wait_until((run.path / "attempts/1/exit.json").exists, what="its end is on record")
    assert (run.exit()["outcome"], run.exit()["exit_code"], run.exit()["status"]["signal"]) == ("stopped", 130, 9)


@pytest.mark.timeout(240)
@pytest.mark.requirement("SLM-03")
def test_a_run_that_saves_nothing_is_put_back_twice_and_goes_on_when_somebody_asks_for_it(lab: Lab) -> None:
    code = SAVES_SLOWLY.replace('print("saving", flush=True)', "sys.exit(143)")
    (lab.code / "train.py").write_text(code)
    run = lab.submit()
    for attempt in (1, 2, 3):
        run.wait_begun(attempt)
        lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
        wait_until((run.path / f"attempts/{attempt}/exit.json").exists, what=f"attempt {attempt} has ended")
    assert lab("wait", run.name, code=143).returncode == 143
    words = "3 attempts in a row were warned and got no further"
    assert words in run.log()
    assert words in lab("show", run.name).stdout
    lab("restart", run.name)
    run.wait_begun(4)
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    run.wait_begun(5)
    lab("stop", run.name)

    never = lab.submit("--slurm", "no-requeue")
    never.wait_begun()
    assert lab.slurm.show(never.job)["Requeue"] == "0"
    lab.slurm.call("scancel", "--batch", "--signal=USR1", never.job)
    assert lab("wait", never.name, code=143).returncode == 143
    assert "no other attempt: Slurm's job was not put back" in lab("show", never.name).stdout


@on(*TRACKERS)
@pytest.mark.requirement("SLM-11")
def test_stop_reaches_a_run_on_its_node_and_one_that_waits_leaves_the_queue(lab: Lab) -> None:
    run = lab.submit("--gpus", "4", "--slurm", "nodelist=n1")
    waiting = lab.submit("--gpus", "4", "--slurm", "nodelist=n1")
    run.wait_begun()
    wait_until(lambda: waiting.state == "pending (Resources)", what="it waits for cards")
    assert "PENDING (Resources)" in lab("show", waiting.name).stdout
    lab("stop", waiting.name)
    assert (waiting.state, lab.slurm.show(waiting.job)["JobState"]) == ("stopped", "CANCELLED")
    assert not waiting.output()
    lab("stop", run.name)
    assert run.output().split()[-2] == "saved"
    assert run.state == "stopped"
    assert lab.slurm.wait_for(run.job, "FAILED")["ExitCode"] == "130:0"
    assert "slurm starts its supervisor" in lab("adopt", run.name, code=64).stderr


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-08")
def test_a_lost_node_has_the_run_begun_again_elsewhere_and_says_what_proves_it(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Slurm.started() as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        run = lab.submit()
        run.wait_begun()
        slurm.stop_node(node := slurm.show(run.job)["NodeList"])
        assert run.state == "running"
        slurm.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        run.wait_begun(2)
        assert run.exit(1)["outcome"] == "lost"
        assert f"Slurm has ended job {run.job} and started it again (restart 1)" in run.exit(1)["evidence"]
        lab("stop", run.name)


@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-08", "SLM-09", "B-68")
def test_a_run_without_a_record_that_slurm_does_not_know_is_lost_with_evidence(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Slurm.started(min_job_age_s=2) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        run = lab.submit()
        run.wait_begun()
        assert run.state == "running"
        run.kill_supervised()
        wait_until(lambda: not slurm.show(run.job), LONG_S, what="Slurm has forgotten the job")
        assert run.state == "lost"
        done = lab("wait", run.name, code=71)
        assert "Slurm does not know job" in done.stderr
        lab("stop", run.name)
        assert run.exit()["outcome"] == "lost"
        assert f"Slurm does not know job {run.job} any more" in run.exit()["evidence"]


@pytest.mark.requirement("SLM-01")
def test_what_slurm_refuses_leaves_no_run_and_says_what_to_do(lab: Lab) -> None:
    for said, words, code in (
        ("partition=nope", "Invalid partition name", 78),
        ("gres=gpu:9", "node configuration is not available", 78),
        ("time=120", "the time limit 2h00m is beyond that of partition low, 1h00m", 78),
        ("signal=USR1@300", "signal=USR1@300 is no warning", 64),
        ("array=1-3", "--array is holdfast's own", 64),
        ("not an option=1", "no option of sbatch", 64),
    ):
        done = lab("run", "--on", "lab", "-d", "--slurm", said, "--", "true", code=code)
        assert words in done.stderr, said
        assert done.stderr.count("\n  ") >= 1, "it says what to do"
    for pair in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        done = lab("run", "--on", "lab", "-d", "--slurm", pair[0], "--slurm", pair[1], "--", "true", code=64)
        assert "requeue and no-requeue contradict each other; leave one of them out" in done.stderr
    assert set(lab.list_states().values()) == {"refused"}
    assert [path.name for path in lab.root.iterdir() if not path.name.startswith(".")] == []
    assert lab.list_jobs() == []
    here = lab("run", "--slurm", "partition=low", "--", "true", code=64)
    assert "--on PLACE" in here.stderr


@pytest.mark.timeout(180)
def test_an_order_while_the_controller_is_away_goes_on_with_the_same_run(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = tmp_path / "away.conf"
    text = lab.slurm.conf.read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #")
    away.write_text(text + "MessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(away))
    command = ("run", "--on", "lab", "-d", "--", "true")
    done = lab(*command, code=69)
    assert "controller does not answer" in done.stderr
    assert "the same command goes on with it" in done.stderr
    monkeypatch.setenv("SLURM_CONF", str(lab.slurm.conf))
    again = lab(*command)
    (run_id,) = lab.list_states()
    assert again.stdout.strip() == f"lab:{run_id}"
    assert lab("wait", f"lab:{run_id}").returncode == 0
    assert len(lab.list_jobs()) == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.requirement("SLM-11")
def test_a_suspended_job_is_ended_by_stop_now_and_one_put_back_by_hand_is_taken_out(lab: Lab) -> None:
    run = lab.submit()
    run.wait_begun()
    lab.slurm.call("scontrol", "suspend", run.job)
    wait_until(lambda: run.state == "suspended", what="Slurm says so")
    told = lab("stop", run.name, code=124).stdout
    assert "is still suspended: " in told
    assert "nothing of it hears a stop before" in told
    assert "stopped (exit 130)" in lab("stop", "--now", run.name).stdout
    assert run.exit()["outcome"] == "stopped"

    failed = LabRun(lab, lab("run", "--on", "lab", "-d", "--", "false").stdout.strip())
    lab("wait", failed.name, code=1)
    lab.slurm.wait_for(failed.job, "FAILED")
    lab.slurm.call("scontrol", "requeuehold", failed.job)
    wait_until(lambda: failed.state.startswith("pending"), what="it waits to be begun again")
    assert f"job {failed.job}, which was to begin it again, is taken out" in lab("stop", failed.name).stdout
    assert failed.state == "failed"
