"""One plain file out of a checkpoint, which others open without us."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import training
from holdfast.training.errors import NoValidCheckpoint, TrainingError
from holdfast.training.storage.export import export, guess_format
from tests.training.directories import damage, make_directory, spread

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_directory(tmp_path / "ck", steps=2) / "step-2"


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, Any, Any]:
    """A checkpoint of a torch model and its optimizer, large enough for several chunks."""
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 3), torch.nn.BatchNorm1d(3))
    model.register_buffer("big", torch.arange(9_000_001, dtype=torch.float32))
    model.register_buffer("narrow", torch.ones(5, dtype=torch.bfloat16))
    model.register_buffer("flags", torch.tensor([True, False, True]))
    optimizer = torch.optim.AdamW(model.parameters())
    extra = {"table": numpy.arange(6.0).reshape(2, 3), "rng": numpy.random.default_rng(0), 5: {1, 2}, "t": (1, 2.5)}
    with training.run(tmp_path / "ck", every=None, asynchronous=False) as run:
        run.track(model=model, optimizer=optimizer, extra=extra)
        for _ in run.steps(1):
            model(torch.randn(4, 7)).sum().backward()
            optimizer.step()
    return tmp_path / "ck" / "step-1", model, optimizer


def test_a_format_is_guessed_from_the_ending() -> None:
    assert [guess_format(name) for name in ("m.safetensors", "m.PT", "m.pth", "m")] == [
        "safetensors", "torch", "torch", None,
    ]  # fmt: skip


@pytest.mark.slow
def test_one_name_keeps_its_keys_and_several_get_it_in_front(trained: tuple[Path, Any, Any], tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.torch").load_file
    path, model, _ = trained
    made = export(str(path), str(tmp_path / "m.safetensors"), form="safetensors", names=["model"])
    assert made.bytes == os.path.getsize(made.path)
    loaded = load(made.path)
    state = model.state_dict()
    assert loaded.keys() == state.keys()
    assert all(loaded[key].equal(value) and loaded[key].dtype == value.dtype for key, value in state.items())
    whole = load(export(str(path), str(tmp_path / "all.safetensors"), form="safetensors").path)
    assert all(whole[f"model.{key}"].equal(value) for key, value in state.items())
    assert any(key.startswith("optimizer.state.0.") for key in whole)


@pytest.mark.slow
def test_a_torch_file_loads_without_executing_anything(trained: tuple[Path, Any, Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path, model, optimizer = trained
    export(str(path), str(tmp_path / "m.pt"), form="torch", names=["model"])
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    model.load_state_dict(loaded)
    assert loaded["big"].equal(model.big)
    export(str(path), str(tmp_path / "all.pt"), form="torch")
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    optimizer.load_state_dict(whole["optimizer"])
    assert whole["extra"]["table"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert whole["extra"][5] == {1, 2}
    assert whole["extra"]["t"] == (1, 2.5)
    assert whole["run"] == {"step": 1, "epoch": None, "state": {}}


@pytest.mark.slow
def test_arrays_without_torch_or_numpy_are_exported_too(checkpoint: Path, tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy").load_file
    loaded = load(export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors", names=["state"]).path)
    assert loaded["weights"][0] == 2.0
    assert bytes(loaded["small"]) == b"abc"


@pytest.mark.slow
def test_a_wrong_checkpoint_is_not_exported_and_nothing_is_left(checkpoint: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    damage(checkpoint, "second.safetensors")
    for form in ("safetensors", "torch"):
        with pytest.raises(NoValidCheckpoint, match="second"):
            export(str(checkpoint), str(tmp_path / "x"), form=form, names=["state"])
    assert sorted(os.listdir(tmp_path)) == before


def test_an_existing_file_stays_unless_it_is_to_be_overwritten(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    out.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        export(str(checkpoint), str(out), form="safetensors")
    assert out.read_bytes() == b"mine"
    export(str(checkpoint), str(out), form="safetensors", overwrite=True)
    assert stat.S_IMODE(out.stat().st_mode) & 0o600 == 0o600
    assert out.stat().st_size > 8000
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


@pytest.mark.slow
def test_a_link_in_the_outputs_place_is_not_written_through(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"keep")
    (tmp_path / "x.safetensors").symlink_to("victim")
    with pytest.raises(FileExistsError):
        export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors")
    export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors", overwrite=True)
    assert (tmp_path / "victim").read_bytes() == b"keep"


@pytest.mark.requirement("CKPT-13")
def test_what_each_rank_saved_for_itself_needs_a_rank(checkpoint: Path, tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy").load_file
    spread(checkpoint, 2, replicated=("second",))
    with pytest.raises(TrainingError, match="each of the 2 ranks saved its own state"):
        export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors")
    with pytest.raises(TrainingError, match="no rank 2"):
        export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors", rank=2)
    made = export(str(checkpoint), str(tmp_path / "x.safetensors"), form="safetensors", rank=1)
    assert set(load(made.path)) == {"state.weights", "state.small", "second.second"}
    assert made.names == ("second", "state")
    assert export(str(checkpoint), str(tmp_path / "y.safetensors"), form="safetensors", names=["second"]).arrays == 1


@pytest.mark.slow
def test_names_that_are_not_there_are_told(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no 'weights'; it has second, state"):
        export(str(checkpoint), str(tmp_path / "x.pt"), form="torch", names=["weights"])
