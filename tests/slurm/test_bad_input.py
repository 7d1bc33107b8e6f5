"""What stands in the way of a run at a Slurm: each is a clear refusal, or a pause with the command that goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import NODES, Slurm
from tests.slurm.lab import Lab, LabRun
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CLOSED = "PartitionName=closed Nodes=ALL AllowAccounts=others\n"
CALM = "MessageTimeout=2\n"
"""How long Slurm's commands ask a controller that is away."""
SMALL = "24m"


@contextlib.contextmanager
def _small_disk(directory: Path) -> Iterator[Path]:
    """A file system with little room, for every node that is started afterwards."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _fill(directory: Path) -> Path:
    """Leave no room in it; what is to be removed again."""
    file = directory / "fill"
    with contextlib.suppress(OSError), open(file, "wb", buffering=0) as out:
        while True:
            out.write(bytes(4096))
    return file


@pytest.fixture
def own_slurm(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Slurm, Path]]:
    """A Slurm of the test's own, and a directory with little room that its nodes have too."""
    if shutil.which("slurmctld") is None or os.geteuid() != 0:
        pytest.skip("not installed, or not root")
    with _small_disk(tmp_path / "small") as small, Slurm.started(options=CLOSED + CALM) as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
        yield slurm, small


def _wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Path:
    """Put a command of this text before the one of this name."""
    file = tmp_path / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
    return file


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.requirement("SLM-01")
def test_an_account_that_the_partition_does_not_take_is_refused_at_once(
    own_slurm: tuple[Slurm, Path], tmp_path: Path
) -> None:
    lab = Lab(own_slurm[0], tmp_path)
    done = lab("run", "--on", "lab", "-d", "--slurm", "partition=closed", "--", "true", code=78)
    assert "would never start it" in done.stderr
    assert "account=NAME" in done.stderr
    assert [lab.slurm.show(job)["JobState"] for job in lab.list_jobs()] == ["CANCELLED"]
    assert set(lab.list_states().values()) == {"refused"}


def test_a_command_of_slurm_that_is_killed_has_refused_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("sbatch")
    wrapper = _wrap(tmp_path, monkeypatch, "sbatch", f'{real} "$@" > /dev/null\nkill -KILL $$')
    command = ("run", "--on", "lab", "-d", "--", "true")
    done = lab(*command, code=69)
    assert "sbatch was killed by SIGKILL" in done.stderr
    assert "the same command goes on with it" in done.stderr
    wrapper.unlink()
    name = lab(*command).stdout.strip()
    assert lab("wait", name).returncode == 0
    assert len(lab.list_jobs()) == 1


def test_a_requeue_that_the_site_forbids_is_said_and_the_run_can_be_restarted(lab: Lab) -> None:
    run = lab.submit(steps=60)
    run.wait_begun()
    lab.slurm.call("scontrol", "update", f"JobId={run.job}", "Requeue=0")
    lab.slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    assert lab("wait", run.name, code=None).returncode == 143
    assert run.exit()["outcome"] == "preempted"
    wait_until(lambda: "was not put back into the queue" in run.log(), what="its log says so")
    saved = run.output().split()[-1]
    lab("restart", run.name)
    run.wait_begun(2)
    assert run.output(2).startswith(f"begin {saved} 2")
    lab("stop", run.name)


# ------------------------------------------------------------------------------------------------------ nodes and disks


def test_a_runs_root_that_the_nodes_do_not_see_is_named_as_the_likely_reason(
    own_slurm: tuple[Slurm, Path], tmp_path: Path
) -> None:
    slurm, _ = own_slurm
    lab = Lab(slurm, tmp_path)
    lab.root.mkdir(exist_ok=True)
    for node in NODES:
        slurm.call_in_node(node, "mount", "-t", "tmpfs", "none", str(lab.root))
    run = lab.submit()
    slurm.wait_for(run.job, "FAILED")
    said = lab("wait", run.name, code=71).stderr
    assert "JobLaunchFailure" in said
    assert "every node must see it" in lab("show", run.name).stdout
    lab("stop", run.name, code=None)
    assert run.state in {"stopped", "lost"}


def test_a_full_disk_stops_an_order_and_a_warned_run_and_both_go_on_when_there_is_room(
    own_slurm: tuple[Slurm, Path], tmp_path: Path
) -> None:
    slurm, small = own_slurm
    lab = Lab(slurm, tmp_path)
    lab("place", "add", "lab", "--kind", "slurm", "--root", str(small / "runs"), "--replace")
    lab.root = small / "runs"
    lab("place", "probe", "lab")
    fill = _fill(small)
    command = ("run", "--on", "lab", "-d", "--disk-min-free", "1MB", "--", "python3", "train.py", "200")
    done = lab(*command, code=74)
    assert "No space left on device" in done.stderr
    fill.unlink()
    run = LabRun(lab, lab(*command).stdout.strip())
    run.wait_begun()

    # The warned attempt ends on record; the next one cannot be made, and says so once.
    (run.path / "step.txt").write_text("0")
    fill = _fill(small)
    slurm.call("scancel", "--batch", "--signal=USR1", run.job)
    slurm.wait_for(run.job, "FAILED")
    assert slurm.show(run.job)["Restarts"] == "1"
    fill.unlink()
    assert lab("wait", run.name, code=None).returncode == 143
    lab("restart", run.name)
    run.wait_begun(2)
    lab("stop", run.name)


# ------------------------------------------------------------------------------------------------ Slurm does not answer


def test_a_controller_that_is_away_stops_nobody_from_looking_and_stopping(
    own_slurm: tuple[Slurm, Path], tmp_path: Path
) -> None:
    slurm, _ = own_slurm
    lab = Lab(slurm, tmp_path)
    run, warned = lab.submit("--gpus", "4", "--slurm", "nodelist=n1"), lab.submit("--slurm", "nodelist=n2")
    run.wait_begun()
    warned.wait_begun()
    waits = lab.submit("--gpus", "4", "--slurm", "nodelist=n1")
    state_file = slurm.root / "state" / "job_state"
    wait_until(lambda: waits.run_id[-4:].encode() in state_file.read_bytes(), what="the controller has saved its state")
    slurm.stop_controller()

    assert run.state == "running"
    assert "controller does not answer" in lab("show", waits.name).stdout
    assert "controller does not answer" in lab("stop", waits.name, code=69).stderr
    lab("stop", run.name, "--wait", "200s")
    assert run.exit()["outcome"] == "stopped"
    done = lab("run", "--on", "lab", "-d", "--", "true", code=69)
    assert "the same command goes on with it" in done.stderr
    warned.kill_batch("USR1")
    wait_until((warned.path / "attempts/1/exit.json").exists, what="the warned attempt is on record")

    slurm.start_controller()
    warned.wait_begun(2)
    assert warned.output(2).split()[1] == warned.output(1).split()[-1], "it goes on at the saved step"
    assert lab("run", "--on", "lab", "-d", "--", "true").returncode == 0
    lab("stop", waits.name)
    assert waits.state == "stopped"
    lab("stop", warned.name)


def test_a_squeue_that_hangs_hides_no_run_and_costs_a_bounded_time(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lab.submit()
    run.wait_begun()
    wrapper = _wrap(tmp_path, monkeypatch, "squeue", "exec sleep 1000")
    assert run.state == "running"
    assert "squeue gave no answer within 10 s" in lab("show", run.name).stdout
    lab("stop", run.name)
    assert run.exit()["outcome"] == "stopped"
    wrapper.unlink()


# ------------------------------------------------------------------------------------------------------ somebody edits


def test_what_is_edited_while_a_run_waits_changes_nothing_of_it(lab: Lab) -> None:
    blockers = [lab.slurm.sbatch("--gres=gpu:4", f"--nodelist={node}", "--wrap", "sleep 600") for node in NODES]
    for blocker in blockers:
        lab.slurm.wait_for(blocker, "RUNNING")
    run = lab.submit("--gpus", "1", steps=3)
    (run.path / "batch.sh").write_text("exit 9\n")
    (lab.code / "train.py").write_text("raise SystemExit(9)\n")
    lab.slurm.call("scancel", *blockers)
    assert lab("wait", run.name).returncode == 0
    assert run.output() == "begin 0 1 start\ndone 3\n"
    assert json.loads((run.path / "slurm.json").read_text())["job_id"] == run.job
