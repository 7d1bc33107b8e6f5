"""The bytes of a checkpoint reach the disk whole, hashed, and in the order that makes a name a promise."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.training.storage import layout
from holdfast.training.storage.write import files
from tests.training.faults import support

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.contract


def whole(data: bytes) -> memoryview:
    """As the snapshot gives it: on a page, readable to the end of the last page."""
    import mmap

    room = mmap.mmap(-1, max(1, -(-len(data) // layout.PAGE)) * layout.PAGE)
    room[: len(data)] = data
    return memoryview(room)


SIZES = [
    0,
    1,
    4095,
    4096,
    4097,
    files.DIRECT_FROM - 1,
    files.DIRECT_FROM,
    (16 << 20) + 1,
    (32 << 20),
    (33 << 20) + 7,
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["whole", "pieces"])
def test_a_file_of_any_size_is_written_and_hashed_as_it_is(size: int, way: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 16) * (size // (1 << 16) + 1)
    data = data[:size]
    if way == "whole":
        source = files.FileSource("x", size, whole=whole(data))
    else:
        cut = [data[at : at + 5_000_011] for at in range(0, size, 5_000_011)]
        source = files.FileSource("x", size, pieces=lambda: map(memoryview, cut))
    (entry,) = files.write_files(str(tmp_path), [source])
    assert (tmp_path / "x").read_bytes() == data
    expected = [zlib.crc32(data[at : at + layout.CHUNK]) for at in range(0, size, layout.CHUNK)]
    assert (entry.bytes, list(entry.chunks)) == (size, expected)


def test_pieces_that_are_not_what_was_announced_are_no_checkpoint(tmp_path: Path) -> None:
    source = files.FileSource("x", 10, pieces=lambda: [memoryview(b"123")])
    with pytest.raises(OSError, match="3 bytes came, 10 were announced"):
        files.write_files(str(tmp_path), [source])


@pytest.mark.slow
def test_a_file_system_without_direct_writes_gets_plain_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some say yes to the flag and no to the write (EINVAL)."""
    import fcntl

    real = os.pwrite

    def picky(descriptor: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", picky)
    data = os.urandom(40 << 20)
    files.write_files(str(tmp_path), [files.FileSource("x", len(data), whole=whole(data))])
    assert (tmp_path / "x").read_bytes() == data


def test_writes_that_are_cut_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: max(layout.PAGE, len(data) // 3)], at))
    data = os.urandom(20 << 20)
    for name, lanes in (("direct", files.DIRECT_FROM), ("plain", 1 << 40)):
        monkeypatch.setattr(files, "DIRECT_FROM", lanes)
        files.write_files(str(tmp_path), [files.FileSource(name, len(data), whole=whole(data))])
        assert (tmp_path / name).read_bytes() == data


def test_a_file_system_that_takes_nothing_and_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="took no bytes"):
        files.write_files(str(tmp_path), [files.FileSource("x", 3, whole=whole(b"123"))])


@pytest.mark.parametrize("allowed", [0, 1])
def test_where_threads_are_refused_the_file_is_written_all_the_same(
    allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if len(started) >= allowed:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    data = os.urandom(40 << 20)
    files.write_files(str(tmp_path), [files.FileSource("x", len(data), whole=whole(data))])
    assert (tmp_path / "x").read_bytes() == data


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("surprise")])
def test_what_goes_wrong_in_a_thread_is_never_taken_for_done(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def fail(descriptor: int, data: Any, offset: int) -> int:
        if offset >= 16 << 20:
            raise error
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(type(error)):
        files.write_files(str(tmp_path), [files.FileSource("x", 40 << 20, whole=whole(bytes(40 << 20)))])


@pytest.mark.requirement("CKPT-08")
@pytest.mark.parametrize(
    ("blocks", "inodes", "words"),
    [
        (10, 1000, "14 MB are needed, 0 MB are free"),
        (10_000, 5, "18 free inodes are needed, 5 are left"),
        (10_000, 0, ""),
        (10_000, 18, ""),
    ],
)
def test_room_is_asked_for_before_anything_is_written(
    blocks: int, inodes: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some file systems have no inodes to count: zero of zero.
    disk = os.statvfs_result((4096, 4096, 0, blocks, blocks, 1000 if inodes else 0, inodes, inodes, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    if not words:
        files.check_room(str(tmp_path), 10_000_000, 10)
        return
    with pytest.raises(files.NoSpace, match=words):
        files.check_room(str(tmp_path), 10_000_000, 10)


@pytest.mark.requirement("LIB-06", "CKPT-05", "B-25")
def test_everything_is_synced_before_the_name_appears_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strace the same is seen from outside, in test_syscalls.py; this runs everywhere."""
    events: list[tuple[str, str]] = []

    def spy(name: str, where: Any) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            answer = real(*args, **options)
            events.append((name, where(args, answer)))
            return answer

        monkeypatch.setattr(os, name, call)

    def of(descriptor: int) -> str:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)

    spy("fsync", lambda args, _: of(args[0]))
    spy("pwrite", lambda args, _: of(args[0]))
    spy("rename", lambda args, _: os.path.relpath(args[1], tmp_path))
    result = support.save(tmp_path / "c", 3)
    assert result.ok
    judge_order(events, "c", "c/step-3")


def judge_order(events: list[tuple[str, str]], directory: str, final: str) -> None:
    """Files are synced after their last write, the record last, then the directory, the rename, and its directory."""
    visible = events.index(("rename", final))
    before, after = events[:visible], events[visible + 1 :]
    written = {path for kind, path in before if kind == "pwrite" and "/.step-" in path}
    assert {os.path.basename(path) for path in written} >= {"state.json", "checkpoint.json"}
    assert len(written) == 4, "two data files, the document, the record"
    for path in written:
        last = max(at for at, event in enumerate(before) if event == ("pwrite", path))
        assert ("fsync", path) in before[last:], f"{path} is not synced after its last write"
    record = next(path for path in written if path.endswith("checkpoint.json"))
    others = {path for path in written if path != record}
    first = before.index(("pwrite", record))
    assert all(("fsync", path) in before[:first] for path in others), "the record comes last"
    building = os.path.dirname(record)
    assert ("fsync", building) in before[before.index(("fsync", record)) :]
    assert ("fsync", directory) in after
