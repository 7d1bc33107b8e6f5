"""Hugging Face's Trainer, stopped and killed in the middle: the same numbers as without, and 143."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.installed import skip_without
from tests.training.adapters.frameworks import Training, check_exact

if TYPE_CHECKING:
    from pathlib import Path

skip_without("transformers")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TERM, KILL = signal.SIGTERM, signal.SIGKILL

SETTINGS: dict[str, dict[str, Any]] = {
    "accumulating, evaluating in between, ending mid-epoch": {
        "arguments": {"max_steps": 23, "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 4}
    },
    "epochs with an evaluation, a plateau scheduler and workers": {
        "arguments": {
            "num_train_epochs": 2,
            "eval_strategy": "epoch",
            "dataloader_num_workers": 2,
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "metric_for_best_model": "loss",
        }
    },
}


FIRST, *REST = SETTINGS


@pytest.mark.slow
@pytest.mark.requirement("LIB-19", "CKPT-02", "POST-09")
@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.soak) for name in REST)])
def test_LIB_19_a_trainer_continues_bit_for_bit(tmp_path: Path, name: str) -> None:
    # 4 is a step with an evaluation, 10 the end of an epoch: what follows them must be over before the state is saved.
    last = check_exact(
        "train_huggingface", tmp_path, {"every": 3, **SETTINGS[name]}, [(4, TERM), (10, TERM), (17, KILL)]
    )
    again = Training("train_huggingface", tmp_path / "cut", {"every": 3, **SETTINGS[name]})
    assert again.run() == 0, again.errors.read_text(errors="replace")[-5000:]
    assert again.steps == []
    assert again.done["digest"] == last.done["digest"]


@pytest.mark.requirement("LIB-19")
def test_LIB_19_trackers_of_a_trainer_are_finished_when_it_is_stopped(tmp_path: Path) -> None:
    stopped = Training("train_huggingface", tmp_path / "cut", {"halt": 5, "arguments": {"max_steps": 20}})
    assert stopped.run(5) == 143
    assert stopped.lines[-1] == "trackers end"
