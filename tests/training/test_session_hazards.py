"""What a script may do that would make a checkpoint lie: each is done, and the checkpoint is right."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.training.storage import checkpoints
from holdfast.training.storage.directory_lock import DirectoryLock
from holdfast.training.storage.write import files, writer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.contract


def test_a_save_in_the_body_of_steps_is_of_the_step_that_the_body_completes(tmp_path: Path) -> None:
    state = {"updates": 0}
    with training.run(tmp_path, every=None, keep_last=9) as run:
        run.track(state)
        for step in run.steps(5):
            state["updates"] += 1
            if step == 2:
                save = run.save()
                with pytest.raises(TimeoutError, match="when its step is complete"):
                    save.result()
                with pytest.raises(training.TrainingError, match="the step is not complete"):
                    run.save(wait=True)
            if step == 3:
                assert training.load(save.result()) == {"state": {"updates": 3}}
                assert save.done
    assert save.step == 3


def test_a_beat_of_the_scripts_own_inside_of_steps_skips_no_step(tmp_path: Path) -> None:
    seen = []
    with training.run(tmp_path, every=None) as run:
        for step in run.steps(4):
            seen.append(step)
            run.beat(step + 1)
    assert seen == [0, 1, 2, 3]


def test_a_nan_that_is_logged_more_seldom_than_saved_does_not_cost_the_last_finite_one(tmp_path: Path) -> None:
    with training.run(tmp_path, every=5, keep_last=2) as run:
        for step in run.steps(30):
            if step % 10 == 0:
                run.log(loss=math.nan if step >= 10 else 1.0)
    kept = {entry.step: entry.record.healthy for entry in checkpoints.list_entries(str(tmp_path)) if entry.record}
    assert kept == {30: False, 25: False, 10: True}


def test_a_loop_that_is_left_inside_of_a_step_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with training.run(tmp_path, every=None) as run:
        for step in run.steps(9):
            if step == 4:
                break
    assert "the loop was left inside of step 4, which is not saved; the newest checkpoint is none" in (
        capsys.readouterr().err
    )


def test_numbers_of_numpy_are_steps_and_epochs(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    with training.run(tmp_path, every=None) as run:
        run.begin()
        run.epoch = np.int64(3)
        run.beat(np.int64(2))
        assert run.save(wait=True).result().endswith("step-2")


@pytest.mark.slow
def test_an_array_of_the_other_byte_order_comes_back(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    for steps in (1, 3):
        values = np.arange(3, dtype=">f8")
        with training.run(tmp_path) as run:
            run.track(values=values)
            for _ in run.steps(steps):
                values += 1
    assert values.tolist() == [3.0, 4.0, 5.0]


def test_a_full_disk_does_not_keep_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    DirectoryLock(str(tmp_path), print).release()


def test_a_rank_that_fails_is_not_waited_for_and_nothing_is_committed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 fails before rank 0 begins to wait: rank 0 gives up at once, though it would wait for 10 minutes."""
    data = memoryview(b"{}")

    def save(rank: int) -> writer.SaveResult:
        job = writer.SaveJob(str(tmp_path / "c"), "abcd0000", 1, (), {}, rank=rank, world=2, keep={"last": 1})
        return writer.perform_save(job, [files.FileSource(f"{'rank-1/' * rank}state.json", 2, data)], [])

    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(files, "write_files", broken)
        assert save(1).errno == errno.EIO
    result = save(0)
    assert (result.ok, result.errno) == (False, errno.ECANCELED)
    assert "rank 1 could not save its part" in result.message
    assert os.listdir(tmp_path / "c") == []


def test_a_roster_whose_files_are_gone_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(b"{}")
    building = tmp_path / "c" / ".step-1.abcd0000"

    def save(rank: int) -> writer.SaveResult:
        job = writer.SaveJob(str(tmp_path / "c"), "abcd0000", 1, (), {}, rank=rank, world=2, keep={"last": 1})
        return writer.perform_save(job, [files.FileSource(f"{'rank-1/' * rank}state.json", 2, data)], [])

    monkeypatch.setattr(writer, "ROSTER_WAIT_S", 0.0)
    (building / "rank-1").mkdir(parents=True)
    (building / "roster-1.json").write_text('[{"path": "rank-1/state.json", "bytes": 2, "chunks": [0]}]')
    result = save(0)
    assert (result.ok, result.errno) == (False, errno.ENOENT)
    assert os.listdir(tmp_path / "c") == []
