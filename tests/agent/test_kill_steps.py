"""A supervisor or keeper killed between two of its steps leaves nothing that `reconcile` does not put in line.

A few steps of the campaign in ``tests/soak/test_kill_steps.py``, which takes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.killing import SCENARIOS, Killer, build_library, find_faults, settle

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.driving import Drive

pytestmark = pytest.mark.process


@pytest.mark.requirement("PROC-14", "OBS-03")
@pytest.mark.parametrize(
    ("who", "scenario", "at"),
    [
        pytest.param("supervisor", "succeeds", 3, id="before its first state"),
        pytest.param("supervisor", "succeeds", 70, id="before its job"),
        pytest.param("supervisor", "fails", 128, id="while it writes the end"),
        pytest.param("supervisor", "fails", 146, id="just before the exit record"),
        pytest.param("supervisor", "transient", 158, id="around the next attempt"),
        pytest.param("keeper", "fails", 8, id="keeper"),
    ],
)
def test_a_kill_leaves_nothing_that_is_not_put_in_line(
    drive: Drive, tmp_path: Path, who: str, scenario: str, at: int
) -> None:
    killer = Killer(drive, build_library(tmp_path))
    run = killer.start(who, SCENARIOS[scenario], at)
    assert run is not None
    settle(run)
    assert find_faults(run, SCENARIOS[scenario]) == []
