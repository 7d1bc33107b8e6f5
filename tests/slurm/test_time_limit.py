"""Jobs that heed no warning, to the end of their walltime: a minute is the least that Slurm takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab, LabRun
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

IGNORES = """\
import os, signal, time
for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
saved = os.path.join(os.environ["HOLDFAST_CHECKPOINT_DIR"], "step.txt")
step = int(open(saved).read()) if os.path.exists(saved) else 0
print("begin", step, os.environ["HOLDFAST_ATTEMPT"], os.environ["HOLDFAST_REASON"], flush=True)
while not os.path.exists(os.path.join(os.environ["HOLDFAST_RUN_DIR"], "enough")):
    time.sleep(0.1)
    step += 1
    if step % 10 == 0:
        with open(saved + ".part", "w") as file:
            file.write(str(step))
        os.replace(saved + ".part", saved)
        print("saved", step, flush=True)
print("done", step, flush=True)
"""
"""Counts and saves as if nobody had ever asked it to leave."""
LIMIT = ("--slurm", "time=1", "--slurm", "signal=B:USR1@20")
KILLED = "preemption by SIGUSR1 to the supervisor; the job ended with signal 9"


def _find_saved(run: LabRun) -> str:
    """The last step that its first attempt saved."""
    return [line.split()[1] for line in run.output(1).splitlines() if line.startswith("saved ")][-1]


def _judge_killed(run: LabRun) -> None:
    """It was asked to leave, did not, and was killed while there was time to put that on record."""
    end = run.exit(1)
    assert (end["outcome"], end["exit_code"], end["failure_class"]) == ("preempted", 143, "preempted")
    assert (end["evidence"], end["request"]["warned"]) == (KILLED, True)


@pytest.mark.requirement("SLM-03", "SLM-08")
def test_SLM_08_what_heeds_no_warning_goes_on_where_it_may_and_else_reached_its_time_limit(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node that is not there any more is one for so long that its jobs see their time limit.
    with Slurm.started(options="OverTimeLimit=0\nSlurmdTimeout=600") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        (lab.code / "train.py").write_text(IGNORES)
        late = lab.submit("--slurm", "time=10", "--slurm", "signal=B:USR1@20", "--slurm", "nodelist=n1")
        heedless = lab.submit(*LIMIT, "--slurm", "nodelist=n1")
        last = lab.submit(*LIMIT, "--slurm", "no-requeue", "--slurm", "nodelist=n1")
        silent = lab.submit(*LIMIT, "--slurm", "nodelist=n2")
        for run in (late, heedless, last, silent):
            wait_until(lambda one=run: "saved" in one.output(), LONG_S, what=f"{run.run_id} saves")  # type: ignore[misc]
        slurm.stop_node("n2")

        # Killed before Slurm would, put back, and begun again at what it had saved by itself.
        heedless.wait_begun(2)
        _judge_killed(heedless)
        assert heedless.output(2).startswith(f"begin {_find_saved(heedless)} 2 requeue\n")
        assert slurm.show(heedless.job)["Restarts"] == "1"
        assert f"Time limit exhausted for JobId={heedless.job}\n" not in (slurm.root / "slurmctld.log").read_text()
        heedless.finish()

        # The same where nothing is put back: over, and it says why and what goes on with it.
        assert lab("wait", last.name, code=143).returncode == 143
        _judge_killed(last)
        assert slurm.wait_for(last.job, "FAILED")["ExitCode"] == "143:0"
        assert f"job {last.job} was not put back into the queue" in last.log()
        shown = lab("show", last.name).stdout
        assert "no other attempt: Slurm's job was not put back" in shown
        assert f"holdfast restart {last.name}" in shown

        # A limit that has passed already: warning and TERM come at once, with KillWait to leave.
        slurm.call("scontrol", "update", f"JobId={late.job}", "TimeLimit=1")
        late.wait_begun(2)
        assert f"Time limit exhausted for JobId={late.job}\n" in (slurm.root / "slurmctld.log").read_text()
        _judge_killed(late)
        assert late.output(2).startswith(f"begin {_find_saved(late)} 2 requeue\n")
        late.finish()

        # Nobody was left to hear or record anything: then it is what Slurm says of the job.
        wait_until(lambda: slurm.show(silent.job)["Reason"] == "TimeLimit", LONG_S, what="its time is over")
        assert silent.state == "running", "as long as Slurm has not ended it"
        slurm.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        slurm.wait_for(silent.job, "TIMEOUT")
        assert silent.state == "timed_out"
        assert "TIMEOUT (TimeLimit); it left no record of its end" in lab("wait", silent.name, code=124).stderr
        lab("reconcile", "--on", "lab")
        end = silent.exit(1)
        assert (end["outcome"], end["exit_code"], end["failure_class"]) == ("timed_out", 124, "timed_out")
        assert f"Slurm: job {silent.job} reached its time limit: TIMEOUT (TimeLimit)" in end["evidence"]
        assert slurm.show(silent.job)["Restarts"] == "0", "a time limit that nobody was warned of is not put back"
        silent.finish()
        lab("restart", silent.name, "--slurm", "nodelist=n1")
        for run in (heedless, late, silent):
            assert lab("wait", run.name).returncode == 0
        assert silent.output(2).startswith(f"begin {_find_saved(silent)} 2 restart\n")
