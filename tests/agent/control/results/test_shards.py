"""Many files become few archives, and the same files the same bytes."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.results.shards import pack_directory
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


@pytest.mark.requirement("STOR-07")
@pytest.mark.gotcha("U25")
def test_STOR_07_the_same_files_give_the_same_archives(tmp_path: Path) -> None:
    tops = tmp_path / "one", tmp_path / "other"
    for place, order in zip(tops, (range(500), reversed(range(500))), strict=True):
        for number in order:
            path = place / f"d{number % 7}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * number)
            os.utime(path, (number, 1000 + len(place.name) + number))
    done, again = (pack_directory(str(place), str(tmp_path / f"out-{place.name}"), 20_000) for place in tops)
    assert done.shards == again.shards == pack_directory(str(tops[0]), str(tmp_path / "out-one"), 20_000).shards
    assert 6 <= len(done.shards) <= 8
    assert sum(shard.files for shard in done.shards) == 500
    assert sorted(os.listdir(tmp_path / "out-one")) == sorted([*(shard.name for shard in done.shards), "shards.json"])
    with tarfile.open(tmp_path / "out-one" / done.shards[0].name) as archive:
        member = archive.getmembers()[1]
        file = archive.extractfile(member)
        assert file is not None
        assert file.read() == (tops[0] / member.name).read_bytes()


def test_what_cannot_be_packed_is_refused_or_named(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    with pytest.raises(StorageError, match="holds no file"):
        pack_directory(str(top), str(tmp_path / "out"), 100)
    (top / "a").write_bytes(b"1" * 1000)
    (top / "link").symlink_to("a")
    with pytest.raises(StorageError, match="is inside of"):
        pack_directory(str(top), str(top / "out"), 100)
    done = pack_directory(str(top), str(tmp_path / "out"), 100)
    assert (len(done.shards), done.left_out) == (1, ("link: is no regular file",))
    (top / "b").mkdir(mode=0)
    if os.geteuid():
        with pytest.raises(StorageError, match="b cannot be read"):
            pack_directory(str(top), str(tmp_path / "out"), 100)
    (top / "b").rmdir()
    with pytest.raises(StorageError, match="holds a"):
        pack_directory(str(tmp_path / "out"), str(top), 100)


def test_what_changes_while_it_is_packed_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "a").write_bytes(b"1" * 1000)
    real = tarfile.TarFile.addfile

    def grow(archive: tarfile.TarFile, *arguments: Any) -> None:
        real(archive, *arguments)
        with open(top / "a", "ab") as file:
            file.write(b"!")

    monkeypatch.setattr(tarfile.TarFile, "addfile", grow)
    with pytest.raises(StorageError, match="a changed while it was packed"):
        pack_directory(str(top), str(tmp_path / "out"), 100)
    monkeypatch.undo()
    assert pack_directory(str(top), str(tmp_path / "out"), 100).files == 1
