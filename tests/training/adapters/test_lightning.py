"""Lightning, stopped and killed in the middle: the same numbers as without, and 143 through `fit`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.installed import skip_without
from tests.training.adapters.frameworks import Training, check_exact

if TYPE_CHECKING:
    from pathlib import Path

skip_without("lightning")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TERM, KILL = signal.SIGTERM, signal.SIGKILL

SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"trainer": {"max_epochs": 2}},
    "validation within epochs that a scheduler follows": {
        "plateau": True,
        "trainer": {"max_epochs": 2, "val_check_interval": 5},
    },
    "accumulating, with workers, ending mid-epoch": {
        "workers": 2,
        "trainer": {"max_steps": 14, "accumulate_grad_batches": 2},
    },
}

LONGEST = "validation within epochs that a scheduler follows"
REST = [name for name in SETTINGS if name != LONGEST]


@pytest.mark.slow
@pytest.mark.requirement("LIB-19", "CKPT-02", "POST-09")
@pytest.mark.parametrize("name", [LONGEST, *(pytest.param(name, marks=pytest.mark.soak) for name in REST)])
def test_LIB_19_a_fit_continues_bit_for_bit(tmp_path: Path, name: str) -> None:
    # 5 is the step of a validation or the end of an epoch, 10 is both in the others.
    last = check_exact("train_lightning", tmp_path, {"every": 3, **SETTINGS[name]}, [(5, TERM), (10, TERM), (13, KILL)])
    again = Training("train_lightning", tmp_path / "cut", {"every": 3, **SETTINGS[name]})
    assert again.run() == 0, again.errors.read_text(errors="replace")[-5000:]
    assert again.steps == []
    assert again.done["digest"] == last.done["digest"]
