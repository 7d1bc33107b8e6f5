"""From the bytes of a state to a durable checkpoint: built aside, hashed, fsynced, then visible under its name.

The order is the guarantee: every file is written and fsynced; each rank's roster; the commit record, last; the
directories; then one rename makes it visible and an fsync of the parent makes that durable. What is killed anywhere
before the rename has left a directory with a name that no reader takes for a checkpoint. Large files go past the page
cache where the file system lets them: less memory, no second copy, and the trainer's own data stays cached.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator

from holdfast.host.files.files import remove_tree, sync_directory
from holdfast.model import step_names
from holdfast.model.record import record
from holdfast.training.storage import layout
from holdfast.training.storage.layout import CHUNK, PAGE, FileEntry

DIRECT_FROM = 8 << 20
"""Files of at least this many bytes are written past the page cache."""
ROOM = (errno.ENOSPC, errno.EDQUOT)
SPARE_BYTES = 4 << 20
SPARE_INODES = 8
LANES = 2
"""Writes under way at a time: one keeps a disk waiting between two of its requests."""
AT_FDCWD = -100
RENAME_EXCHANGE = 2


class NoSpace(OSError):
    """The file system has not enough room for the checkpoint; nothing was written."""


@record
class FileSource:
    """One file to write: its path in the checkpoint, its size, and its bytes as one piece or in pieces.

    A piece that begins on a page and is readable up to the end of its last page can be written directly.
    """

    path: str
    nbytes: int
    whole: memoryview | None = None
    pieces: Callable[[], Iterable[memoryview]] | None = None


def make_directory(path: str) -> None:
    """Make a directory and those above it, so that their names outlive a power cut as what is in them does.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for level in reversed(missing):
        os.makedirs(level, exist_ok=True)
        with contextlib.suppress(PermissionError):
            sync_directory(os.path.dirname(level))


def check_room(directory: str, nbytes: int, files: int) -> None:
    """See that the file system has room for a checkpoint.

    Raises:
        NoSpace: it has not; the message has the numbers.
        OSError: it cannot be asked.
    """
    disk = os.statvfs(directory)
    free, wanted = disk.f_bavail * disk.f_frsize, nbytes + SPARE_BYTES
    if free < wanted:
        raise NoSpace(errno.ENOSPC, f"{_mb(wanted)} are needed, {_mb(free)} are free", directory)
    if disk.f_files and disk.f_favail < files + SPARE_INODES:
        raise NoSpace(
            errno.ENOSPC, f"{files + SPARE_INODES} free inodes are needed, {disk.f_favail} are left", directory
        )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def write_files(building: str, sources: list[FileSource]) -> tuple[FileEntry, ...]:
    """Write every file into the directory `building`, durable and hashed; the directories are synced by `commit`.

    Raises:
        OSError: a file could not be written; what was begun is left for the caller to remove.
    """
    return tuple(_write_file(os.path.join(building, source.path), source) for source in sources)


def _write_file(path: str, source: FileSource) -> FileEntry:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)  # the umask decides, as for any file that the script writes itself
    try:
        if source.whole is None:
            chunks = _write_pieces(descriptor, source)
        elif source.nbytes >= DIRECT_FROM and _go_direct(descriptor):
            chunks = _write_whole(descriptor, source.whole, source.nbytes, lanes=LANES)
        else:
            chunks = _write_whole(descriptor, source.whole, source.nbytes, lanes=1)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileEntry(source.path, source.nbytes, chunks)


def _go_direct(descriptor: int) -> bool:
    """Ask for writes past the page cache; False where the file system has no such thing (tmpfs, some FUSE)."""
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def _leave_direct(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


def _write_whole(descriptor: int, data: memoryview, nbytes: int, lanes: int) -> tuple[int, ...]:
    """Write and hash at the same time; both leave the GIL to others while they work."""
    starts = range(0, nbytes, CHUNK)
    digests: list[int] = []
    if lanes == 1:
        for start in starts:
            piece = data[start : min(start + CHUNK, nbytes)]
            _pwrite(descriptor, piece, start)
            digests.append(zlib.crc32(piece))
        return tuple(digests)
    _allocate(descriptor, nbytes)
    work = _WriterThreads(descriptor, data, nbytes, iter(starts))
    work.start(lanes)
    try:
        digests = [zlib.crc32(data[start : min(start + CHUNK, nbytes)]) for start in starts]
    finally:
        work.join()
    os.ftruncate(descriptor, nbytes)
    return tuple(digests)


def _allocate(descriptor: int, nbytes: int) -> None:
    """Have the blocks there before the lanes write: a write that makes its file longer keeps all others waiting.

    The system's own call, not `os.posix_fallocate`, which writes into each block where the file system cannot do it.

    Raises:
        OSError: there is no room. What else stands in the way, the writes will say.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "fallocate64"):
        size = ctypes.c_int64(-(-nbytes // PAGE) * PAGE)
        if libc.fallocate64(descriptor, 0, ctypes.c_int64(0), size) and ctypes.get_errno() in ROOM:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _WriterThreads:
    """Threads that write the chunks of one file, each the next one that is not taken."""

    def __init__(self, descriptor: int, data: memoryview, nbytes: int, starts: Iterator[int]) -> None:
        self._descriptor, self._data, self._starts = descriptor, data, starts
        # Direct writes are whole pages; what is too much is cut off by the caller.
        self._end = -(-nbytes // PAGE) * PAGE
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, lanes: int) -> None:
        for _ in range(lanes):
            thread = threading.Thread(target=self._run)
            try:
                thread.start()
            except RuntimeError:
                break  # the account or its group may have no more threads: fewer do it too
            self._threads.append(thread)

    def join(self) -> None:
        if not self._threads:
            self._run()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            while not self._errors:
                with self._lock:
                    start = next(self._starts, None)
                if start is None:
                    return
                self._write(start)
        except BaseException as error:  # noqa: BLE001 - raised by `join`: a lane that ended early is never taken for done
            self._errors.append(error)

    def _write(self, start: int) -> None:
        piece = self._data[start : min(start + CHUNK, self._end)]
        try:
            _pwrite(self._descriptor, piece, start)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # This file system wants another alignment, or takes direct writes only in name.
            _leave_direct(self._descriptor)
            _pwrite(self._descriptor, piece, start)


def _pwrite(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        if written == 0:
            raise OSError(errno.EIO, "the file system took no bytes and gave no reason")
        data, offset = data[written:], offset + written


def _write_pieces(descriptor: int, source: FileSource) -> tuple[int, ...]:
    assert source.pieces is not None
    digests, digest, at = [], 0, 0
    for piece in source.pieces():
        rest = piece
        while rest:
            part = rest[: CHUNK - at % CHUNK]
            _pwrite(descriptor, part, at)
            digest = zlib.crc32(part, digest)
            at += len(part)
            if at % CHUNK == 0:
                digests.append(digest)
                digest = 0
            rest = rest[len(part) :]
    if at % CHUNK:
        digests.append(digest)
    if at != source.nbytes:
        raise OSError(errno.EIO, f"{source.path}: {at} bytes came, {source.nbytes} were announced")
    return tuple(digests)


def write_durably(path: str, data: bytes) -> None:
    """A small new file, fsynced; the directory is the caller's."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        _pwrite(descriptor, memoryview(data), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit(directory: str, building: str, record: layout.CommitRecord) -> str:
    """Write the commit record, make everything durable, then visible; answers the checkpoint's path.

    Raises:
        FileExistsError: something is in the way that cannot be replaced.
        OSError: it did not become durable; nothing is visible, or it is and the name may not outlive a power cut.
    """
    write_durably(os.path.join(building, layout.RECORD), layout.record_to_bytes(record))
    for entry in sorted({os.path.dirname(file.path) for file in record.files} - {""}):
        sync_directory(os.path.join(building, entry))
    sync_directory(building)
    final = os.path.join(directory, step_names.step_name(record.step))
    # A rename replaces an empty directory silently; the directory's lock keeps others of us out.
    if not os.path.lexists(final):
        os.rename(building, final)
        sync_directory(directory)
    else:
        # The step was saved before, and the state has changed since: one of the two is under the name at any time.
        _exchange(building, final)
        sync_directory(directory)
        remove_tree(building)
    return final


def _exchange(one: str, other: str) -> None:
    """Let two directories change names, in one step that the file system makes whole.

    Raises:
        FileExistsError: `other` is no directory, or this file system or kernel cannot do it (Linux 3.15, not NFS;
            source: rename(2), RENAME_EXCHANGE).
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    done = -1
    if os.path.isdir(other) and not os.path.islink(other) and hasattr(libc, "renameat2"):
        here = ctypes.c_int(AT_FDCWD)
        done = libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE))
    if done != 0:
        raise FileExistsError(errno.EEXIST, "it is there and cannot be replaced; save at another step", other)


def now() -> float:
    """Epoch seconds, for `CommitRecord.created`."""
    return time.time()
