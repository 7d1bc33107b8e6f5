"""The main job without holdfast: it learns, reports, and leaves its result where it was told to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

pytest.importorskip("sklearn", reason="the examples' requirements are not installed")

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"


def train(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_it_learns_to_read_digits_and_says_how_far_it_is(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    beat = tmp_path / "heartbeat.json"
    done = train(tmp_path, EPOCHS="4", HOLDFAST_RUN_DIR=str(run_dir), HOLDFAST_HEARTBEAT=str(beat))
    assert done.returncode == 0, done.stderr
    epochs = re.findall(r"^epoch (\d)/4 loss [\d.]+ train_acc [\d.]+ test_acc ([\d.]+)$", done.stdout, re.MULTILINE)
    assert [number for number, _ in epochs] == ["1", "2", "3", "4"]
    assert json.loads(beat.read_text())["epoch"] == 4
    result = json.loads((run_dir / "artifacts" / "result.json").read_text())
    assert result["accuracy"] > 0.95
    assert {k: result[k] for k in ("epochs", "seed", "n_train", "n_test")} == {
        "epochs": 4,
        "seed": 0,
        "n_train": 1347,
        "n_test": 450,
    }
    assert [path.name for path in (run_dir / "artifacts").iterdir()] == ["result.json"]


def test_the_seed_fixes_the_result(tmp_path: Path) -> None:
    one, same, other = (train(tmp_path, EPOCHS="1", SEED=seed).stdout for seed in ("3", "3", "4"))
    assert one == same
    assert one != other


def test_a_heartbeat_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    done = train(tmp_path, EPOCHS="1", HOLDFAST_HEARTBEAT=str(tmp_path / "gone" / "beat.json"))
    assert done.returncode == 0
    assert "no heartbeat" in done.stderr
    assert (tmp_path / "artifacts" / "result.json").exists()
