"""An order to a Slurm is killed at every point of its way: the desk, the entry on the login node, the controller.

The process dies before each of its calls that changes something (`tests.agent.killing`); every step is taken by
``make soak``. Typed again there is one run, one job of Slurm that begins it, and the job has run once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.detached import ENTRY
from holdfast.core.job.job_hash import hash_job
from holdfast.desk.orders.journal import Step, list_orders, read_journal
from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.order import Order
from tests.agent.killing import FRONT_NAME, build_library
from tests.budget import examples
from tests.slurm.cluster import Slurm
from tests.slurm.lab import Lab
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.cluster

FEW = 3
JOB = ("sh", "-c", f': {FRONT_NAME}; echo x >> "$HOLDFAST_RUN_DIR/ran"')


def _list_runs(root: Path) -> set[str]:
    return {name for name in os.listdir(root) if not name.startswith(".")} if root.is_dir() else set()


def _judge(root: Path, run_id: str) -> list[str]:
    """What is wrong with a run, once it has ended."""
    run_dir = root / run_id
    wait_until((run_dir / "attempts/1/exit.json").exists, 300 * PATIENCE, what=f"{run_id} has ended")
    logs = [path.name for path in run_dir.glob("slurm-*.log") if "is the run of job" not in path.read_text()]
    job = json.loads((run_dir / "slurm.json").read_text())["job_id"]
    wrong = [] if logs == [f"slurm-{job}.log"] else [f"{run_id}: {job=}, begun by {logs}"]
    ran = (run_dir / "ran").read_text().count("x")
    return wrong if ran == 1 else [*wrong, f"{run_id}: it ran {ran} times"]


def _kill_everywhere(
    tmp_path: Path, most: int, root: Path, submit: Callable[[int, Mapping[str, str]], str], again: Callable[[int], str]
) -> None:
    """Kill `submit` at its steps, and do it `again`; then judge all runs.

    Both get the number of the step, and answer what is wrong; empty when nothing is.
    """
    told = {"LD_PRELOAD": build_library(tmp_path), "KILL_WHO": "front"}
    counted = tmp_path / "count"
    assert not again(0)
    assert not submit(0xFFFF, {**told, "KILL_AT": "0", "KILL_COUNT": str(counted)})
    total = counted.stat().st_size
    assert total > FEW, "the library is not in the process"
    print(f"{total} steps")
    wrong, steps = [], range(1, total + 1, max(1, total // most))
    for at in steps:
        before = _list_runs(root)
        submit(at, {**told, "KILL_AT": str(at)})
        if problem := again(at):
            wrong.append(f"step {at} of {total}: {problem}")
        if (new := len(_list_runs(root) - before)) != 1:
            wrong.append(f"step {at} of {total}: {new} runs")
    for run_id in sorted(_list_runs(root)):
        wrong += _judge(root, run_id)
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------------------------ the desk


def _check_desk(lab: Lab, tmp_path: Path, most: int) -> None:
    command = [sys.executable, "-m", "holdfast", "run", "-d", "--on", "lab", "--name", "once", "--", *JOB]
    known: set[str] = set()

    def type_it(environ: Mapping[str, str]) -> str:
        done = subprocess.run(
            command, cwd=lab.code, env={**os.environ, **environ}, capture_output=True, text=True, check=False
        )
        return "" if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    def submit(_: int, environ: Mapping[str, str]) -> str:
        known.update(list_orders(read_journal("lab")))
        return type_it(environ)

    def again(_: int) -> str:
        new = {run_id: entry for run_id, entry in list_orders(read_journal("lab")).items() if run_id not in known}
        # An order that was answered is done with: who types it again means another one.
        return "" if any(entry.step is Step.TAKEN for entry in new.values()) else type_it({})

    _kill_everywhere(tmp_path, most, lab.root, submit, again)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("SLM-01")
def test_a_desk_that_is_killed_leaves_no_job_or_one_and_the_same_command_finishes(lab: Lab, tmp_path: Path) -> None:
    _check_desk(lab, tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_desk_that_is_killed_at_any_step(lab: Lab, tmp_path: Path) -> None:
    _check_desk(lab, tmp_path, 100_000)


# --------------------------------------------------------------------------------------------------- the login node


def _check_entry(tmp_path: Path, most: int) -> None:
    # The library knows the entry by this word.
    root = tmp_path / FRONT_NAME
    job = JobSpec("once", JOB, str(tmp_path))

    def submit(at: int, environ: Mapping[str, str]) -> str:
        order = Order(f"20261123-101500-once-{at:04x}", job, hash_job(job), "0123456789abcdef", scheduler="slurm")
        command = [sys.executable, "-I", "-S", ENTRY, "slurm", "submit", "--root", str(root)]
        done = subprocess.run(
            command, input=wire.to_bytes(order), env={**os.environ, **environ}, capture_output=True, check=False
        )
        return "" if done.returncode == 0 else f"{done.returncode}: {done.stdout!r} {done.stderr!r}"

    _kill_everywhere(tmp_path, most, root, submit, lambda at: submit(at, {}))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("SLM-01")
@pytest.mark.usefixtures("slurm")
def test_an_entry_that_is_killed_leaves_no_job_or_one_and_the_same_order_finishes(tmp_path: Path) -> None:
    _check_entry(tmp_path, examples(FEW))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("slurm")
def test_an_entry_that_is_killed_at_any_step(tmp_path: Path) -> None:
    _check_entry(tmp_path, 100_000)


# ------------------------------------------------------------------------------------------------------ the controller

KILLS_CONTROLLER = """\
#!/bin/sh
# The job is taken; then the controller dies, and comes back when somebody starts it.
said=$({real} "$@") || exit
[ -e {root}/stopped ] && {{ echo "$said"; exit; }}
touch {root}/stopped
{kill}
{answer}
"""
LOST = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.requirement("SLM-01")
@pytest.mark.parametrize("answer", [LOST, 'echo "$said"'], ids=["before the answer", "after it"])
def test_a_controller_that_dies_while_it_answers_has_taken_one_job(
    isolated_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    with Slurm.started(options="MessageTimeout=2") as slurm:
        monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
        lab = Lab(slurm, tmp_path)
        wrapper = tmp_path / "bin" / "sbatch"
        wrapper.parent.mkdir()
        kill = f"kill -9 $(pgrep -f '^slurmctld -D -f {slurm.conf}')"
        text = KILLS_CONTROLLER.format(real=shutil.which("sbatch"), root=slurm.root, kill=kill, answer=answer)
        wrapper.write_text(text)
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
        command = ("run", "--on", "lab", "-d", "--name", "once", "--", *JOB)
        done = lab(*command, code=69)
        assert "controller does not answer" in done.stderr
        assert "the same command goes on with it" in done.stderr
        slurm.start_controller()
        assert lab(*command).stdout.strip() in {f"lab:{run_id}" for run_id in _list_runs(lab.root)}
        (run_id,) = _list_runs(lab.root)
        assert lab("wait", f"lab:{run_id}").returncode == 0
        assert not _judge(lab.root, run_id)
