"""Campaign behind ``make soak``: supervisor, keeper and command line are killed before each call that matters.

There are some hundred steps: a campaign takes ``HOLDFAST_SOAK_STEPS`` of them (200, about a quarter of an hour on two
idle cores), the next one others. Each failure names its scenario, victim and step.
"""

from __future__ import annotations

import os
import random
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.agent.killing import SCENARIOS, Killer, build_library, count_calls, find_faults, settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("HOLDFAST_SOAK_STEPS", "200"))
STRIDE = 7919
"""A prime, so that it meets every step."""
VICTIMS = ("supervisor", "keeper", "copier", "front")


@pytest.mark.requirement("PROC-14", "PROC-05", "OBS-03")
def test_a_kill_at_any_step_leaves_nothing_that_is_not_put_in_line(drive: Drive, tmp_path: Path) -> None:
    killer = Killer(drive, build_library(tmp_path))
    totals = {
        (name, who): count_calls(killer, who, scenario, tmp_path)
        for name, scenario in SCENARIOS.items()
        for who in VICTIMS
        if (name, who) not in {("refused", "front"), ("copies", "front")} and (who != "copier" or scenario.copies)
    }
    pairs = [pair for pair, total in totals.items() for _ in range(total)]
    assert pairs, totals
    wrong, done = [], 0
    # Steps far from each other, each once before one comes again; a run takes a few calls more or less than another.
    for number in count(random.randrange(len(pairs))):
        if done >= KILLS:
            break
        index = number * STRIDE % len(pairs)
        name, who = pairs[index]
        at = index - pairs.index(pairs[index]) + 1
        done += 1
        run = killer.start(who, SCENARIOS[name], at)
        if run is None:
            continue
        adopting = random.random() < 1 / 3
        reports = settle(run, adopting=adopting)
        place = f"{name}, {who} at {at} of {totals[name, who]}{', adopted' if adopting else ''}"
        faults = [f"{place}: {fault}" for fault in find_faults(run, SCENARIOS[name])]
        wrong += [*faults, f"{place}: {reports}"] if faults else []
        drive.runs.clear()
    assert not wrong, f"{len(wrong)} faults after {done} kills:\n" + "\n".join(wrong)
