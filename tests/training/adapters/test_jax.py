"""A plain jax loop, stopped and killed in the middle: the same numbers as without, and 143."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.training.adapters.frameworks import check_exact

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.requirement("LIB-19", "CKPT-02", "POST-09")
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("typed", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["typed-keys", "raw-keys"])
def test_LIB_19_a_jax_loop_continues_bit_for_bit(tmp_path: Path, typed: bool) -> None:
    # The moments begin as one object in two places, which must not come back as one.
    options = {"typed": typed, "steps": 20, "every": 3}
    check_exact("train_jax", tmp_path, options, [(4, signal.SIGTERM), (11, signal.SIGKILL)])
