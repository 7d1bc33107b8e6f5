"""Names that a stranger may give to files where leases lie: digits that are none for int() stop nobody's sweep."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host import lease_area, lease_breaking

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_names_with_digits_that_are_no_numbers_do_not_stop_a_sweep(
    isolated_environment: dict[str, str], tmp_path: Path
) -> None:
    by_hand = tmp_path / "gpu_locks"
    by_hand.mkdir()
    directory = isolated_environment["HOLDFAST_LEASE_DIR"]
    planted = [
        f"{directory}/.lease-x.json.\u00b2.tmp",
        f"{directory}/ticket-\u00b2-x.json",
        f"{by_hand}/gpu_\u00b2.lock",
    ]
    for path in planted:
        with open(path, "w", encoding="ascii"):
            pass
    area = lease_area.open_area(hand_written=str(by_hand))
    assert lease_breaking.sweep(area) == ()
    assert all(map(os.path.exists, planted))
