"""``holdfast restart`` of a run of Slurm, killed at any instant: the same command goes on, with one job."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(1200)]

ROUNDS = 20


@pytest.mark.requirement("SLM-01")
def test_a_restart_that_is_killed_anywhere_goes_on_with_one_job(lab: Lab) -> None:
    run = lab.submit(steps=3)
    lab("wait", run.name)
    # Typed at the login node, so that one process is all of it; the job waits for its hour.
    command = [sys.executable, "-m", "holdfast", "restart", run.run_id, "--slurm", "begin=now+1hour", "--env", "A=1"]
    environ = {**os.environ, "HOLDFAST_RUNS": str(lab.root)}

    def restart(kill_after_s: float | None = None) -> float:
        begun_s = time.monotonic()
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                one.kill()
            said = one.communicate()[1]
        assert kill_after_s is not None or one.returncode == 0, said
        return time.monotonic() - begun_s

    def waiting() -> list[str]:
        lines = lab.slurm.call("squeue", "--noheader", "--states=PD,R,CG", "--format=%i|%o").splitlines()
        return [line.split("|")[0] for line in lines if line.endswith(f"{run.run_id}/batch.sh")]

    whole_s = restart()
    seen = set()
    for _ in range(ROUNDS):
        for job in waiting():
            lab.slurm.call("scancel", job)
            lab.slurm.wait_for(job, "CANCELLED")
        restart(random.uniform(0.2, 1.1) * whole_s)
        seen.add(len(waiting()))
        restart()
        # An sbatch whose caller was killed may come later; its job begins nothing, and the next restart cancels it.
        wait_until(lambda: len(waiting()) == 1, what="one job of it waits")
        # One that was taken just before the kill is found by its script, and says who it is when it begins.
        assert run.job in ("None", *waiting())
        # What a killed one leaves is hidden, and nobody's after an hour.
        assert sorted(path.name for path in (run.path / "attempts").glob("[!.]*")) == ["1", "2"]
    print("jobs in the queue right after the kill:", sorted(seen))
    lab("stop", run.name)
