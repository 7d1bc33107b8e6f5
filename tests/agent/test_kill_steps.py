"""A process of a run killed between two of its steps leaves nothing that is not put in line.

A few steps of the campaigns in ``tests/soak/test_kill_steps.py``, which take all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.killing import SCENARIOS, Killer, build_library, find_faults, settle
from tests.agent.killing_queue import QueueKiller, find_faults_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process


@pytest.mark.requirement("PROC-14", "OBS-03")
@pytest.mark.parametrize(
    ("who", "scenario", "at", "before"),
    [
        pytest.param("supervisor", "succeeds", 3, 0, id="before its first state"),
        pytest.param("supervisor", "succeeds", 70, 0, id="before its job"),
        pytest.param("supervisor", "fails", 128, 0, id="while it writes the end"),
        pytest.param("supervisor", "fails", 146, 0, id="just before the exit record"),
        pytest.param("supervisor", "transient", 158, 0, id="around the next attempt"),
        pytest.param("keeper", "fails", 8, 0, id="keeper"),
        pytest.param("successor", "fails", 50, 100, id="successor"),
        pytest.param("retry", "transient", 130, 0, id="retry"),
        pytest.param("supervisor", "stopped", 20, 0, id="supervisor that stops its job"),
        pytest.param("front", "stopped", 24, 1, id="stop of an orphan, asked"),
        pytest.param("front", "again", 29, 0, id="restart, made and not begun"),
        pytest.param("front", "removed", 50, 0, id="rm"),
    ],
)
def test_a_kill_leaves_nothing_that_is_not_put_in_line(
    drive: Drive, tmp_path: Path, *, who: str, scenario: str, at: int, before: int
) -> None:
    killer = Killer(drive, build_library(tmp_path))
    run = killer.start(who, SCENARIOS[scenario], at, before=before)
    assert run is not None
    assert killer.has_killed()
    settle(run)
    assert find_faults(run, SCENARIOS[scenario]) == []


@pytest.mark.requirement("QUEUE-01")
def test_a_worker_killed_while_it_makes_a_run_is_followed_by_one_that_makes_it_whole(
    drive: Drive, tmp_path: Path
) -> None:
    killer = Killer(drive, build_library(tmp_path))
    work = QueueKiller(killer, drive).start("worker", tmp_path / "killed-queue-of-this-test", 45)
    assert killer.has_killed()
    assert find_faults_of(work) == []
    work.clear()
