"""What differs with how Slurm knows the processes of a job: by their parents, or by control groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import TRACKERS, on
from tests.slurm.lab import LabRun
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.slurm.lab import Lab

pytestmark = pytest.mark.cluster

HUNGRY = "data = []\nwhile True: data.append(bytearray(b'x' * (8 << 20)))\n"
LEAVER = """\
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
print("begin", flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
time.sleep(600)
"""
"""Leaves a process that has no parent of the job, and heeds no TERM."""


def _submit(lab: Lab, program: str, *words: str) -> LabRun:
    (lab.code / "job.py").write_text(program)
    done = lab("run", "--on", "lab", "-d", *words, "--", sys.executable, "job.py")
    return LabRun(lab, done.stdout.strip())


def _list_left(run: LabRun) -> list[str]:
    """The processes that carry the run's mark."""
    found, mark = [], os.fsencode(run.run_id)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and int(pid) != os.getpid():
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@on("cgroup")
@pytest.mark.requirement("SLM-08")
def test_a_job_beyond_the_memory_of_its_job_of_slurm_says_so(lab: Lab) -> None:
    run = _submit(lab, HUNGRY, "--limit-memory", "100MB")
    assert lab("wait", run.name, code=None).returncode == 137
    end = run.exit()
    assert (end["outcome"], end["failure_class"]) == ("failed", "out_of_memory"), end


@on(*TRACKERS)
@pytest.mark.requirement("SLM-11")
@pytest.mark.parametrize("how", ["scancel", "killed"])
def test_nothing_of_a_cancelled_run_is_left_on_its_node(lab: Lab, how: str) -> None:
    run = _submit(lab, LEAVER, "--grace", "1s")
    run.wait_begun()
    words = () if how == "scancel" else ("--signal=KILL", "--full")
    lab.slurm.call("scancel", *words, run.job)
    wait_until(lambda: not _list_left(run), what="nothing of it is left")
    assert lab("wait", run.name, code=None).returncode in ((130,) if how == "scancel" else (71, 137, 130))
