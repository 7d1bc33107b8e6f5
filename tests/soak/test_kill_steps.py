"""Campaigns behind ``make soak``: each process of a run is killed before each call that matters.

Supervisors (the first, a successor, that of a retry or of a restart), keepers, and the command lines of run, stop,
restart and rm; then the worker of a queue and the supervisor that it forks. There are some thousand steps: the
campaigns take ``HOLDFAST_SOAK_STEPS`` of them (200, some minutes on two idle cores), the next ones others. Each failure
names its scenario, victim and step.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.agent.killing import (
    SCENARIOS,
    VICTIMS,
    Killer,
    build_library,
    count_calls,
    find_faults,
    list_before,
    settle,
)
from tests.agent.killing_queue import QueueKiller, find_faults_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

Step = TypeVar("Step")

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("HOLDFAST_SOAK_STEPS", "200"))
STRIDE = 7919
"""A prime, so that it meets every step."""
OF_QUEUES = KILLS // 5


@pytest.mark.requirement("PROC-14", "PROC-05", "OBS-03")
def test_a_kill_at_any_step_leaves_nothing_that_is_not_put_in_line(drive: Drive, tmp_path: Path) -> None:
    killer = Killer(drive, build_library(tmp_path))
    totals: dict[tuple[str, str, int], int] = {}
    for name, scenario in SCENARIOS.items():
        for who in VICTIMS[name]:
            for before in list_before(who, scenario, totals.get((name, "supervisor", 0), 0)):
                totals[name, who, before] = count_calls(killer, who, scenario, tmp_path, before)
    steps = [(*key, at) for key, total in totals.items() for at in range(1, total + 1)]
    assert {(name, who) for name, who, *_ in steps} == {(name, who) for name in VICTIMS for who in VICTIMS[name]}, (
        totals
    )
    drive.clear()
    drive.runs.clear()
    wrong, killed = [], 0
    # Steps far from each other, each once before one comes again; a run takes a few calls more or less than another.
    for name, who, before, at in draw(steps, KILLS - OF_QUEUES):
        place = f"{name}, {who} at {at} of {totals[name, who, before]}, the first killed at {before}"
        run = killer.start(who, SCENARIOS[name], at, before=before)
        killed += killer.has_killed()
        if run is None:
            continue
        adopting = random.random() < 1 / 3
        reports = settle(run, adopting=adopting)
        faults = [f"{place}{', adopted' if adopting else ''}: {fault}" for fault in find_faults(run, SCENARIOS[name])]
        wrong += [*faults, f"{place}: {reports}"] if faults else []
        if SCENARIOS[name].verb == "rm" and os.path.exists(run.run_dir) and killer.type("rm", run) != 0:
            wrong.append(f"{place}: it cannot be removed any more")
        drive.runs.clear()
    assert not wrong, f"{len(wrong)} faults after {killed} kills:\n" + "\n".join(wrong)
    assert killed > (KILLS - OF_QUEUES) / 2, "most came to no step of theirs"


@pytest.mark.requirement("QUEUE-01")
@pytest.mark.parametrize("who", ["worker", "queued"])
def test_a_kill_at_any_step_of_a_queue_is_made_good_by_its_next_worker(drive: Drive, tmp_path: Path, who: str) -> None:
    killer = QueueKiller(Killer(drive, build_library(tmp_path)), drive)
    count = tmp_path / "count"
    killer.start(who, tmp_path / "killed-queue-0-of-these", 0, str(count)).clear()
    total = count.stat().st_size
    assert total
    wrong = []
    for number, at in enumerate(draw(list(range(1, total + 1)), OF_QUEUES // 2), start=1):
        work = killer.start(who, tmp_path / f"killed-queue-{number}-of-these", at)
        # Whose supervisor was killed before it began is called off.
        faults = find_faults_of(work, started=who == "worker")
        wrong += [f"{who} at {at} of {total}: {fault}" for fault in faults]
        work.clear()
    assert not wrong, f"{len(wrong)} faults:\n" + "\n".join(wrong)


def draw(steps: list[Step], number: int) -> list[Step]:
    """So many of them, each with a distance to the one before."""
    first = random.randrange(len(steps))
    return [steps[(first + each) * STRIDE % len(steps)] for each in range(number)]
