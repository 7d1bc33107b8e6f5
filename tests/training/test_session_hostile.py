"""What a hostile or unlucky script does to a run: an error that names it, and nothing saved where nobody finds it."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.model import step_names
from holdfast.training.storage import layout, verified_read
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

np = pytest.importorskip("numpy")


@pytest.mark.contract
@pytest.mark.requirement("CKPT-01")
def test_memory_that_was_given_back_is_named_and_not_read(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    with training.run(tmp_path, every=None) as run:
        run.track({"shard": freed})
        run.begin()
        with pytest.raises(training.CannotSave, match=r"state\.shard cannot be saved: .* given back"):
            run.save()


@pytest.mark.contract
@pytest.mark.requirement("CKPT-01")
def test_what_cannot_be_overwritten_is_replaced_in_its_dictionary(tmp_path: Path) -> None:
    for start, expected in ((1.0, 1.0), (9.0, 1.0)):
        fixed = np.full(3, start)
        fixed.flags.writeable = False
        state = {"fixed": fixed, "again": np.broadcast_to(np.float64(start), (2, 2))}
        with training.run(tmp_path, every=None) as run:
            run.track(state)
            for _ in run.steps(2):
                pass
        assert state["fixed"].tolist() == [expected] * 3
        assert state["again"].tolist() == [[expected] * 2] * 2


@pytest.mark.contract
def test_what_cannot_be_overwritten_is_refused_where_nothing_holds_it(tmp_path: Path) -> None:
    with (
        training.run(tmp_path) as run,
        pytest.raises(training.TrainingError, match="weights: an array that cannot be overwritten"),
    ):
        run.track(weights=np.broadcast_to(np.zeros(1), (4,)))


@pytest.mark.contract
@pytest.mark.parametrize("step", [-1, step_names.MOST_STEPS, float("nan"), None, "x"])
def test_a_step_under_whose_name_no_checkpoint_would_be_found_is_refused(tmp_path: Path, step: Any) -> None:
    with training.run(tmp_path, every=None) as run:
        run.begin()
        with pytest.raises(ValueError, match="give the number of complete steps"):
            run.beat(step)


@pytest.mark.contract
def test_after_its_block_a_run_saves_nothing(tmp_path: Path) -> None:
    with training.run(tmp_path, every=None) as run:
        for _ in run.steps(2):
            pass
    with pytest.raises(training.TrainingError, match="block has ended"):
        run.save()


@pytest.mark.contract
def test_a_directory_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("a file")
    with training.run(tmp_path / "here") as run, pytest.raises(training.TrainingError, match="here: File exists"):
        run.resume()


@pytest.mark.contract
@pytest.mark.requirement("CKPT-04")
def test_where_memory_is_short_a_file_is_mapped_and_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(3 * layout.PAGE + 5)
    (tmp_path / "a.safetensors").write_bytes(data)
    monkeypatch.setattr(verified_read, "LANES_FROM", 1)
    monkeypatch.setattr(verified_read, "memory_free", lambda: len(data))
    entry = layout.FileEntry("a.safetensors", len(data), (zlib.crc32(data),))
    found = verified_read.read_whole(str(tmp_path), entry)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(tmp_path / "a.safetensors") in maps.read()
    assert bytes(found) == data
    found[0:1] = bytes([data[0] ^ 1])
    assert (tmp_path / "a.safetensors").read_bytes() == data
    (tmp_path / "a.safetensors").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(layout.LayoutError):
        verified_read.read_whole(str(tmp_path), entry)


SCRIPT = """
import array, os, sys
from holdfast import training
state = {"a": array.array("d", [0.0] * 10)}
with training.run(sys.argv[1], every=2) as run:
    run.track(state)
    for step in run.steps(6):
        state["a"][0] += 1
        if len(sys.argv) > 2 and step == 2 and os.fork() == 0:
            continue
"""


@pytest.mark.process
@pytest.mark.parametrize("closed", [(0, 1, 2), (0, 1), (1,), (2,)], ids=str)
def test_a_script_whose_standard_streams_are_closed_saves(tmp_path: Path, closed: tuple[int, ...]) -> None:
    doors = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    command = f'exec "$0" -c "$1" "$2" {doors}'
    done = subprocess.run(["sh", "-c", command, sys.executable, SCRIPT, str(tmp_path)], check=False, timeout=LIMIT_S)
    assert done.returncode == 0
    assert training.verify(tmp_path / "step-6").ok


@pytest.mark.process
def test_a_forked_child_that_goes_on_with_the_loop_is_stopped_and_its_parent_is_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), "fork"],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "forked inside of the run's block" in done.stderr
    assert training.verify(tmp_path / "step-6").ok
