"""A copy is held against its own roster, whatever became of its source."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.core.code.manifest import (
    DIRECTORY,
    DIRECTORY_SUM,
    FILE,
    LINK,
    ROSTER,
    RUN_FORMAT,
    CodeEntry,
    build_manifest,
    hash_link,
)
from holdfast.core.digest import sha256_hex
from holdfast.core.pull.stream import PULLING
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.receipt import COPY, RECEIPT, CopyMark, Receipt
from holdfast.model.record import replace
from holdfast.transfer.pull.earlier import read_receipt_of
from holdfast.transfer.pull.verify import verify_copy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files
RUN = "20261120-100000-digits-0a1b"
FILES = {"artifacts/a.bin": b"a" * 100, "artifacts/b.bin": b"b", "run.json": b"{}"}
AT = "2026-11-20T10:00:05.000Z"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of three files, a link and an empty directory, with receipt and roster."""
    entries = [CodeEntry(path, FILE, sha256_hex(data), len(data)) for path, data in FILES.items()]
    entries += [CodeEntry("best", LINK, hash_link(b"run.json"), 8), CodeEntry("work", DIRECTORY, DIRECTORY_SUM, 0)]
    for path, data in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    (tmp_path / "best").symlink_to("run.json")
    (tmp_path / "work").mkdir()
    roster = build_manifest(entries, RUN_FORMAT)
    (tmp_path / ROSTER).write_bytes(roster.data)
    receipt = Receipt("gpu1", RUN, 1, "0" * 64, 4, 0, AT, AT, str(tmp_path), copied=sha256_hex(roster.data))
    (tmp_path / RECEIPT).write_bytes(wire.to_bytes(receipt))
    (tmp_path / COPY).write_bytes(wire.to_bytes(CopyMark("gpu1", RUN, AT, live=False)))
    return tmp_path


@pytest.mark.requirement("VRFY-04")
def test_what_differs_or_is_gone_is_named_and_all_else_is_whole(home: Path) -> None:
    (home / "work" / "mine.txt").write_text("more of my own is no damage")
    told: list[tuple[int, int]] = []
    whole = verify_copy(str(home), lambda done, total: told.append((done, total)))
    assert (whole.files, whole.damaged, whole.pulled_at, whole.place) == (4, (), AT, "gpu1")
    assert told[-1] == (103, 111)
    before = (home / "artifacts" / "a.bin").stat()
    (home / "artifacts" / "a.bin").write_bytes(b"a" * 99 + b"x")
    os.utime(home / "artifacts" / "a.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    (home / "artifacts" / "b.bin").unlink()
    (home / "best").unlink()
    (home / "best").symlink_to("artifacts")
    (home / "run.json").unlink()
    os.mkfifo(home / "run.json")
    assert [(one.path, one.why) for one in verify_copy(str(home)).damaged] == [
        ("artifacts/a.bin", "is not what was pulled"),
        ("artifacts/b.bin", "is not there any more"),
        ("best", "is not what was pulled"),
        ("run.json", "is not what was pulled"),
    ]


def test_without_what_was_pulled_nothing_is_called_whole(home: Path, tmp_path: Path) -> None:
    (home / ROSTER).write_bytes(b"other")
    with pytest.raises(StorageError, match="another one") as caught:
        verify_copy(str(home))
    assert caught.value.hint == f"holdfast pull gpu1:{RUN} {home}"
    (home / RECEIPT).unlink()
    with pytest.raises(StorageError, match="has no receipt"):
        verify_copy(str(home))
    (tmp_path / COPY).unlink()
    with pytest.raises(UsageError, match="is no copy"):
        verify_copy(str(home))


@pytest.mark.requirement("VRFY-04")
def test_what_a_later_pull_may_have_put_there_is_not_called_damaged(home: Path) -> None:
    (home / PULLING).mkdir()
    assert verify_copy(str(home)).damaged == (), "every byte is what was pulled, whatever else is under way"
    (home / "artifacts" / "b.bin").write_bytes(b"a later one")
    with pytest.raises(StorageError, match="a later pull is unfinished, or at work") as caught:
        verify_copy(str(home))
    assert caught.value.exit_code == 74
    assert f"holdfast pull gpu1:{RUN} {home}" in str(caught.value.hint)
    (home / PULLING).rmdir()
    assert [one.path for one in verify_copy(str(home)).damaged] == ["artifacts/b.bin"]


def test_a_pull_that_comes_to_its_end_while_the_copy_is_read_is_seen(home: Path) -> None:
    (home / "artifacts" / "b.bin").write_bytes(b"a later one")

    def end_pull(done: int, _total: int) -> None:
        if done == 100:
            other = replace(read_receipt_of(str(home)), verified_at="2026-11-21T10:00:05.000Z")
            (home / RECEIPT).write_bytes(wire.to_bytes(other))

    with pytest.raises(StorageError, match="came to its end meanwhile"):
        verify_copy(str(home), end_pull)
