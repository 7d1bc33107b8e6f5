"""A wall clock that jumps under a run moves neither its deadline nor its duration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.uml.machine import REPOSITORY, Guest

if TYPE_CHECKING:
    from tests.uml.machine import Machine

pytestmark = [pytest.mark.process, pytest.mark.uml, pytest.mark.timeout(300)]


@pytest.mark.slow
@pytest.mark.requirement("RAIL-01", "OBS-02")
@pytest.mark.parametrize("direction", ["forward", "back"])
def test_a_day_more_or_less_on_the_clock_moves_no_deadline(machine: Machine, direction: str) -> None:
    env = {
        "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOLDFAST_RUNS": f"{machine.disk}/runs",
        "HOME": "/root",
    }
    done = machine.run(["python", "clock.py", direction], Guest(env=env))
    assert done.code == 0, done.stderr
    found = json.loads(done.stdout)
    # On a loaded machine the guest may be slower than the limit of 8 s of its own clock.
    assert found["started"] == 0 or found["early_after_s"] > 8, done.stderr
    assert found["early"] == "running" or found["early_after_s"] > 8, "the jump ended it"
    assert found["condition"] == "timed_out"
    assert found["exit"]["exit_code"] == 124
    assert 1 < found["exit"]["duration_s"] < 60
