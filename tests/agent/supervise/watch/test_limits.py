"""The watchdog on real processes where no control group can be had: it warns, and it ends what exceeds a limit."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent.supervise.recorder import Recorder
from holdfast.agent.supervise.start.containment import Containment
from holdfast.agent.supervise.timers import Timers
from holdfast.agent.supervise.watch.limits import Watchdog
from holdfast.core.run.events import StopWanted
from holdfast.host.contain.limits import plan_limits
from holdfast.model import wire
from holdfast.model.job import IsolationLevel, JobSpec, Limits
from holdfast.model.run import StopCause
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = pytest.mark.process

MIB = 1024**2


class Watched:
    """A watchdog over child processes of the test, its timers turned by hand."""

    def __init__(self, root: Path, limits: Limits, children: list[subprocess.Popen[bytes]]) -> None:
        run_dir = f"{root}/run"
        os.makedirs(wire.attempt_dir(run_dir, 1), exist_ok=True)
        self.timers, self.emitted, self.notices = Timers(), list[object](), list[str]()
        self.recorder = Recorder(run_dir, "20261120-104501-t-3fa2", 1)
        context = SimpleNamespace(
            spec=JobSpec("t", ("x",), "/", limits=limits),
            recorder=self.recorder,
            loop=SimpleNamespace(timers=self.timers),
            emit=self.emitted.append,
            notify=lambda name, **_: self.notices.append(name),
        )
        containment = Containment(IsolationLevel.SUBREAPER, "", None, plan_limits(limits, None))
        pids = [child.pid for child in children]
        self.looks = 0

        def list_pids() -> list[int]:
            self.looks += 1
            return pids

        self.watchdog = Watchdog(cast("SupervisorContext", context), containment, list_pids)
        self.watchdog.begin()

    def look(self) -> None:
        """One look, when its time has come."""
        assert self.timers.is_armed("watchdog"), "it goes on looking"
        looks = self.looks

        def turn() -> bool:
            self.timers.run_due()
            return self.looks > looks

        wait_until(turn, what="the next look")

    def requested(self) -> bool:
        return os.path.exists(self.recorder.path(wire.CHECKPOINT_REQUEST))


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that each hold 40 MiB of their own: neither is over the limit alone."""
    program = "held = b'\\1' * (40 << 20)\nprint(flush=True)\nimport time\ntime.sleep(600)"
    made = [subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE) for _ in range(2)]
    for child in made:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
    yield made
    for child in made:
        child.kill()
        child.communicate()


@pytest.mark.requirement("LIM-01", "LIM-04", "B-46", "B-48")
def test_LIM_01_a_tree_over_its_limit_is_ended_by_force_with_the_reason(
    tmp_path: Path, workers: list[subprocess.Popen[bytes]]
) -> None:
    watched = Watched(tmp_path, Limits(memory_bytes=60 * MIB), workers)
    watched.look()
    (event,) = watched.emitted
    assert isinstance(event, StopWanted)
    assert (event.request.cause, event.request.force) == (StopCause.MEMORY, True)
    assert "the limit is 60 MiB" in event.request.detail
    assert watched.notices == ["memory_high"]
    assert not watched.timers.is_armed("watchdog"), "nothing is said twice"


@pytest.mark.requirement("LIM-03", "LIM-09")
@pytest.mark.parametrize(
    "limits",
    [
        Limits(memory_high_bytes=60 * MIB),
        pytest.param(Limits(memory_high_bytes=60 * MIB, memory_bytes=400 * MIB), marks=pytest.mark.slow),
    ],
)
def test_LIM_03_a_tree_near_its_limit_is_asked_to_save_once_and_lives_on(
    tmp_path: Path, workers: list[subprocess.Popen[bytes]], limits: Limits
) -> None:
    watched = Watched(tmp_path, limits, workers)
    watched.look()
    assert watched.requested()
    assert watched.notices == ["memory_high"]
    os.unlink(watched.recorder.path(wire.CHECKPOINT_REQUEST))
    watched.look()
    assert not watched.requested()
    assert watched.notices == ["memory_high"]
    successor = Watched(tmp_path, limits, workers)
    successor.look()
    assert successor.notices == [], "the next supervisor has read what was said"
    assert watched.emitted == successor.emitted == []


@pytest.mark.requirement("LIM-01")
def test_LIM_01_too_many_processes_are_ended(tmp_path: Path, workers: list[subprocess.Popen[bytes]]) -> None:
    watched = Watched(tmp_path, Limits(tasks=1), workers)
    watched.look()
    (event,) = watched.emitted
    assert isinstance(event, StopWanted)
    assert "2 processes" in event.request.detail
    assert not watched.requested()


@pytest.mark.slow
def test_a_tree_within_its_limits_is_left_alone(tmp_path: Path, workers: list[subprocess.Popen[bytes]]) -> None:
    watched = Watched(tmp_path, Limits(memory_bytes=1024 * MIB, tasks=50), workers)
    watched.look()
    watched.look()
    assert watched.emitted == []
    assert watched.notices == []
