"""The heartbeat says where an attempt began and where the training is to end: an exit with 0 before it is noticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from holdfast import training

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "heartbeat.json"
    monkeypatch.setenv("HOLDFAST_HEARTBEAT", str(path))
    return path


def planned(beat: Path) -> tuple[int, int]:
    value = json.loads(beat.read_text())
    return value["step"], value["planned_steps"]


@pytest.mark.requirement("FAIL-13")
def test_a_training_that_is_done_is_where_it_was_to_end(beat: Path, tmp_path: Path) -> None:
    with training.run(str(tmp_path / "run")) as run:
        for _ in run.steps(5):
            pass
    assert planned(beat) == (5, 5)


@pytest.mark.requirement("FAIL-13")
def test_a_script_that_leaves_its_loop_in_order_has_done_what_it_wanted(beat: Path, tmp_path: Path) -> None:
    with training.run(str(tmp_path / "run")) as run:
        for step in run.steps(5):
            if step == 2:
                run.finish()
    assert planned(beat) == (3, 3)


@pytest.mark.requirement("FAIL-13")
def test_an_exit_in_the_middle_is_before_the_planned_end(beat: Path, tmp_path: Path) -> None:
    def leave() -> None:
        with training.run(str(tmp_path / "run")) as run:
            for step in run.steps(5):
                if step == 2:
                    raise SystemExit(0)

    with pytest.raises(SystemExit):
        leave()
    assert planned(beat)[1] == 5


@pytest.mark.requirement("LIB-07")
def test_LIB_07_with_a_save_the_heartbeat_is_as_new_as_the_checkpoint(beat: Path, tmp_path: Path) -> None:
    with training.run(str(tmp_path / "run"), every=2) as run:
        told = {step: json.loads(beat.read_text())["step"] for step in run.steps(7)}
    assert {step: seen for step, seen in told.items() if step and step % 2 == 0} == {2: 2, 4: 4, 6: 6}


@pytest.mark.requirement("MON-07")
def test_MON_07_the_first_step_is_told_at_once_with_where_the_attempt_began(beat: Path, tmp_path: Path) -> None:
    def attempt() -> list[tuple[int, int]]:
        told = []
        with training.run(str(tmp_path / "run")) as run:
            begin = run.begin()
            for step in range(begin, begin + 3):
                value = json.loads(beat.read_text())
                told.append((value["start_step"], value["step"]))
                run.beat(step + 1)
            run.finish()
        return told

    assert attempt()[:2] == [(0, 0), (0, 1)]
    assert attempt()[:2] == [(3, 3), (3, 4)]


@pytest.mark.requirement("OBS-06")
@pytest.mark.parametrize(("given", "warned"), [(0, True), (3, False), (None, False)])
def test_OBS_06_a_seed_that_is_not_the_jobs_is_warned_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: int | None,
    warned: bool,
) -> None:
    monkeypatch.setenv("HOLDFAST_SEED", "3")
    with training.run(str(tmp_path / "run"), seed=given) as run:
        run.begin()
        run.finish()
    said = capsys.readouterr().err
    assert ("WARNING: this training uses seed 0, which the script gives, and not seed 3" in said) is warned
