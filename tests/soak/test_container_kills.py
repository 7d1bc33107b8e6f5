"""A campaign behind ``make soak``: a training in a container whose supervisor, keeper or client is killed at random.

Every end comes out exactly, every card comes back, nothing survives, and what is continued is bit-identical to what
was never interrupted.
"""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.lease.area import open_area
from holdfast.host.lease.records import read_records
from holdfast.host.process import processes
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions
from holdfast.model.run import Running
from tests.agent.containers.test_containers import assert_removed, record_of, start
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive, Driven
    from tests.runtimes import Engine

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("KILLS", "20"))
STEPS, FIRST = 30 * KILLS, "0 "
TRAINING = """
import hashlib, os, time
steps = int(os.environ["STEPS"])
at, _, value = open("state").read().partition(" ")
print("ready", flush=True)
for step in range(int(at), steps):
    value = hashlib.sha256((value + str(step)).encode()).hexdigest()
    with open("state.new", "w") as file:
        file.write(f"{step + 1} {value}")
        file.flush()
        os.fsync(file.fileno())
    os.rename("state.new", "state")
    time.sleep(0.02)
"""
PATIENCE_S = 120.0


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each runtime that is here."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def train_undisturbed() -> str:
    value = ""
    for step in range(STEPS):
        value = hashlib.sha256((value + str(step)).encode()).hexdigest()
    return f"{STEPS} {value}"


@pytest.mark.requirement("CTR-05")
def test_twenty_kills_of_a_training_in_a_container(drive: Drive, engine: Engine) -> None:
    chance, state = random.Random(7), Path(drive.workdir) / "state"
    state.write_text(FIRST)
    area = open_area(None, environ=drive.environ)
    kills = 0
    while kills < KILLS or read_step(state) < STEPS:
        run = start(
            drive, engine, "python3", "-c", TRAINING, gpus=GpuRequest(count=1), gpu=GpuOptions(idle_window_s=0.0),
            env={"STEPS": str(STEPS)}, environ={"HOLDFAST_SIMULATED_GPUS": "1"},
        )  # fmt: skip
        run.ready(PATIENCE_S)
        kills += disturb(run, state, chance, most=KILLS - kills)
        init = record_of(run).init
        assert init is not None
        assert not processes.is_alive(init)
        wait_until(lambda: not read_records(area)[0], PATIENCE_S, what="the card is back")
        assert_removed(run, engine)
        if read_step(state) >= STEPS and kills < KILLS:
            state.write_text(FIRST)
    assert state.read_text() == train_undisturbed()


def read_step(state: Path) -> int:
    return int(state.read_text().partition(" ")[0])


def disturb(run: Driven, state: Path, chance: random.Random, *, most: int) -> int:
    """Kill one of three again and again until the run is over; how often."""
    kills, keeper_lives = 0, True
    while kills < most:
        goal = read_step(state) + chance.randrange(1, 30)
        wait_until(lambda goal=goal: read_step(state) >= min(goal, STEPS), PATIENCE_S)  # type: ignore[misc]
        current = run.state().state
        if read_step(state) >= STEPS or not isinstance(current, Running):
            break
        victim = chance.choice(["client", "supervisor", *(["keeper"] if keeper_lives else [])])
        kills += 1
        if victim == "client":
            run.kill(current.job.process)
            assert run.ended(PATIENCE_S).exit_code == 137
            return kills
        if victim == "keeper":
            run.kill(current.keeper)
            keeper_lives = False
            wait_until(lambda: run.events("keeper_lost"), PATIENCE_S)
        else:
            run.kill_supervisor()
            run.adopt()
    assert run.ended(PATIENCE_S).exit_code == 0
    return kills
