"""Campaigns behind ``make soak``: any one component is killed at a random instant, and nothing is lost.

``HOLDFAST_SOAK_KILLS`` sets how many (500), ``HOLDFAST_SOAK_SEED`` repeats a campaign; each failure names its seed.
"""

from __future__ import annotations

import glob
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, IsolationLevel
from holdfast.model.run import Ended, Outcome
from tests.agent.driving import Drive, Driven, job
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.model.identity import ProcessId

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("HOLDFAST_SOAK_KILLS", "500"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
CARDS = {"HOLDFAST_SIMULATED_GPUS": "4"}
LEVELS = (
    IsolationLevel.PID_NAMESPACE,
    IsolationLevel.CGROUP_V1,
    IsolationLevel.SUBREAPER,
    IsolationLevel.PROCESS_GROUP,
)
LATEST_S = 0.6


@pytest.fixture
def draw() -> random.Random:
    return random.Random(SEED)


def pause(seconds: float) -> None:
    """A random instant is what these campaigns are about; nothing is waited for."""
    time.sleep(seconds)


def victim_of(run: Driven, who: str) -> ProcessId | None:
    """The process to kill, as far as it exists at this instant."""
    state = run.state()
    inner = state.state
    if who == "supervisor":
        return state.supervisor
    if who == "keeper":
        return getattr(inner, "keeper", None)
    leader = getattr(inner, "job", None)
    return None if leader is None else leader.process


def finish(run: Driven) -> Ended:
    """Have somebody take the run to its end, as often as it takes."""

    def over() -> bool:
        if isinstance(run.state().state, Ended) and os.path.exists(run.path(wire.EXIT)):
            return True
        if not run.supervised():
            run.adopt()
        return False

    wait_until(over, what=f"{run.run_id} ends; seed {SEED}; {run.log()[-800:]}")
    return run.ended()


def judge(end: Ended, who: str, hit: bool, level: IsolationLevel, code: int) -> bool:
    """Whether the end is one that this kill may lead to."""
    if end.exit_code == code and end.outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        return True
    by_kill = end.status is not None and end.status.signal == signal.SIGKILL and end.exit_code == 137
    # A namespace dies with its process 1; a job that is killed is killed.
    return by_kill and hit and (who == "job" or (who == "keeper" and level is IsolationLevel.PID_NAMESPACE))


@pytest.mark.requirement("PROC-14", "PROC-05", "OBS-03", "LEASE-02")
def test_any_component_killed_at_a_random_instant_loses_nothing(drive: Drive, draw: random.Random) -> None:
    wrong = []
    for number in range(KILLS):
        who = draw.choice(("supervisor", "supervisor", "keeper", "job"))
        level, code = draw.choice(LEVELS), draw.randrange(256)
        lasting_s, at_s = draw.choice((0.0, 0.05, 0.3)), draw.uniform(0.0, LATEST_S)
        run = drive(
            *job("leave_after", lasting_s, code),
            gpus=GpuRequest(count=1),
            gpu=GpuOptions(idle_window_s=0.0, wait_s=60.0),
            environ=CARDS,
            containment=level,
        )
        pause(at_s)
        victim = victim_of(run, who)
        hit = victim is not None and pidfd.send_signal(victim, signal.SIGKILL)
        end = finish(run)
        if not judge(end, who, hit, level, code):
            wrong.append(f"#{number} {who} on {level.value} at {at_s:.3f} s, hit {hit}, wanted {code}: {end}")
        run.assert_gone()
        for name in os.listdir(run.directory):
            if name.endswith(".json"):
                run.read(name)
        stuck = glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/lease-*.json")
        assert not stuck, f"#{number} {who} at {at_s:.3f} s left {stuck}; seed {SEED}"
        drive.runs.clear()
    assert not wrong, f"seed {SEED}: {len(wrong)} of {KILLS}:\n" + "\n".join(wrong)


@pytest.mark.requirement("PROC-03")
def test_PROC_03_five_hundred_starts_never_name_our_own_group(drive: Drive) -> None:
    for _ in range(KILLS // 20):
        runs = [drive(*job("stay")) for _ in range(20)]
        for run in runs:
            state = run.ready()
            own = processes.read_stat(run.supervisor().pid)
            assert own is not None
            assert state.job.pgid not in (own.pgid, os.getpgid(0))
        for run in runs:
            run.ask()
        for run in runs:
            assert run.ended().outcome is Outcome.STOPPED
        drive.runs.clear()


@pytest.fixture
def command_line() -> str:
    return os.path.join(os.path.dirname(sys.executable), "holdfast")


def wait_for_runs(root: str) -> Iterator[str]:
    for name in sorted(os.listdir(root)):
        if os.path.exists(f"{root}/{name}/attempts/1/state.json"):
            yield name


@pytest.mark.requirement("PROC-12", "PROC-14")
def test_a_command_line_killed_at_a_random_instant_loses_no_run(
    drive: Drive, draw: random.Random, command_line: str
) -> None:
    for number in range(KILLS // 5):
        code = draw.randrange(256)
        before = set(wait_for_runs(drive.root))
        child = subprocess.Popen(
            [command_line, "run", "--name", "soak", "--", *job("leave_after", 0.2, code)],
            env=drive.environ,
            cwd=drive.workdir,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pause(draw.uniform(0.0, 0.8))
        child.kill()
        child.wait()
        for run_id in set(wait_for_runs(drive.root)) - before:
            run = Driven(f"{drive.root}/{run_id}", run_id, drive.environ)
            end = finish(run)
            assert end.exit_code == code, f"#{number}, seed {SEED}: {end}"
            run.assert_gone()


@pytest.mark.requirement("LEASE-01", "LEASE-14", "LEASE-18")
def test_cards_under_load_are_never_given_twice(drive: Drive, draw: random.Random) -> None:
    """Each job claims its card with mkdir, which only one can have; every third supervisor is killed."""
    claim = (
        f'd="{drive.workdir}/$CUDA_VISIBLE_DEVICES"; mkdir "$d" || exit 99; sleep 0.0{draw.randrange(1, 6)}; '
        'rmdir "$d"; exit 0'
    )
    for _ in range(max(1, KILLS // 25)):
        runs = [
            drive(
                "sh",
                "-c",
                claim,
                gpus=GpuRequest(count=1),
                gpu=GpuOptions(idle_window_s=0.0, wait_s=300.0),
                environ=CARDS,
            )
            for _ in range(12)
        ]
        for run in runs[::3]:
            pause(draw.uniform(0.0, 0.1))
            victim = victim_of(run, "supervisor")
            if victim is not None:
                pidfd.send_signal(victim, signal.SIGKILL)
        for run in runs:
            assert finish(run).exit_code == 0, f"seed {SEED}: {run.output()!r}"
        assert not glob.glob(f"{drive.environ['HOLDFAST_LEASE_DIR']}/lease-*.json")
        drive.runs.clear()
