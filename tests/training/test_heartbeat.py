"""The heartbeat: what is written and when, what it refuses, and that nothing of it ends a training."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import sys
import types
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.host.files import files
from holdfast.model.wire import clean_heartbeat
from holdfast.training.reporting import heartbeat
from holdfast.training.reporting.heartbeat import Heartbeat, NonFiniteValue
from tests.host.small_disk import fill, mount_small_disk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


class Bench:
    """A heartbeat with a clock that only moves when told, and its warnings."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.now = 100.0
        self.warnings: list[str] = []
        self.path, self.metrics = directory / "heartbeat.json", directory / "metrics.jsonl"
        self.beat = Heartbeat(
            str(self.path), str(self.metrics), clock=lambda: self.now, warn=self.warnings.append, **settings
        )

    def read(self) -> dict[str, Any]:
        value = json.loads(self.path.read_bytes())
        assert isinstance(value, dict)
        return value

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the metrics file, each of which is strict JSON."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not strict JSON")

        if not self.metrics.exists():
            return []
        return [json.loads(line, parse_constant=refuse) for line in self.metrics.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.requirement("LIB-07", "OBS-10")
def test_LIB_07_step_epoch_loss_phase_and_throughput_are_written(bench: Bench) -> None:
    bench.beat.phase("train")
    for step in range(1, 101):
        bench.now += 0.02
        bench.beat.step(step, epoch=3)
        bench.beat.log({"loss": 1 / step, "lr": 0.1})
    bench.beat.note(save_seconds=1.5, last_durable_step=90)
    bench.beat.flush()
    beat = bench.read()
    assert {name: beat[name] for name in ("step", "epoch", "phase", "loss")} == {
        "step": 100,
        "epoch": 3,
        "phase": "train",
        "loss": 0.01,
    }
    assert (beat["save_seconds"], beat["last_durable_step"], beat["nonfinite"]) == (1.5, 90, 0)
    assert beat["steps_per_s"] == pytest.approx(50, abs=1)
    assert beat["time"] > 1.7e9
    assert clean_heartbeat(beat) == beat, "the supervisor would drop a part of it"
    assert [row["step"] for row in bench.rows()] == list(range(1, 101))
    assert bench.rows()[-1].keys() == {"step", "epoch", "time", "loss", "lr"}


@pytest.mark.requirement("LIB-07")
def test_it_writes_at_its_rhythm_and_not_at_every_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(files, "commit", lambda path, data, durable: written.append(path))
    for step in range(1000):
        bench.now += 0.01
        bench.beat.step(step)
    assert 9 <= len(written) <= 11


def test_the_first_step_is_written_at_once(bench: Bench) -> None:
    bench.beat.step(7)
    assert bench.read()["step"] == 7
    assert bench.read()["steps_per_s"] is None


def test_a_phase_is_written_at_once(bench: Bench) -> None:
    bench.beat.step(7)
    bench.beat.step(8)
    bench.beat.phase("save")
    assert (bench.read()["phase"], bench.read()["step"]) == ("save", 8)


def test_a_fact_is_written_with_the_next_step(bench: Bench) -> None:
    bench.beat.step(7)
    bench.beat.note(last_durable_step=7)
    assert "last_durable_step" not in bench.read()
    bench.beat.step(8)
    assert bench.read()["last_durable_step"] == 7


def test_a_step_that_goes_back_has_no_throughput(bench: Bench) -> None:
    bench.beat.step(100)
    bench.now += 2
    bench.beat.step(40)
    assert bench.read()["steps_per_s"] is None
    bench.now += 2
    bench.beat.step(50)
    assert bench.read()["steps_per_s"] == 5.0


def test_a_flush_right_after_a_write_keeps_the_throughput(bench: Bench) -> None:
    bench.beat.step(0)
    bench.now += 2
    bench.beat.step(10)
    bench.now += 0.001
    bench.beat.flush()
    assert bench.read()["steps_per_s"] == 5.0


@pytest.mark.requirement("LIB-07")
def test_slow_writes_come_less_often(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []

    def commit_slowly(path: str, data: bytes, *, durable: bool) -> None:
        written.append(bench.now)
        bench.now += 0.1

    monkeypatch.setattr(files, "commit", commit_slowly)
    begin = bench.now
    for step in range(20_000):
        bench.now += 0.01
        bench.beat.step(step)
        bench.beat.phase("train" if step % 2 else "save")
    assert len(written) * 0.1 <= 0.015 * (bench.now - begin)
    assert len(written) > 10


def test_it_catches_up_at_once_unless_writes_are_slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.beat.step(1)
    bench.now += 0.1
    bench.beat.step(2)
    bench.beat.log({"loss": 0.5})
    bench.beat.catch_up()
    assert (bench.read()["step"], bench.rows()[-1]["loss"]) == (2, 0.5)

    def slow(path: str, data: bytes, durable: bool) -> None:
        bench.now += 5.0

    bench.beat.step(3)
    with monkeypatch.context() as disk:
        disk.setattr(files, "commit", slow)
        bench.beat.catch_up()
    bench.beat.step(4)
    bench.beat.catch_up()
    assert bench.read()["step"] == 2, "5 s of writing are paid for by a minute without"


def test_close_writes_the_rest_and_then_nothing(bench: Bench) -> None:
    bench.beat.step(1)
    bench.beat.step(2)
    bench.beat.log({"loss": 2.0})
    bench.beat.close()
    assert [row["loss"] for row in bench.rows()] == [2.0]
    bench.now += 100
    bench.beat.step(3)
    bench.beat.log({"loss": 3.0})
    bench.beat.phase("eval")
    bench.beat.note(save_seconds=1)
    bench.beat.step(4)
    bench.beat.close()
    assert bench.read()["step"] == 2
    assert len(bench.rows()) == 1


def test_without_paths_it_only_remembers(tmp_path: Path) -> None:
    beat = Heartbeat(None, None, every_s=0)
    for step in range(50):
        beat.step(step)
        beat.log({"loss": math.nan if step == 9 else 1.0})
        beat.phase(str(step))
    beat.close()
    assert beat.check_finite() == NonFiniteValue(9, "loss")
    assert beat.last == {"loss": 1.0}
    assert sorted(os.listdir(tmp_path)) == ["isolated"]


def test_files_are_for_the_owner_only(bench: Bench) -> None:
    bench.beat.step(1)
    bench.beat.log({"loss": 1.0})
    bench.beat.flush()
    for path in (bench.path, bench.metrics):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_an_earlier_crash_tore_costs_no_other(bench: Bench) -> None:
    bench.metrics.write_bytes(b'{"step":1,"lo')
    bench.beat.step(2)
    bench.beat.log({"loss": 1.0})
    bench.beat.flush()
    lines = bench.metrics.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["step"] == 2


# ------------------------------------------------------------------------------------------------------------ trouble


@pytest.mark.requirement("LIB-07")
def test_LIB_07_an_unwritable_path_is_one_warning_for_each_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "gone")
    for step in range(500):
        bench.now += 1
        bench.beat.step(step)
        bench.beat.log({"loss": 1.0})
        bench.beat.phase(str(step))
    bench.beat.close()
    assert len(bench.warnings) == 2
    assert "heartbeat.json cannot be written" in bench.warnings[0]
    assert "Training goes on" in bench.warnings[0]


def test_it_is_tried_again_less_and_less_often(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def fail(path: str, data: bytes, *, durable: bool) -> None:
        tried.append(bench.now)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "commit", fail)
    for step in range(1000):
        bench.now += 1
        bench.beat.step(step)
    pauses = [later - sooner for sooner, later in itertools.pairwise(tried)]
    assert pauses[:4] == [5, 10, 20, 40]
    assert set(pauses[4:]) == {60}


def test_rows_survive_a_while_without_a_file(tmp_path: Path) -> None:
    place = tmp_path / "late"
    bench = Bench(place)
    for step in range(20):
        bench.now += 1
        bench.beat.step(step)
        bench.beat.log({"loss": float(step)})
    place.mkdir()
    bench.beat.flush()
    assert [row["loss"] for row in bench.rows()] == [float(step) for step in range(20)]
    assert bench.read()["step"] == 19


def test_what_is_kept_without_a_file_is_bounded_and_the_loss_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "MOST_ROWS", 100)
    place = tmp_path / "late"
    bench = Bench(place)
    for step in range(1000):
        bench.beat.step(step)
        bench.beat.log({"loss": float(step)})
    place.mkdir()
    bench.beat.flush()
    bench.beat.flush()
    rows = bench.rows()
    assert len(rows) <= 101
    assert rows[-1]["step"] == 999
    assert bench.read()["metrics_dropped"] == 1000 - len(rows)


@pytest.mark.requirement("OBS-14")
def test_many_rows_between_two_writes_are_all_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "MOST_ROWS", 100)
    for step in range(1000):
        bench.beat.step(step)
        bench.beat.log({"loss": float(step)})
    bench.beat.close()
    assert [row["step"] for row in bench.rows()] == list(range(1000))


def test_a_full_disk_is_one_warning_and_no_torn_line(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 256 * 1024) as disk:
        bench = Bench(disk)
        bench.beat.step(0)
        bench.beat.log({"loss": 0.5})
        bench.beat.flush()
        ballast = fill(disk)
        for step in range(1, 300):
            bench.now += 1
            bench.beat.step(step)
            bench.beat.log({"loss": 0.5, "text": "x" * 150})
        assert bench.warnings
        assert "No space left" in bench.warnings[0]
        assert len(bench.warnings) <= 2
        ballast.unlink()
        bench.beat.flush()
        assert [row["step"] for row in bench.rows()] == list(range(300))
        assert [name for name in os.listdir(disk) if name.endswith(".tmp")] == []


@pytest.mark.requirement("LIB-07")
def test_a_fifo_is_refused_and_not_waited_for(bench: Bench) -> None:
    os.mkfifo(bench.metrics)
    os.mkfifo(bench.path)
    bench.beat.step(1)
    bench.beat.log({"loss": 1.0})
    bench.beat.flush()
    assert bench.read()["step"] == 1, "the heartbeat replaces what was there"
    assert len(bench.warnings) == 1
    assert "not a regular file" in bench.warnings[0]


def test_a_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    bench.path.symlink_to(victim)
    bench.metrics.symlink_to(victim)
    bench.beat.step(1)
    bench.beat.log({"loss": 1.0})
    bench.beat.flush()
    assert victim.read_text() == "precious"
    assert len(bench.warnings) == 1


def test_a_path_that_is_no_path_is_a_warning() -> None:
    warnings: list[str] = []
    beat = Heartbeat("a\0b", None, warn=warnings.append)
    beat.step(1)
    assert len(warnings) == 1


def test_a_closed_standard_error_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    beat = Heartbeat("/proc/no/such/place", None)
    beat.step(1)
    assert beat.nonfinite == 0


# ------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_value_that_is_not_finite_is_seen_and_stays_strict_json(bench: Bench, value: float, text: str) -> None:
    bench.beat.step(5)
    bench.beat.log({"lr": 0.1, "loss": value})
    bench.beat.flush()
    assert bench.rows()[0]["loss"] == text
    assert bench.beat.check_finite() == NonFiniteValue(5, "loss")
    assert bench.beat.nonfinite == 1
    assert bench.read()["nonfinite"] == 1
    assert not math.isfinite(bench.read()["loss"])
    assert clean_heartbeat(bench.read()) == pytest.approx(bench.read(), nan_ok=True)


def test_the_first_and_the_last_that_were_not_finite_are_known(bench: Bench) -> None:
    for step in range(10):
        bench.beat.step(step)
        bench.beat.log({"loss": math.nan if step in (3, 6) else 1.0})
    assert bench.beat.first_nonfinite == NonFiniteValue(3, "loss")
    assert bench.beat.last_nonfinite == NonFiniteValue(6, "loss")
    assert bench.beat.nonfinite == 2


def test_all_finite_is_none(bench: Bench) -> None:
    bench.beat.log({"loss": 1.0, "n": 3, "ok": True, "note": "nan"})
    assert bench.beat.check_finite() is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (3, 3),
        (True, True),
        (None, None),
        ("text", "text"),
        ("x" * 1000, "x" * 200),
        ("\udc80", "\udc80"),
        (Fraction(1, 4), 0.25),
        (1 << 70, float(1 << 70)),
    ],
)
def test_plain_values_are_kept(bench: Bench, value: object, read: object) -> None:
    bench.beat.log({"value": value})
    bench.beat.flush()
    assert bench.rows()[0]["value"] == read
    assert bench.warnings == []


@pytest.mark.parametrize("value", [[1], {"a": 1}, object(), 1j, b"x", 10**400, print])
def test_anything_else_is_left_out_with_one_warning(bench: Bench, value: object) -> None:
    for step in range(3):
        bench.beat.step(step)
        bench.beat.log({"odd": value, "loss": 1.0})
        bench.beat.note(strange=value)
    bench.beat.flush()
    assert [row["loss"] for row in bench.rows()] == [1.0] * 3
    assert all("odd" not in row for row in bench.rows())
    assert len(bench.warnings) == 2
    assert "'odd' is left out" in bench.warnings[0]


def test_a_value_named_step_does_not_hide_the_step(bench: Bench) -> None:
    bench.beat.step(5)
    bench.beat.log({"step": 99, "time": 1.0})
    bench.beat.flush()
    row = bench.rows()[0]
    assert (row["step"], row["logged_step"], row["logged_time"]) == (5, 99, 1.0)


def test_numpy_scalars_are_read_at_once() -> None:
    numpy = pytest.importorskip("numpy")
    beat = Heartbeat(None, None)
    array = numpy.array(2.5)
    beat.log({"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.bool_(1), "d": array, "e": numpy.float64("nan")})
    array[()] = 9
    assert {name: beat.last[name] for name in "abcd"} == {"a": 0.5, "b": 3, "c": True, "d": 2.5}
    assert beat.first_nonfinite == NonFiniteValue(None, "e")


def test_a_tensor_in_memory_is_read_before_it_changes(bench: Bench) -> None:
    torch = pytest.importorskip("torch")
    loss = torch.tensor(2.5, requires_grad=True)
    total = torch.zeros(1)
    bench.beat.step(1)
    bench.beat.log({"loss": loss * 2, "total": total, "half": torch.tensor(1.5, dtype=torch.bfloat16)})
    total += 7
    bench.beat.log({"loss": torch.tensor(float("inf"))})
    bench.beat.log({"many": torch.zeros(2), "unreal": torch.zeros((), device="meta")})
    bench.beat.flush()
    assert bench.rows()[0].items() >= {"loss": 5.0, "total": 0.0, "half": 1.5}.items()
    assert bench.beat.check_finite() == NonFiniteValue(1, "loss")
    assert len(bench.warnings) == 2
    assert "Tensor of shape (2,)" in bench.warnings[0]


class FakeTensor:
    """A tensor on a card: reading it is counted, and its memory may change after it was logged."""

    dtype = "float32"
    reads = 0

    def __init__(self, values: list[float], *, dead: bool = False) -> None:
        self.values, self.dead = values, dead
        self.device = types.SimpleNamespace(type="cuda")

    def __str__(self) -> str:
        raise AssertionError("printing a tensor reads it")

    def numel(self) -> int:
        return len(self.values)

    def detach(self) -> FakeTensor:
        return self

    def clone(self) -> FakeTensor:
        return FakeTensor(list(self.values), dead=self.dead)

    def reshape(self, shape: tuple[int, ...]) -> FakeTensor:
        return self

    def item(self) -> float:
        if self.dead or len(self.values) != 1:
            raise RuntimeError("CUDA error: device-side assert triggered")
        FakeTensor.reads += 1
        return self.values[0]

    def tolist(self) -> list[float]:
        if self.dead:
            raise RuntimeError("CUDA error: device-side assert triggered")
        FakeTensor.reads += 1
        return self.values


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> type[FakeTensor]:
    """A torch whose tensors lie on a card."""

    def stack(tensors: list[FakeTensor]) -> FakeTensor:
        return FakeTensor([tensor.values[0] for tensor in tensors], dead=any(tensor.dead for tensor in tensors))

    module = types.ModuleType("torch")
    module.Tensor, module.stack = FakeTensor, stack  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "torch", module)
    FakeTensor.reads = 0
    return FakeTensor


def test_a_card_is_read_once_for_all_steps_between_two_writes(bench: Bench, card: type[FakeTensor]) -> None:
    bench.beat.step(0)
    loss = card([0.0])
    for step in range(1, 50):
        loss.values[0] = step / 2
        bench.beat.step(step)
        bench.beat.log({"loss": loss, "lr": 0.1})
    bench.beat.phase("save")
    assert card.reads == 0, "neither a step nor a phase waits for the card"
    bench.beat.flush()
    assert card.reads == 1
    assert [row["loss"] for row in bench.rows()] == [step / 2 for step in range(1, 50)]
    assert bench.read()["loss"] == 24.5


def test_what_is_not_finite_on_a_card_is_found_before_a_save(bench: Bench, card: type[FakeTensor]) -> None:
    for step in range(5):
        bench.beat.step(step)
        bench.beat.log({"loss": card([math.nan if step == 2 else 1.0]), "norm": math.inf if step == 3 else 1.0})
    assert bench.beat.first_nonfinite == NonFiniteValue(3, "norm"), "the card has not been read yet"
    assert bench.beat.check_finite() == NonFiniteValue(2, "loss")
    assert bench.beat.nonfinite == 2


def test_a_dead_card_is_a_warning_and_costs_no_other_value(bench: Bench, card: type[FakeTensor]) -> None:
    bench.beat.log({"loss": card([1.0]), "broken": card([1.0], dead=True), "many": card([1.0, 2.0])})
    bench.beat.flush()
    assert bench.rows()[0]["loss"] == 1.0
    assert bench.rows()[0]["broken"] is None
    assert [warning.split()[0] for warning in bench.warnings] == ["'many'", "'broken'"]
