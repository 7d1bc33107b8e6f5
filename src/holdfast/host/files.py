"""Durable files: written whole or not at all, by their owner only, never through a planted link.

`commit` is the only way in which holdfast replaces a file that somebody may read after a crash: temporary file in the
same directory, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RECORD_BYTES = 16 * 1024**2


def commit(path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by `data`, durably and atomically; the old content stands until the new one is on disk.

    The file has exactly `mode`, whatever the umask. With `durable` False it is atomic for every other process, also
    when we are killed, but a power cut may bring the old content back: for records that then say nothing false.

    Raises:
        OSError: nothing was replaced; or it was, and the disk could not make the new name durable.
    """
    directory, name = os.path.split(path)
    temporary = f"{directory or '.'}/.{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)
            write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        remove_quietly(temporary)
        raise
    if durable:
        sync_directory(directory)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(path: str) -> None:
    """Make renames and creations in a directory durable, where its file system can.

    Source: fsync(2): EINVAL means that this kind of file has no fsync (directories on some FUSE and network mounts).
    """
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_quietly(path: str) -> None:
    """Remove a file of ours; its absence is fine, and so is a file system that has gone."""
    try:
        os.unlink(path)
    except OSError:
        return


def remove_tree(path: str) -> None:
    """Remove a directory that we made and nobody else writes into; what cannot be removed is left."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            remove_quietly(f"{directory}/{name}")
        try:
            os.rmdir(directory)
        except OSError:
            return


def read_bytes(path: str, *, limit: int = MAX_RECORD_BYTES) -> bytes:
    """The content of a record, at most `limit` bytes, never through a symbolic link at its end.

    Raises:
        OSError: it cannot be read, or is larger than a record can be.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        chunks, total = [], 0
        while chunk := os.read(descriptor, 1 << 20):
            chunks.append(chunk)
            total += len(chunk)
            if total > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def read_tail(path: str, size: int) -> bytes:
    """The last `size` bytes of a file, never through a symbolic link at its end; nothing when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, max(0, os.fstat(descriptor).st_size - size))
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def can_read(path: str) -> bool:
    """Whether a file can be opened for reading now."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def read_text_or_none(path: str) -> str | None:
    """A small kernel file (or any file) as text without its last newline; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


def append(path: str, data: bytes) -> None:
    """Append one line, or several; not synced, a torn last line is the reader's to ignore.

    A disk that takes only a part takes nothing; what an earlier crash tore is closed off, so that it costs no line but
    its own. One writer at a time.

    Raises:
        OSError: it could not be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        try:
            write_all(descriptor, b"\n" + data if torn else data)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read_lines(path: str) -> Iterator[bytes]:
    """The complete lines of an append-only file; a torn last line is left out, a missing file has none."""
    try:
        data = read_bytes(path, limit=1 << 30)
    except FileNotFoundError:
        return
    end = data.rfind(b"\n") + 1
    yield from data[:end].splitlines()
