"""The transformer: it learns, and a kill in the middle changes nothing about its weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import skip_without
from tests.waiting import wait_until

pytestmark = pytest.mark.process

skip_without("torch")

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "chars" / "train.py"
SETTINGS = {"OMP_NUM_THREADS": "1", "STEPS": "12", "HOLDFAST_CHECKPOINT_EVERY": "3 steps"}


def start(cwd: Path) -> subprocess.Popen[bytes]:
    cwd.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(TRAIN)],
        cwd=cwd,
        env={**os.environ, **SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def read_result(cwd: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((cwd / "artifacts" / "result.json").read_text())
    return result


@pytest.mark.soak
@pytest.mark.requirement("CKPT-01", "CKPT-02")
@pytest.mark.timeout(180)
def test_killed_in_the_middle_it_learns_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with start(whole) as process:
        assert process.wait() == 0
    with start(cut) as process:
        wait_until(lambda: list(cut.glob("checkpoints/step-*/checkpoint.json")), what="a checkpoint")
        process.send_signal(signal.SIGKILL)
    assert not (cut / "artifacts").exists()
    with start(cut) as process:
        assert process.wait() == 0
    assert read_result(cut)["weights_sha256"] == read_result(whole)["weights_sha256"]
    test_loss = read_result(whole)["test_loss"]
    assert isinstance(test_loss, float)
    assert test_loss < 4.5  # guessing is 4.57
