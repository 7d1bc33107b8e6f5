"""Campaign behind ``make soak``: `holdfast pull` is killed before each call that changes something.

``HOLDFAST_SOAK_STEPS`` sets how many kills of each kind (200: all of them, in some minutes on two idle cores).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.transfer.pull.pull_kills import KilledPulls

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(7200)]
KILLS = int(os.environ.get("HOLDFAST_SOAK_STEPS", "200"))


@pytest.mark.parametrize("again", [False, True])
def test_a_kill_at_any_step_of_a_pull_leaves_no_wrong_receipt(
    isolated_environment: dict[str, str], tmp_path: Path, again: bool
) -> None:
    killed = KilledPulls(tmp_path, isolated_environment["HOLDFAST_RUNS"], isolated_environment["XDG_STATE_HOME"])
    total = killed.count_calls(tmp_path / "count", again=again)
    wrong, done = [], 0
    for at in range(1, total + 1, max(1, total // KILLS)):
        killed.begin(again=again)
        done += killed.kill(at) == -9
        wrong += [f"at {at} of {total}: {fault}" for fault in killed.find_faults()]
    print(f"\n{done} kills at {total} steps: {len(wrong)} faults")
    assert not wrong
    assert done
