"""The heartbeat says where the training is to end, so that an exit with 0 before it is noticed (FAIL-13)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast import training

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("FAIL-13")]


@pytest.fixture
def beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "heartbeat.json"
    monkeypatch.setenv("HOLDFAST_HEARTBEAT", str(path))
    return path


def planned(beat: Path) -> tuple[int, int]:
    value = json.loads(beat.read_text())
    return value["step"], value["planned_steps"]


def test_a_training_that_is_done_is_where_it_was_to_end(beat: Path, tmp_path: Path) -> None:
    with training.run(str(tmp_path / "run")) as run:
        for _ in run.steps(5):
            pass
    assert planned(beat) == (5, 5)


def test_a_script_that_leaves_its_loop_in_order_has_done_what_it_wanted(beat: Path, tmp_path: Path) -> None:
    with training.run(str(tmp_path / "run")) as run:
        for step in run.steps(5):
            if step == 2:
                run.finish()
    assert planned(beat) == (3, 3)


def test_an_exit_in_the_middle_is_before_the_planned_end(beat: Path, tmp_path: Path) -> None:
    def leave() -> None:
        with training.run(str(tmp_path / "run")) as run:
            for step in run.steps(5):
                if step == 2:
                    raise SystemExit(0)

    with pytest.raises(SystemExit):
        leave()
    assert planned(beat)[1] == 5
