"""Preemptions that Slurm tells of ahead: a partition with GraceTime, and a site that has the warning sent for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

KILL_WAIT_S = 2
SAVES_LONG = """\
import os, signal, sys, time
saved = os.path.join(os.environ["HOLDFAST_CHECKPOINT_DIR"], "step.txt")
step = int(open(saved).read()) if os.path.exists(saved) else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("begin", step, os.environ["HOLDFAST_ATTEMPT"], os.environ["HOLDFAST_REASON"], flush=True)
while not os.path.exists(os.path.join(os.environ["HOLDFAST_RUN_DIR"], "enough")):
    time.sleep(0.05)
    step += 1
    if asked:
        for part in range(3 * int(sys.argv[1])):
            time.sleep(1)
        with open(saved + ".part", "w") as file:
            file.write(str(step))
        os.replace(saved + ".part", saved)
        print("saved", step, flush=True)
        os._exit(143)
print("done", step, flush=True)
"""
"""Its save takes three times as many seconds as it is told."""


@pytest.mark.requirement("SLM-03", "SLM-05", "SLM-08")
def test_a_preemption_that_is_warned_of_leaves_the_grace_time_of_its_partition_for_a_save(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "SlurmctldParameters=preempt_send_user_signal"
    with Slurm.started(kill_wait_s=KILL_WAIT_S, grace_s=120, options=told) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
        lab = Lab(slurm, tmp_path)
        shown = lab("place", "show", "lab").stdout
        assert "2 s after TERM; a preemption is warned of" in shown
        assert "GraceTime 2m00s, and a preempted job is warned at its beginning" in shown
        (lab.code / "train.py").write_text(SAVES_LONG)
        run = lab.submit("--gpus", "4", "--slurm", "nodelist=n1", "--slurm", "partition=low", steps=KILL_WAIT_S)
        run.wait_begun()
        high = slurm.sbatch("--partition=high", "--gres=gpu:4", "--nodelist=n1", "--wrap", "true")
        slurm.wait_for(high, "COMPLETED")
        run.wait_begun(2)
        end, words = run.exit(1), run.output(1).split()
        assert (end["outcome"], end["exit_code"], end["failure_class"]) == ("preempted", 143, "preempted")
        assert (end["status"]["code"], end["request"]["warned"], words[-2]) == (143, True, "saved")
        assert "SIGUSR1 to the supervisor (Slurm gives its nodes to another job)" in end["evidence"]
        assert run.output(2).startswith(f"begin {words[-1]} 2 requeue\n")
        assert slurm.show(run.job)["Restarts"] == "1"
        run.finish()
        assert lab("wait", run.name).returncode == 0
