"""Looking at checkpoints while a run saves and prunes them: what has gone is never taken for wrong or absent."""

from __future__ import annotations

import shutil
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.training import api
from holdfast.training.storage import checkpoints, verified_read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("CKPT-04")]


def save(directory: Path, step: int) -> None:
    """What a run with keep_last=1 does: the newer one is durable, then the older one goes."""
    with training.run(directory, every=None, keep_last=1, asynchronous=False) as run:
        run.track(weights=array("d", [float(step)] * 100))
        for _ in run.steps(step):
            pass


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A directory in which a newer checkpoint replaces the one that is about to be read, so often as the list says."""
    left: list[int] = []
    save(tmp_path, 1)
    read = checkpoints.read_entry

    def replace_first(path: str, step: int) -> checkpoints.CheckpointEntry:
        if left and left.pop():
            monkeypatch.setattr(checkpoints, "read_entry", read)
            save(tmp_path, step + 1)
            monkeypatch.setattr(checkpoints, "read_entry", replace_first)
        return read(path, step)

    monkeypatch.setattr(checkpoints, "read_entry", replace_first)
    return left


@pytest.mark.parametrize("turns", [[1], [1, 0], [1, 1, 1], [0, 0, 1, 0, 1]])
def test_the_newest_is_found_however_often_it_is_replaced_meanwhile(
    busy: list[int], turns: list[int], tmp_path: Path
) -> None:
    busy += turns
    assert training.latest(tmp_path) == str(tmp_path / f"step-{1 + sum(turns)}")


def test_a_directory_that_never_rests_is_an_error_and_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def gone(path: str) -> checkpoints.CheckpointCheck:
        raise FileNotFoundError(path)

    monkeypatch.setattr(checkpoints, "verify", gone)
    with pytest.raises(OSError, match="replaced faster than they can be read"):
        training.latest(tmp_path)


def test_only_an_empty_directory_or_one_of_wrong_checkpoints_has_none(tmp_path: Path) -> None:
    assert training.latest(tmp_path / "none") is None
    assert training.latest(tmp_path) is None
    save(tmp_path, 1)
    (tmp_path / "step-1" / "state.json").write_bytes(b"{}")
    assert training.latest(tmp_path) is None


@pytest.mark.parametrize("call", [api.load, api.verify])
def test_one_that_is_pruned_while_it_is_read_is_said_to_be_gone(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    opened = verified_read._opened

    def prune_first(path: str, file: Any) -> Any:
        shutil.rmtree(path, ignore_errors=True)
        return opened(path, file)

    monkeypatch.setattr(verified_read, "_opened", prune_first)
    with pytest.raises(FileNotFoundError, match="removed while it was read: a newer one has replaced it"):
        call(tmp_path / "step-1")
