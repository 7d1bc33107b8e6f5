"""A Slurm that keeps accounts: what it has forgotten its slurmdbd tells, of a run that left no record, too."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.core.slurm.texts import read_size
from tests.slurm.cluster import ACCOUNTING_PROGRAMS, Slurm
from tests.slurm.lab import Lab, LabRun
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

HELD = 15 * (8 << 20)
HUNGRY = """\
import os, time
data = [bytearray(b"x" * (8 << 20)) for _ in range(15)]
print("begin", flush=True)
while not os.path.exists(os.path.join(os.environ["HOLDFAST_RUN_DIR"], "enough")):
    time.sleep(0.05)
while True:
    data.append(bytearray(b"x" * (8 << 20)))
"""


def _read_peak(slurm: Slurm, job: str) -> int:
    """The most memory that the batch step of a job was seen with."""
    said = slurm.call("sstat", "--noheader", "--parsable2", "--format=MaxRSS", f"{job}.batch", code=None)
    return read_size(said.strip()) or 0


@pytest.mark.requirement("SLM-08", "SLM-10")
def test_what_slurm_has_forgotten_is_told_by_its_accounts(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing := [name for name in ACCOUNTING_PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if not os.path.isdir("/sys/fs/cgroup/freezer"):
        pytest.skip("control groups of version 1 are not mounted here")
    with Slurm.started(min_job_age_s=2, tracker="cgroup", accounting=True) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        assert json.loads(lab("place", "probe", "lab", "--json").stdout)["facts"]["slurm"]["accounting"]
        assert "sacct answers" in lab("place", "show", "lab").stdout

        cancelled = lab.submit("--slurm", "begin=now+3600")
        slurm.call("scancel", cancelled.job)
        killed = lab.submit()
        killed.wait_begun()
        killed.kill_supervised()
        (lab.code / "hungry.py").write_text(HUNGRY)
        eat = f"{sys.executable} hungry.py; echo eaten; sleep 600"
        words = ("run", "--on", "lab", "-d", "--slurm", "mem=200M", "--", "sh", "-c", eat)
        hungry = LabRun(lab, lab(*words).stdout.strip())
        hungry.wait_begun()
        wait_until(lambda: _read_peak(slurm, hungry.job) >= HELD, LONG_S, what="a sample of its memory")
        hungry.finish()
        wait_until(lambda: "eaten" in hungry.output(), LONG_S, what="the kernel has ended what takes more than it has")
        hungry.kill_supervised()
        for run in (cancelled, killed, hungry):
            wait_until(lambda one=run: not slurm.show(one.job), LONG_S, what=f"job {run.job} is forgotten")  # type: ignore[misc]

        for run, state, said in (
            (cancelled, "stopped", "was cancelled: CANCELLED by 0, ExitCode 0:0"),
            (killed, "lost", "failed: FAILED, ExitCode 0:9"),
            (hungry, "failed", "used more memory than it was given: OUT_OF_MEMORY, ExitCode 0:125, MaxRSS "),
        ):
            shown = lab("show", run.name).stdout
            assert (run.state, f"Slurm's accounts: job {run.job} {said}" in shown) == (state, True), shown
        assert "were in use (MaxRSS, which is sampled: the peak was higher); ask for --limit-memory" in shown
        lab("reconcile", "--on", "lab")
        end = hungry.exit()
        assert (end["outcome"], end["exit_code"], end["failure_class"]) == ("failed", 137, "out_of_memory")
        found = re.search(r"OUT_OF_MEMORY, ExitCode 0:125, MaxRSS (\S+ MiB)$", end["evidence"])
        assert found, end["evidence"]
        assert HELD <= (read_size(found[1].replace(" MiB", "M")) or 0) <= 200 << 20
        assert killed.exit()["outcome"] == "lost"
        assert cancelled.exit()["outcome"] == "stopped"
