"""Reading with several threads: the bytes that were written, or what is wrong with the first wrong chunk."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

import pytest

from holdfast.training.storage import layout, verified_read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files

CHUNK = 1 << 16
SIZE = 10 * CHUNK + 5


@pytest.fixture(autouse=True, params=["one thread", "several", "in pieces"])
def _lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "one thread":
        monkeypatch.setattr(verified_read, "LANES_FROM", 1)
    if request.param == "in pieces":
        monkeypatch.setattr(verified_read, "PIECE", 1000)


@pytest.fixture
def entry(tmp_path: Path) -> layout.FileEntry:
    data = os.urandom(SIZE)
    (tmp_path / "a.safetensors").write_bytes(data)
    digests = tuple(zlib.crc32(data[at : at + CHUNK]) for at in range(0, SIZE, CHUNK))
    return layout.FileEntry("a.safetensors", SIZE, digests, chunk=CHUNK)


@pytest.mark.requirement("CKPT-04")
def test_what_is_read_is_what_was_written(entry: layout.FileEntry, tmp_path: Path) -> None:
    assert bytes(verified_read.read_whole(str(tmp_path), entry)) == (tmp_path / "a.safetensors").read_bytes()
    verified_read.verify_file(str(tmp_path), entry)


@pytest.mark.parametrize("places", [[0], [SIZE - 1], [7 * CHUNK, 3 * CHUNK + 1, SIZE - 1]])
def test_the_first_wrong_chunk_is_named(entry: layout.FileEntry, tmp_path: Path, places: list[int]) -> None:
    with open(tmp_path / "a.safetensors", "r+b") as file:
        for place in places:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
    start = min(places) // CHUNK * CHUNK
    for read in (verified_read.read_whole, verified_read.verify_file):
        with pytest.raises(
            layout.LayoutError, match=rf"bytes from {start} to {min(start + CHUNK, SIZE)} are not those"
        ):
            read(str(tmp_path), entry)


def test_a_file_that_cannot_be_read_is_no_verdict(
    entry: layout.FileEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int, _buffers: object, _offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(OSError, match="Input/output error"):
        verified_read.verify_file(str(tmp_path), entry)


def test_a_link_in_the_place_of_a_file_is_wrong(entry: layout.FileEntry, tmp_path: Path) -> None:
    os.rename(tmp_path / "a.safetensors", tmp_path / "b")
    os.symlink("b", tmp_path / "a.safetensors")
    with pytest.raises(layout.LayoutError, match="no regular file"):
        verified_read.verify_file(str(tmp_path), entry)
