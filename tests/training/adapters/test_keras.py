"""Keras around `train_on_batch`, stopped and killed in the middle: the same numbers as without, and 143."""

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
@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.soak), "jax"])
def test_LIB_19_a_keras_model_continues_bit_for_bit(tmp_path: Path, backend: str) -> None:
    for name in ("keras", backend):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    options = {"backend": backend, "steps": 20, "every": 3}
    check_exact("train_keras", tmp_path, options, [(4, signal.SIGTERM), (11, signal.SIGKILL)])
