"""Sweeps and files of commands with a worker at work: every job runs once, results stand side by side."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.queues import find, states, worked
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.cli.conftest import Command

pytestmark = pytest.mark.cli

__all__ = ["worked"]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
[ "$1" = --lr=bad ] && [ ! -e mended ] && exit 3
echo "{\\"score\\": ${HOLDFAST_PARAM_SCORE:-0}}" >"$HOLDFAST_ARTIFACT_DIR/metrics.json"
"""


@pytest.fixture(autouse=True)
def _ends_its_worker(worked: str) -> None:
    """No worker outlives its test."""


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-04")
def test_three_lines_run_three_jobs_though_one_reads_its_input_and_the_last_has_no_end(
    holdfast: Command, tmp_path: Path
) -> None:
    lines = tmp_path / "night.txt"
    lines.write_bytes(b"tee one\r\nname=b sh -c 'cat >>two; echo b >>two'\r\nsh -c 'echo c >>three'")
    done = holdfast("submit", "--lines", str(lines), "--wait")
    assert done.code == 0, done
    assert "3 of 3 done" in done.out
    assert [(tmp_path / name).read_text() for name in ("one", "two", "three")] == ["", "b\n", "c\n"]


def test_waiting_for_a_sweep_prints_one_object(holdfast: Command) -> None:
    done = holdfast("sweep", "submit", "--name", "g", "--grid", "x=1,2", "--wait", "--json", "--", "true")
    assert done.code == 0, done
    assert (done.json()["done"], done.json()["total"]) == (2, 2)


@pytest.mark.slow
@pytest.mark.requirement("QUEUE-02", "QUEUE-09")
def test_a_sweep_runs_shows_its_results_and_tries_again_what_failed(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "s.yaml").write_text(
        "job: {command: [sh, train.sh], artifacts: [artifacts/metrics.json], retries: {max: 0}}\n"
        "grid: {lr: [good, bad]}\n"
        "overrides:\n"
        "  - {when: {lr: good}, params: {score: 1.5}}\n"
        "  - {when: {lr: bad}, params: {score: 2.5}}\n"
    )
    done = holdfast("sweep", "s.yaml", "--wait")
    assert done.code == 1, done
    shown = holdfast("sweep", "show", "s", "--sort", "score")
    assert shown.out.splitlines()[-1] == "s: 1 of 2 done, 1 failed"
    assert "lr=bad failed" in shown.err
    assert holdfast("sweep", "check", "s").code == 1
    (tmp_path / "mended").touch()
    (tmp_path / "s.yaml").unlink()
    assert holdfast("sweep", "retry", "s").code == 0
    assert holdfast("wait", "s").code == 0
    said = holdfast("sweep", "show", "s", "--sort", "score:max", "--json").json()
    assert (said["best"], said["counts"]) == ("lr=bad", {"done": 2})
    assert [job["attempts"] for job in said["jobs"]] == [2, 1]
    assert holdfast("sweep", "check", "s").code == 0


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.requirement("QUEUE-18")
def test_the_example_of_twelve_jobs_ends_twelve_of_twelve(
    holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", "4")
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = holdfast("sweep", "examples/digits/sweep.yaml", "--wait", timeout_s=240 * PATIENCE)
    assert done.code == 0, done
    assert "12 of 12 done" in done.out
    rows = holdfast("sweep", "show", "digits", "--json", "--sort", "accuracy").json()["jobs"]
    assert len({job["params"]["epochs"] + job["params"]["seed"] for job in rows}) == 12
    for job in rows:
        path = Path(find(f"digits/{job['job']}").run_dir or "") / "artifacts" / "result.json"
        result = json.loads(path.read_text())
        assert {name: str(result[name]) for name in ("epochs", "seed")} == job["params"]
        assert job["metrics"]["accuracy"] == result["accuracy"]
    assert set(states().values()) == {"done"}
