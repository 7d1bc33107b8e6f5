"""The main job without a supervisor: it learns, reports, resumes, and leaves its result where it was told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import skip_without
from tests.waiting import wait_until

pytestmark = pytest.mark.process

skip_without("sklearn")

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Threads that wait for each other on a busy machine turn seconds into minutes."""
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"


def train(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN)],
        cwd=cwd,
        env={**os.environ, **ONE_THREAD, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def read_result(cwd: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((cwd / "artifacts" / "result.json").read_text())
    return result


def test_it_learns_to_read_digits_and_says_how_far_it_is(tmp_path: Path) -> None:
    beat = tmp_path / "heartbeat.json"
    artifacts = tmp_path / "run" / "artifacts"
    done = train(tmp_path, EPOCHS="4", HOLDFAST_ARTIFACT_DIR=str(artifacts), HOLDFAST_HEARTBEAT=str(beat))
    assert done.returncode == 0, done.stderr
    epochs = re.findall(r"^epoch (\d)/4 loss [\d.]+ train_acc [\d.]+ test_acc ([\d.]+)$", done.stdout, re.MULTILINE)
    assert [number for number, _ in epochs] == ["1", "2", "3", "4"]
    seen = json.loads(beat.read_text())
    assert (seen["step"], seen["phase"]) == (4 * 379, "finished")
    result = read_result(tmp_path / "run")
    assert isinstance(result["accuracy"], float)
    assert result["accuracy"] > 0.95
    assert {k: result[k] for k in ("epochs", "seed", "n_train", "n_test")} == {
        "epochs": 4,
        "seed": 0,
        "n_train": 1347,
        "n_test": 450,
    }
    assert [path.name for path in artifacts.iterdir()] == ["result.json"]


@pytest.mark.slow
def test_the_seed_fixes_the_result(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("one", "3"), ("same", "3"), ("other", "4")):
        (tmp_path / name).mkdir()
        assert train(tmp_path / name, EPOCHS="1", SEED=seed).returncode == 0
        digests.append(read_result(tmp_path / name)["weights_sha256"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
@pytest.mark.requirement("CKPT-02", "CKPT-03")
def test_killed_in_the_middle_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    assert train(tmp_path / "whole", EPOCHS="6").returncode == 0
    with subprocess.Popen(
        [sys.executable, str(TRAIN)],
        cwd=tmp_path / "cut",
        env={**os.environ, **ONE_THREAD, "EPOCHS": "6", "HOLDFAST_CHECKPOINT_EVERY": "100 steps"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: list((tmp_path / "cut").glob("checkpoints/step-*/checkpoint.json")), what="a checkpoint")
        process.send_signal(signal.SIGKILL)
    done = train(tmp_path / "cut", EPOCHS="6")
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stderr
    assert read_result(tmp_path / "cut")["weights_sha256"] == read_result(tmp_path / "whole")["weights_sha256"]


@pytest.mark.slow
def test_a_heartbeat_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    done = train(tmp_path, EPOCHS="1", HOLDFAST_HEARTBEAT=str(tmp_path / "gone" / "beat.json"))
    assert done.returncode == 0
    assert "heartbeat" in done.stderr
    assert (tmp_path / "artifacts" / "result.json").exists()
