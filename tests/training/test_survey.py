"""Looking at a directory of checkpoints: everything in it is named, nothing in it is trusted."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from holdfast.training.errors import CannotResume
from holdfast.training.storage import layout, prints, survey
from holdfast.training.storage.survey import Kind
from tests.training.directories import damage, make_directory, rewrite, spread

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.contract


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path / "ck")


def kinds(path: Path) -> dict[str, Kind]:
    return {item.name: item.kind for item in survey.survey(str(path)).items}


def test_everything_in_a_directory_is_named(directory: Path) -> None:
    (directory / "step-3").rename(directory / "step-3.bad-1")
    (directory / ".step-9.abcd1234").mkdir()
    (directory / "step-2" / layout.RECORD).write_text("{", encoding="ascii")
    (directory / "best.pt").write_bytes(b"x")
    found = survey.survey(str(directory))
    assert kinds(directory) == {
        ".step-9.abcd1234": Kind.LEFT_OVER,
        "step-4": Kind.COMPLETE,
        "step-3.bad-1": Kind.SET_ASIDE,
        "step-2": Kind.DAMAGED,
        "step-1": Kind.COMPLETE,
    }
    assert found.foreign == ("best.pt",)
    assert [item.step for item in found.visible] == [4, 2, 1]


def test_a_missing_or_short_file_is_seen_without_reading_it(directory: Path) -> None:
    os.truncate(directory / "step-4" / "state.safetensors", 10)
    (directory / "step-3" / "second.safetensors").unlink()
    assert kinds(directory)["step-4"] is Kind.DAMAGED
    assert kinds(directory)["step-3"] is Kind.DAMAGED


def test_whether_a_run_writes_there_is_seen_by_its_lock(directory: Path) -> None:
    (directory / ".step-9.abcd1234").mkdir()
    with open(directory / layout.LOCK, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = survey.survey(str(directory))
        assert found.writing is True
        assert found.items[0].kind is Kind.BUILDING
    assert survey.survey(str(directory)).writing is False


def test_a_later_format_is_neither_right_nor_wrong(directory: Path) -> None:
    rewrite(directory / "step-4", version=layout.VERSION + 1)
    item = survey.look(str(directory / "step-4"))
    assert item.kind is Kind.NEWER
    assert survey.prove(item).unreadable


@pytest.mark.parametrize(
    "changes",
    [
        {"created": "yesterday"},
        {"metrics": [1]},
        {"world": 0},
        {"tracked": {"model": 3}},
        {"step": "4"},
        {"healthy": "yes"},
    ],
)
def test_a_record_with_values_of_other_types_is_damaged(directory: Path, changes: dict[str, object]) -> None:
    rewrite(directory / "step-4", **changes)
    assert survey.look(str(directory / "step-4")).kind is Kind.DAMAGED


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../step-3/state.safetensors"},
        {"path": "/etc/hostname"},
        {"chunk": 0},
        {"chunk": 1 << 50, "bytes": 1 << 49, "chunks": [1]},
        {"bytes": -1},
        {"chunks": []},
    ],
)
def test_a_record_that_points_elsewhere_or_asks_for_the_moon_is_damaged(
    directory: Path, change: dict[str, object]
) -> None:
    entry = {"path": "state.safetensors", "bytes": 100, "chunks": [0], "digest": "crc32", "chunk": 4096}
    rewrite(directory / "step-4", files=[{**entry, **change}])
    item = survey.look(str(directory / "step-4"))
    assert item.kind is Kind.DAMAGED
    assert not survey.prove(item).ok


def test_a_pipe_in_a_files_place_holds_nobody(directory: Path) -> None:
    for name in ("state.safetensors", layout.RECORD):
        (directory / "step-4" / name).unlink()
        os.mkfifo(directory / "step-4" / name)
        item = survey.look(str(directory / "step-4"))
        assert item.kind in (Kind.DAMAGED, Kind.UNREADABLE)
        assert not survey.prove(item).ok


def test_a_link_in_a_files_place_is_not_followed(directory: Path) -> None:
    (directory / "step-4" / "state.safetensors").unlink()
    (directory / "step-4" / "state.safetensors").symlink_to("../step-3/state.safetensors")
    assert not survey.prove(survey.look(str(directory / "step-4"))).ok


@pytest.mark.requirement("CKPT-04")
def test_a_turned_bit_is_found_in_each_file_and_nothing_else_is(directory: Path) -> None:
    item = survey.look(str(directory / "step-4"))
    read = 0

    def count(nbytes: int) -> None:
        nonlocal read
        read += nbytes

    assert item.record is not None
    assert survey.prove(item, count).ok
    assert read == item.record.nbytes
    for name in ("state.safetensors", "second.safetensors", "state.json"):
        damage(directory / "step-4", name)
        verdict = survey.prove(survey.look(str(directory / "step-4")))
        assert name in verdict.problems[0]
        damage(directory / "step-4", name)
    assert survey.prove(survey.look(str(directory / "step-4"))).ok


@pytest.mark.requirement("CKPT-13")
def test_a_missing_part_of_a_rank_makes_the_whole_wrong(directory: Path) -> None:
    spread(directory / "step-4", 2)
    assert survey.prove(survey.look(str(directory / "step-4"))).ok
    (directory / "step-4" / "rank-1" / "state.json").unlink()
    item = survey.look(str(directory / "step-4"))
    assert item.kind is Kind.DAMAGED
    assert not survey.prove(item).ok


def test_content_is_read_from_headers(directory: Path) -> None:
    item = survey.look(str(directory / "step-4"))
    damage(directory / "step-4")
    content = survey.read_content(item)
    assert [(info.key, info.code, info.shape, info.nbytes) for info in content.arrays["state"]] == [
        ("small", "U8", (3,), 3),
        ("weights", "F64", (1000,), 8000),
    ]
    assert content.documents["state"]["lr"] == 0.5
    with pytest.raises(CannotResume, match="no rank 1"):
        survey.read_content(item, 1)


def test_a_header_that_lies_is_an_error(directory: Path) -> None:
    item = survey.look(str(directory / "step-4"))
    for at, byte in ((0, b"\xff"), (6, b"\xff"), (9, b"\x00")):
        with open(directory / "step-4" / "state.safetensors", "r+b") as file:
            before = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), byte, at)
            with pytest.raises(layout.LayoutError):
                survey.read_content(item)
            os.pwrite(file.fileno(), before, at)
    assert survey.read_content(item).arrays


def test_digests_tell_which_part_differs(directory: Path, tmp_path: Path) -> None:
    one = prints.digest_parts(survey.look(str(directory / "step-4")))
    assert {"state", "second", "run.state.note"} < one.keys()
    assert any(name.startswith("run.random.") for name in one)
    again = prints.digest_parts(survey.look(str(make_directory(tmp_path / "again") / "step-4")))
    assert again == one
    other = prints.digest_parts(survey.look(str(directory / "step-3")))
    assert {name for name in one if one[name] != other[name]} == {"state", "second"}
