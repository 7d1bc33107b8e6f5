"""A deadline that was moved while the training runs: the library goes by the new one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.core.run.stop_record import PLACE_END
from holdfast.training.stopping.watch import StopMonitor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def monitor(tmp_path: Path, limit_s: float | None = None) -> StopMonitor:
    return StopMonitor(str(tmp_path / "checkpoint_request.json"), limit_s, lambda _: None)


def move(tmp_path: Path, deadline: float | None) -> None:
    (tmp_path / "deadline.json").write_text(json.dumps({"schema": 1, "deadline": deadline}))


@pytest.mark.requirement("LIM-11")
def test_LIM_11_more_time_is_used_and_less_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("HOLDFAST_DEADLINE", str(int(time.time())))
    move(tmp_path, time.time() + 3600)
    longer = monitor(tmp_path)
    assert longer.propose_stop(time.monotonic(), None) is None
    left_s = longer.time_left()
    assert left_s is not None
    assert left_s > 3000
    move(tmp_path, time.time() - 1)
    assert longer.propose_stop(time.monotonic() + 10, None) is not None


def test_a_deadline_that_was_taken_away_leaves_the_scripts_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("HOLDFAST_DEADLINE", str(int(time.time())))
    move(tmp_path, None)
    without, own = monitor(tmp_path), monitor(tmp_path, 600.0)
    for watch in (without, own):
        assert watch.propose_stop(time.monotonic(), None) is None
    assert without.time_left() is None
    left_s = own.time_left()
    assert left_s is not None
    assert 500 < left_s <= 600


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEADLINE", str(int(time.time())))
    (tmp_path / "deadline.json").write_text("{")
    assert monitor(tmp_path).propose_stop(time.monotonic(), None) is not None


@pytest.mark.requirement("SLM-04", "LIB-03")
def test_a_place_that_ends_later_or_sooner_than_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEADLINE", raising=False)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time())))
    (tmp_path / "deadline.json").write_text(json.dumps({"schema": 1, "place_end": time.time() + 3600}))
    watch = monitor(tmp_path)
    assert watch.propose_stop(time.monotonic(), None) is None
    left_s = watch.time_left()
    assert left_s is not None
    assert left_s > 3000
    (tmp_path / "deadline.json").write_text(json.dumps({"schema": 1, "place_end": time.time() + 0.5, "deadline": None}))
    wish = watch.propose_stop(time.monotonic() + 10, None)
    assert wish is not None
    assert watch.reason is not None
    assert (watch.reason.why, watch.reason.detail) == PLACE_END
    (tmp_path / "deadline.json").write_text("[]")
    assert monitor(tmp_path).propose_stop(time.monotonic(), None) is not None
