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

from tests.conftest import is_foreign
from tests.installed import skip_without
from tests.waiting import wait_until

pytestmark = pytest.mark.process

skip_without("sklearn")

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Threads that wait for each other on a busy machine turn seconds into minutes."""
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py"


def settle_environment(**environment: str) -> dict[str, str]:
    """The same for all trainings, also for one made outside of a test: OPENBLAS_CORETYPE alone changes the weights."""
    return {**{name: value for name, value in os.environ.items() if not is_foreign(name)}, **ONE_THREAD, **environment}


def train(cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TRAIN)],
        cwd=cwd,
        env=settle_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def read_result(cwd: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((cwd / "artifacts" / "result.json").read_text())
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a training over four epochs was, undisturbed; made once."""
    place = tmp_path_factory.mktemp("whole")
    artifacts, beat = place / "run" / "artifacts", place / "heartbeat.json"
    done = train(place, EPOCHS="4", HOLDFAST_ARTIFACT_DIR=str(artifacts), HOLDFAST_HEARTBEAT=str(beat))
    assert done.returncode == 0, done.stderr
    (place / "output").write_text(done.stdout)
    return place


def test_it_learns_to_read_digits_and_says_how_far_it_is(whole: Path) -> None:
    output = (whole / "output").read_text()
    epochs = re.findall(r"^epoch (\d)/4 loss [\d.]+ train_acc [\d.]+ test_acc ([\d.]+)$", output, re.MULTILINE)
    assert [number for number, _ in epochs] == ["1", "2", "3", "4"]
    seen = json.loads((whole / "heartbeat.json").read_text())
    assert (seen["step"], seen["phase"]) == (4 * 379, "finished")
    result = read_result(whole / "run")
    assert isinstance(result["accuracy"], float)
    assert result["accuracy"] > 0.95
    assert {k: result[k] for k in ("epochs", "seed", "n_train", "n_test")} == {
        "epochs": 4,
        "seed": 0,
        "n_train": 1347,
        "n_test": 450,
    }
    assert [path.name for path in (whole / "run" / "artifacts").iterdir()] == ["result.json"]


@pytest.mark.slow
@pytest.mark.requirement("CKPT-02", "CKPT-03")
def test_killed_in_the_middle_it_ends_with_the_same_weights(whole: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(TRAIN)],
        cwd=tmp_path,
        env=settle_environment(EPOCHS="4", HOLDFAST_CHECKPOINT_EVERY="100 steps"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as process:
        made = tmp_path / "checkpoints"
        wait_until(lambda: list(made.glob("step-*/checkpoint.json")), what="a checkpoint")
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "artifacts").exists(), "it was killed before its end"
    done = train(tmp_path, EPOCHS="4")
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stderr
    assert read_result(tmp_path)["weights_sha256"] == read_result(whole / "run")["weights_sha256"]


@pytest.mark.slow
def test_the_seed_decides_and_a_heartbeat_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    """That one seed gives one result is what the training that was killed shows."""
    digests = set()
    for seed in ("3", "4"):
        (tmp_path / seed).mkdir()
        beat = tmp_path / "gone" / "beat.json"
        done = train(tmp_path / seed, EPOCHS="1", SEED=seed, HOLDFAST_HEARTBEAT=str(beat))
        assert done.returncode == 0
        assert "heartbeat" in done.stderr
        digests.add(read_result(tmp_path / seed)["weights_sha256"])
    assert len(digests) == 2
