"""A pull that was killed: a few of the points of `tests/soak/test_kill_pulls.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.transfer.pull.pull_kills import KilledPulls

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_kill_leaves_no_wrong_receipt(isolated_environment: dict[str, str], tmp_path: Path) -> None:
    killed = KilledPulls(tmp_path, isolated_environment["HOLDFAST_RUNS"], isolated_environment["XDG_STATE_HOME"])
    total = killed.count_calls(tmp_path / "count", again=True)
    wrong, died = [], 0
    for at in (total // 2, total * 3 // 4, total * 9 // 10):  # a pull takes a few calls more or less than another
        killed.begin(again=True)
        died += killed.kill(at) == -9
        wrong += [f"at {at} of {total}: {fault}" for fault in killed.find_faults()]
    assert not wrong
    assert died
