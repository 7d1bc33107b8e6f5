"""What a copy comes to when everything in it is tried: what is loaded, what is damaged, what nobody can tell."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from holdfast.core.code.manifest import FILE, CodeEntry
from holdfast.core.digest import sha256_hex
from holdfast.model.errors import StorageError
from holdfast.model.receipt import DAMAGED, LOADED, READ, UNTESTED, Tried
from holdfast.transfer.pull.copy import Copy
from holdfast.transfer.pull.trial import MOST_NAMED, NO_ARRAY, Trial, reread, try_copy
from tests.host.formats.trial.test_loading import array_pickle
from tests.training.faults import support

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files
RUN = "20261120-100000-digits-0a1b"
WEIGHTS = array_pickle("f8", (1,), bytes(8))
NUMBER = b"\x80\x04K\x01."
"""A pickle of 1."""


def list_entries(top: Path) -> tuple[CodeEntry, ...]:
    files = sorted(path for path in top.rglob("*") if path.is_file())
    return tuple(
        CodeEntry(str(path.relative_to(top)), FILE, sha256_hex(path.read_bytes()), path.stat().st_size)
        for path in files
    )


def judge(top: Path, *, live: bool = False) -> Trial:
    return try_copy(str(top), list_entries(top), live=live)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy with two checkpoints of ours."""
    for step in (2, 10):
        support.save(tmp_path / "copy" / "checkpoints", step)
    return tmp_path / "copy"


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_the_newest_checkpoint_that_is_whole_is_told(saved: Path) -> None:
    whole = judge(saved)
    assert (whole.checkpoint, whole.damaged) == ("checkpoints/step-10", ())
    assert [one.how for one in whole.tried if one.path == "checkpoints/step-10"] == [LOADED]
    # A save that was cut off, and one that was set aside, are nobody's damage.
    building = saved / "checkpoints" / ".step-11.0123abcd"
    shutil.copytree(saved / "checkpoints" / "step-10", building)
    for path in building.iterdir():
        os.truncate(path, path.stat().st_size // 2)
    shutil.copytree(building, saved / "checkpoints" / "step-3.bad-1")
    assert judge(saved).damaged == ()
    data = support.data_files(saved / "checkpoints" / "step-10")[0]
    support.flip_bit(data, random.Random(1))
    torn = judge(saved)
    assert torn.checkpoint == "checkpoints/step-2"
    assert "cannot be resumed from" in next(one.why for one in torn.damaged if one.path == "checkpoints/step-10")


def test_what_is_damaged_and_right_as_it_is_is_taken_by_its_name(tmp_path: Path) -> None:
    """A metric that was not measured yet is NaN: nobody else can tell that this is no damage."""
    for name in ("val.jsonl", "[1] loss.jsonl", "train.jsonl"):
        (tmp_path / name).write_text('{"loss": NaN}\n')
    found = try_copy(str(tmp_path), list_entries(tmp_path), live=False, accept=("val.*", "[1] loss.jsonl"))
    assert [one.path for one in found.damaged] == ["train.jsonl"]
    assert [one.path for one in found.accepted] == ["[1] loss.jsonl", "val.jsonl"]
    assert found.accepted[0].why == "line 1: it holds NaN, which is no number, in loss"


def test_what_changed_after_its_end_is_damaged_also_where_it_loads(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text('{"loss": NaN}')
    changed = dict.fromkeys(("a.json", "b.json", "gone.json"), "is another one")
    tried = try_copy(str(tmp_path), list_entries(tmp_path), live=False, accept=("b.json",), changed=changed)
    assert [(one.path, one.why) for one in tried.damaged] == [
        ("a.json", "is another one"),
        ("gone.json", "is another one"),
    ]
    assert tried.accepted[0].why.startswith("is another one; ")
    assert "NaN" in tried.accepted[0].why
    assert not tried.tried


@pytest.mark.slow
def test_no_number_of_other_files_hides_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for number in range(MOST_NAMED + 1):
        (tmp_path / f"{number}.json").write_text("{}")
    (tmp_path / "checkpoints" / "a.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "checkpoints" / "epoch_1.pkl").write_bytes(WEIGHTS)
    found = judge(tmp_path)
    assert found.checkpoint == "checkpoints/epoch_1.pkl"
    assert "checkpoints/a.gz" in [one.path for one in found.tried]


def test_records_that_a_killed_supervisor_tore_are_no_damage(tmp_path: Path) -> None:
    for path in ("attempts/1/events.jsonl", "artifacts/metrics.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text('{"a": 1}\n{"b"')
    assert [one.path for one in judge(tmp_path).damaged] == ["artifacts/metrics.jsonl"]
    assert judge(tmp_path, live=True).damaged == ()


def test_other_weights_are_told_by_their_steps_and_unknown_files_are_counted(tmp_path: Path) -> None:
    for name in ("epoch_9.pkl", "epoch_10.pkl", "epoch_11.pkl"):
        (tmp_path / name).write_bytes(WEIGHTS if name != "epoch_11.pkl" else b"\x80\x04")
    for number in range(5):
        (tmp_path / f"{number}.onnx").write_bytes(b"x")
    (tmp_path / "pic.gif").write_bytes(b"GIF89a" + bytes(7) + b";")
    found = judge(tmp_path)
    assert found.checkpoint == "epoch_10.pkl"
    assert [one.path for one in found.damaged] == ["epoch_11.pkl"]
    assert Tried("*.onnx", UNTESTED, "5 files: a format that is not known here") in found.tried
    assert "pic.gif" in [one.path for one in found.tried if one.how == READ]


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_the_newest_checkpoint_of_a_format_that_nobody_can_try_is_named(saved: Path) -> None:
    top, newest = saved / "checkpoints", os.stat(saved / "checkpoints" / "step-10").st_mtime + 10

    def write(name: str, data: bytes) -> None:
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_bytes(data)
        os.utime(top / name, (newest, newest))

    assert judge(saved).untried is None
    write(".lock", b"\0\0")
    write("latest", b"step-10\n")
    write("meta.json", b"{}")
    write("loss.gif", b"GIF89a" + bytes(7) + b";")
    assert judge(saved).untried is None, "neither text nor a picture is a checkpoint"
    write("epoch_9.msgpack", b"\x82\xff\0")
    write("epoch_10.msgpack", b"\x82\xff\0")
    found = judge(saved)
    assert found.untried == Tried("checkpoints/epoch_10.msgpack", UNTESTED, "a format that is not known here")
    assert found.checkpoint == "checkpoints/step-10"
    newest += 10
    write("sharded/weights.pkl", b"\x80\x04cmine\nNet\n)R.")
    write("sharded/config.json", b"{}")
    assert judge(saved).untried == Tried(
        "checkpoints/sharded/weights.pkl", UNTESTED, "holds code of mine.Net: not loaded"
    )
    newest += 10
    write("final.pkl", NUMBER)
    assert judge(saved).untried == Tried("checkpoints/final.pkl", UNTESTED, NO_ARRAY)
    newest += 10
    write("last.pkl", WEIGHTS)
    assert judge(saved).untried is None


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_what_holds_no_weights_is_no_checkpoint_that_was_loaded(tmp_path: Path) -> None:
    top = tmp_path / "checkpoints"
    top.mkdir()
    (tmp_path / "predictions.pkl").write_bytes(WEIGHTS)
    assert judge(tmp_path).checkpoint == "predictions.pkl", "a run without a directory of checkpoints"
    (top / "epoch_1.pkl").write_bytes(NUMBER)
    found = judge(tmp_path)
    assert (found.checkpoint, found.untried) == ("", Tried("checkpoints/epoch_1.pkl", UNTESTED, NO_ARRAY))
    (top / "epoch_1.pkl").write_bytes(WEIGHTS)
    assert (judge(tmp_path).checkpoint, judge(tmp_path).untried) == ("checkpoints/epoch_1.pkl", None)


@pytest.mark.requirement("VRFY-03")
def test_VRFY_03_checkpoints_that_are_text_are_a_persons_to_judge(tmp_path: Path) -> None:
    """XGBoost and others write models as JSON. Named as untried, a person can say that it loads."""
    top = tmp_path / "checkpoints"
    top.mkdir()
    for name in ("model-9.json", "model-10.json", ".hidden.json"):
        (top / name).write_text("{}")
    found = judge(tmp_path)
    assert found.untried == Tried("checkpoints/model-10.json", UNTESTED, "nothing among the checkpoints holds weights")
    assert (found.checkpoint, found.damaged) == ("", ())
    (top / "model-10.json").write_text("{")
    found = judge(tmp_path)
    assert [one.path for one in found.damaged] == ["checkpoints/model-10.json"]
    (tmp_path / "model.pkl").write_bytes(WEIGHTS)
    assert (judge(tmp_path).checkpoint, judge(tmp_path).untried) == ("model.pkl", None)


@pytest.mark.requirement("VRFY-03")
@pytest.mark.parametrize("accept", [("*",), ("checkpoints",)])
def test_VRFY_03_an_accepted_checkpoint_is_none_that_is_known_to_load(saved: Path, accept: tuple[str, ...]) -> None:
    def judge_accepted() -> Trial:
        return try_copy(str(saved), list_entries(saved), live=False, accept=accept)

    def name_newest() -> tuple[str, str] | None:
        found = judge_accepted().untried
        return None if found is None else (found.path, found.how)

    top, newest = saved / "checkpoints", os.stat(saved / "checkpoints" / "step-10").st_mtime + 10

    def write(name: str, data: bytes) -> None:
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_bytes(data)
        os.utime(top / name, (newest, newest))

    write("metrics.json", b'{"loss": NaN}')
    write("loss.png", b"")
    assert judge_accepted().accepted
    assert name_newest() is None, "neither is a checkpoint"
    for name, data in (("cut.pt", b"PK\3\4"), ("cut.tar", b""), ("cut.h5", b"\0\1\2"), ("hf/a.bin", b"")):
        newest += 10
        write(name, data)
        if name.startswith("hf/"):
            write("hf/larger.pkl", b"\x80\x04X\x05\0\0\0hello.")
        assert not judge_accepted().damaged
        assert name_newest() == (f"checkpoints/{name}", DAMAGED)
        assert judge(saved).untried is None, "its damage shuts the gate"
    for name in ("cut.pt", "cut.tar", "cut.h5"):
        (top / name).unlink()
    shutil.rmtree(top / "hf")
    first = support.data_files(top / "step-10")[0]
    os.truncate(first, os.path.getsize(first) // 2)
    found = judge_accepted()
    assert (found.damaged, found.checkpoint) == ((), "checkpoints/step-2")
    assert found.untried is not None
    assert (found.untried.path.split("/")[:2], found.untried.how) == (["checkpoints", "step-10"], DAMAGED)
    for directory in ("step-2", "step-10"):
        for file in support.data_files(top / directory):
            os.truncate(file, 0)
    assert judge_accepted().checkpoint == ""
    assert name_newest() is not None


def test_what_changed_at_home_behind_its_placing_is_found(tmp_path: Path, isolated_environment: dict[str, str]) -> None:
    assert isolated_environment
    top = tmp_path / "copy"
    top.mkdir()
    for name in ("run.json", "big.bin"):
        (top / name).write_bytes(b"{}")
    copy, entries = Copy(str(top), "gpu1", RUN, os.environ), list_entries(top)
    copy.look()
    reread(copy, entries)
    (top / "big.bin").write_bytes(b"[]")
    with pytest.raises(StorageError, match=r"big\.bin is not what arrived"):
        reread(copy, entries)
    (top / "big.bin").unlink()
    with pytest.raises(StorageError, match=r"big\.bin is not what arrived"):
        reread(copy, entries)
