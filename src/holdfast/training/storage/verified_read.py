"""Reading the files of a checkpoint: no byte is given out before it was compared with the commit record.

Large files are read by a few threads, each a chunk at a time and of that a piece at a time, which is hashed while the
processor's cache still holds it. The kernel copies and zlib hashes without the GIL, so one thread hashes while others
wait for the disk. They go into memory in huge pages where the kernel has them: to clear 120,000 pages of 4 KiB for
500 MB takes longer than to read and hash what comes into them.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.training.errors import CannotResume

from . import layout
from .write.snapshot import HEADROOM, advise_huge, memory_free

LANES = 4
LANES_FROM = 64 << 20
"""Files of at least this many bytes are read by `LANES` threads."""
PIECE = 1 << 20
"""Bytes that are read and hashed at a time."""


def read_whole(path: str, file: layout.FileEntry) -> bytearray | mmap.mmap:
    """One file of the checkpoint in `path`, proven.

    Where memory has no room for it beside the state that it is for, it is mapped: the kernel then gives the pages back
    and reads them again, instead of killing a run at each of its starts. Writes to the map do not reach the file.

    Raises:
        LayoutError: its bytes are not those that were written.
        CannotResume: there is no memory for it at all.
        OSError: it cannot be read.
    """
    with _opened(path, file) as descriptor:
        room = _find_room(file)
        _Reading(descriptor, file, None if room is None else memoryview(room)).run()
        return _map(descriptor, path, file) if room is None else room


def _find_room(file: layout.FileEntry) -> bytearray | mmap.mmap | None:
    """Memory for the file; None where there is none. Small files have a `bytearray`, large ones pages of their own."""
    free = memory_free() if file.bytes >= LANES_FROM else None
    if free is not None and free < file.bytes * HEADROOM:
        return None
    if file.bytes < PIECE:
        return bytearray(file.bytes)
    try:
        room = mmap.mmap(-1, file.bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None
    advise_huge(room)
    return room


def _map(descriptor: int, path: str, file: layout.FileEntry) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, file.bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        # Not the file's fault: an earlier checkpoint, which would be tried next, is no smaller.
        raise CannotResume(
            f"{os.path.join(path, file.path)} cannot be read: {file.bytes / 1e6:,.0f} MB, {error.strerror or error}",
            "give the run more memory (ulimit -v, the limit of its group)",
        ) from None


def verify_file(path: str, file: layout.FileEntry) -> None:
    """Read one file of the checkpoint in `path` and compare every byte.

    Raises:
        LayoutError: its bytes are not those that were written.
        OSError: it cannot be read.
    """
    with _opened(path, file) as descriptor:
        _Reading(descriptor, file, None).run()


def read_pieces(path: str, file: layout.FileEntry, buffer: memoryview) -> Iterator[memoryview]:
    """Read one file of a checkpoint chunk by chunk, each proven before it is given out.

    `buffer` holds either one chunk, which every next one overwrites, or the whole file.

    Raises:
        LayoutError: its bytes are not those that were written.
        OSError: it cannot be read.
    """
    with _opened(path, file) as descriptor:
        for at in range(len(file.chunks)):
            start, end = _span(file, at)
            target = buffer[start:end] if len(buffer) == file.bytes else buffer[: end - start]
            _read_chunk(descriptor, file, at, target)
            yield target


@contextmanager
def _opened(path: str, file: layout.FileEntry) -> Iterator[int]:
    """The file, when it has the size that its entry names: a record may name any, and memory is not free."""
    if file.digest != "crc32" or not is_own_path(file.path) or len(file.chunks) != -(-file.bytes // file.chunk):
        raise layout.LayoutError(f"{file.path}: its entry in {layout.RECORD} makes no sense")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a planted pipe must not hold the reader
    where = os.path.join(path, file.path)
    _check_size(os.lstat(where), file)  # a link is wrong; to open it would only fail, which is no verdict
    descriptor = os.open(where, flags)
    try:
        _check_size(os.fstat(descriptor), file)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_size(there: os.stat_result, file: layout.FileEntry) -> None:
    if not stat.S_ISREG(there.st_mode):
        raise layout.LayoutError(f"{file.path} is no regular file")
    if there.st_size != file.bytes:
        raise layout.LayoutError(f"{file.path} has {there.st_size} bytes, {file.bytes} were written")


def is_own_path(path: str) -> bool:
    """Whether it is in the checkpoint itself: a record is only a file, and must not send a reader elsewhere."""
    parts = path.split("/")
    return len(parts) <= 2 and all(part and not part.startswith(".") and "\0" not in part for part in parts)


def _span(file: layout.FileEntry, at: int) -> tuple[int, int]:
    return at * file.chunk, min((at + 1) * file.chunk, file.bytes)


def _read_chunk(descriptor: int, file: layout.FileEntry, at: int, target: memoryview) -> None:
    """Read one chunk and compare it; where `target` is smaller than the chunk, its pieces come one over the other."""
    start, end = _span(file, at)
    offset, digest = start, 0
    while offset < end:
        begin = offset - start if len(target) >= end - start else 0
        piece = target[begin : begin + min(PIECE, end - offset)]
        read = os.preadv(descriptor, [piece], offset)
        if read == 0:
            raise layout.LayoutError(f"{file.path} ended while it was read")
        digest = zlib.crc32(piece[:read], digest)
        offset += read
    if digest != file.chunks[at]:
        raise layout.LayoutError(f"{file.path}: the bytes from {start} to {end} are not those that were written")


class _Reading:
    """All chunks of one file, into `whole` or only to be compared."""

    def __init__(self, descriptor: int, file: layout.FileEntry, whole: memoryview | None) -> None:
        self._descriptor, self._file, self._whole = descriptor, file, whole
        self._left = deque(range(len(file.chunks)))
        self._problems: list[tuple[int, BaseException]] = []

    def run(self) -> None:
        """Read; raises what is wrong with the first wrong chunk."""
        helpers = []
        for _ in range(LANES - 1 if self._file.bytes >= LANES_FROM else 0):
            helper = threading.Thread(target=self._lane, name="holdfast-read", daemon=True)
            try:
                helper.start()
            except RuntimeError:
                break  # the account or its group may have no more threads: fewer do it too
            helpers.append(helper)
        try:
            self._lane()
        finally:
            self._left.clear()
            for helper in helpers:
                helper.join()
        if self._problems:
            raise min(self._problems, key=lambda problem: problem[0])[1]

    def _lane(self) -> None:
        at = -1
        try:
            room = None if self._whole is not None else memoryview(bytearray(min(PIECE, self._file.bytes)))
            while True:
                try:
                    at = self._left.popleft()
                except IndexError:
                    return
                start, end = _span(self._file, at)
                target = room if room is not None else self._whole[start:end]  # type: ignore[index]
                _read_chunk(self._descriptor, self._file, at, target)
        except BaseException as error:  # noqa: BLE001 - raised by `run`: a chunk that nobody compared is not proven
            self._problems.append((at, error))
            self._left.clear()
