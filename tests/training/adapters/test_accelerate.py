"""A loop with an Accelerator, stopped and killed in the middle: the same numbers as without, and 143."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.installed import skip_without
from tests.training.adapters.frameworks import check_exact

if TYPE_CHECKING:
    from pathlib import Path

skip_without("accelerate")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.slow
@pytest.mark.requirement("LIB-19", "CKPT-02", "POST-09")
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.soak), 2])
def test_LIB_19_a_loop_with_an_accelerator_continues_bit_for_bit(tmp_path: Path, workers: int) -> None:
    # 38 rows in batches of 4, three at a time: epochs end within an accumulation, which accelerate cuts short there.
    options = {"steps": 20, "every": 3, "accumulate": 3, "workers": workers}
    check_exact("train_accelerate", tmp_path, options, [(4, signal.SIGTERM), (9, signal.SIGKILL), (12, signal.SIGTERM)])
