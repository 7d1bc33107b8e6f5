"""Pruning by hand: what stays has been proven before anything goes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from holdfast.training.errors import NoValidCheckpoint
from holdfast.training.storage import survey
from holdfast.training.storage.checkpoints import Retention
from holdfast.training.storage.write import prune as pruning
from tests.training.directories import damage, make_directory, rewrite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("CKPT-07")]


def prune(path: Path, keep: Retention, *, aside: bool = False, leftovers: bool = False) -> list[str]:
    chosen = pruning.prove_kept(survey.survey_directory(str(path)), keep, aside=aside, leftovers=leftovers)
    for item in chosen.victims:
        pruning.remove_entry(item)
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "ck", steps=5, loss=(5.0, 1.0, 3.0, 4.0, 2.0))
    assert prune(path, Retention(1, 1)) == ["step-2", "step-5"]


def test_a_wrong_one_does_not_count_and_is_left_alone(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "ck")
    damage(path / "step-4")
    assert prune(path, Retention(1)) == ["step-3", "step-4"]


def test_nothing_goes_when_nothing_that_stays_is_right(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "ck", steps=3)
    for step in (1, 2, 3):
        damage(path / f"step-{step}")
    found = survey.survey_directory(str(path))
    # By their records two would go; each that is read turns out wrong, so that in the end none is left to remove.
    assert len(pruning.plan_pruning(found, Retention(1)).victims) == 2
    assert prune(path, Retention(1)) == ["step-1", "step-2", "step-3"]
    (path / "step-9.bad-1").mkdir()
    with pytest.raises(NoValidCheckpoint, match="nothing was removed"):
        prune(path, Retention(1), aside=True)


def test_the_last_one_without_nan_stays(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "ck")
    for step in (3, 4):
        rewrite(path / f"step-{step}", healthy=False)
    assert prune(path, Retention(1)) == ["step-2", "step-4"]


def test_what_stands_beside_goes_only_when_asked_for(tmp_path: Path) -> None:
    path = make_directory(tmp_path / "ck", steps=1)
    for name in ("step-9.bad-1", ".step-8.abcd12"):
        (path / name).mkdir()
    assert prune(path, Retention(1)) == [".step-8.abcd12", "step-1", "step-9.bad-1"]
    assert prune(path, Retention(1), aside=True) == [".step-8.abcd12", "step-1"]
    assert prune(path, Retention(1), leftovers=True) == ["step-1"]


@pytest.mark.parametrize("seed", range(6))
def test_a_right_one_always_remains_if_there_was_one(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = make_directory(tmp_path / "ck", steps=6)
    for step in draw.sample(range(1, 7), draw.randrange(6)):
        damage(path / f"step-{step}", draw.choice(["state.json", "state.safetensors", "checkpoint.json"]), 20)
    for _ in range(3):
        prune(path, Retention(draw.randrange(1, 4), draw.randrange(3)))
        assert any(survey.verify_entry(item).ok for item in survey.survey_directory(str(path)).visible)
