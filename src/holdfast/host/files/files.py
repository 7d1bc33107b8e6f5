"""Durable files: written whole or not at all, by their owner only, never through a planted link.

`commit` is the only way in which holdfast replaces a file that somebody may read after a crash: temporary file in the
same directory, fsync, rename, fsync of the directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager

MAX_RECORD_BYTES = 16 * 1024**2
MAX_LINES_BYTES = 16 * 1024**2
MOST_LINES = 200_000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened that may be another's: a link in its place is an error."""
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{8}\.tmp", re.DOTALL)


def commit(path: str, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by `data`, durably and atomically; the old content stands until the new one is on disk.

    The file has exactly `mode`, whatever the umask. With `durable` False it is atomic for every other process, also
    when we are killed, but a power cut may bring the old content back: for records that then say nothing false.

    Raises:
        OSError: nothing was replaced; or it was, and the disk could not make the new name durable.
    """
    directory = os.path.dirname(path)
    temporary = name_temporary(path)
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


def name_temporary(path: str) -> str:
    """A new hidden name beside `path` for what is written whole before it gets that name; see `is_temporary`."""
    directory, name = os.path.split(path)
    return f"{directory or '.'}/.{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a file or directory has a name of `name_temporary`."""
    return _TEMPORARY.fullmatch(name) is not None


def make_once(path: str, data: bytes) -> bool:
    """Make a file that is there whole or not at all, and only once; whether it was we who made it.

    Made aside and linked: link(2) is exclusive on every network file system, also where there are no locks. Its answer
    may be lost on the way, so the link count is what tells (open(2), O_EXCL).

    Raises:
        OSError: it cannot be written, or whether it is ours cannot be told.
    """
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.{os.uname().nodename}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    commit(temporary, data)
    try:
        try:
            os.link(temporary, path)
        except OSError as error:
            # The server may have made the link although its answer was lost: the count knows.
            if os.stat(temporary).st_nlink == 2:
                return True
            if isinstance(error, FileExistsError):
                return False
            raise
    finally:
        remove_quietly(temporary)
    sync_directory(directory)
    return True


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


def sync_quietly(path: str) -> None:
    """Make the content of a file durable, if there is such a file and its disk does it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


def remove_quietly(path: str) -> None:
    """Remove a file of ours; its absence is fine, and so is a file system that has gone."""
    try:
        os.unlink(path)
    except OSError:
        return


def list_entries(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Names and facts of a directory's entries, links not followed; what vanishes meanwhile is left out."""
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry) for entry in entries]
    for name, entry in listed:
        try:
            yield name, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def read_mount(directory: int) -> int:
    """The number of the mount that an open directory lies in: another one also where the same disk is mounted again.

    A bind mount has the device of what it shows, so the number of a device does not tell that the data of others begins
    there. It has to do where the kernel tells no mounts: gVisor, Linux before 3.15. Source: proc_pid_fdinfo(5), mnt_id.

    Raises:
        OSError: it cannot be read.
    """
    with open(f"/proc/self/fdinfo/{directory}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    return os.fstat(directory).st_dev


def open_child(parent: int, name: str, path: str) -> int:
    """Open a directory of `parent` (its path is `path`, for errors).

    Raises:
        OSError: it is a link, or something else is mounted there.
    """
    child = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        if read_mount(child) != read_mount(parent):
            raise OSError(errno.EXDEV, "something else is mounted here", path)
    except OSError:
        os.close(child)
        raise
    return child


def remove_child(
    parent: int, name: str, path: str, *, expected: tuple[int, int] | None = None, unlock: bool = False
) -> None:
    """Empty and remove a directory of `parent`; `path` is its path, for errors. What is mounted in it stays, whole.

    `expected` is the device and inode that it must have; `unlock`: read-only directories are made writable for it.

    Raises:
        OSError: something stays, and all else is gone; its path is in the error.
    """
    directory = open_child(parent, name, path)
    left: OSError | None = None
    try:
        facts = os.fstat(directory)
        if expected is not None and (facts.st_dev, facts.st_ino) != expected:
            raise OSError(errno.ESTALE, "is not what was looked at any more", path)
        if unlock:
            os.fchmod(directory, 0o700)
        with os.scandir(directory) as entries:
            children = list(entries)
        for child in children:
            try:
                if child.is_dir(follow_symlinks=False):
                    remove_child(directory, child.name, f"{path}/{child.name}", unlock=unlock)
                else:
                    os.unlink(child.name, dir_fd=directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                left = left or error
        if left is not None:
            raise left
    except OSError as error:
        error.filename = error.filename if isinstance(error.filename, str) and "/" in error.filename else path
        raise
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def remove_all(path: str, *, unlock: bool = False) -> None:
    """Remove a directory as `remove_child` does.

    Raises:
        OSError: something stays, and all else is gone; its path is in the error.
    """
    above, name = os.path.split(path.rstrip("/"))
    parent = os.open(above or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_child(parent, name, path, unlock=unlock)
    finally:
        os.close(parent)


def remove_tree(path: str) -> None:
    """Remove a directory that we made and nobody else writes into; what cannot be removed is left."""
    try:
        remove_all(path)
    except OSError:
        return


def take_away(path: str) -> None:
    """Take a directory that we made out of sight in one step, then remove it.

    Raises:
        OSError: it stays where it is.
    """
    aside = name_temporary(path)
    os.rename(path, aside)
    remove_tree(aside)


def read_bytes(path: str, *, limit: int = MAX_RECORD_BYTES, owners: Container[int] | None = None) -> bytes:
    """The content of a record, at most `limit` bytes, never through a symbolic link at its end.

    With `owners` only a file of one of these accounts is read.

    Raises:
        OSError: it cannot be read, belongs to somebody else, or is larger than a record can be.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(descriptor)
        if facts.st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        if owners is not None and facts.st_uid not in owners:
            raise PermissionError(errno.EPERM, f"it belongs to uid {facts.st_uid}", path)
        chunks, total = [], 0
        while chunk := os.read(descriptor, 1 << 20):
            chunks.append(chunk)
            total += len(chunk)
            if total > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def read_beginning(path: str, size: int) -> bytes:
    """The first `size` bytes of a file, and of the last page of it what came with them; a kernel's file gives pages.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        data = bytearray()
        while len(data) < size and (chunk := os.read(descriptor, 1 << 16)):
            data += chunk
        return bytes(data)
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


def read_last_lines(path: str, size: int = MAX_LINES_BYTES) -> list[bytes]:
    """The complete lines among the last `size` bytes of a file; none when it does not exist.

    Whoever can write the file may have filled it with anything: empty lines are left out, and of lines shorter than any
    that we write only the last `MOST_LINES` are taken.

    Raises:
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        start = max(0, os.fstat(descriptor).st_size - size)
        lines = os.pread(descriptor, size, start).rsplit(b"\n", MOST_LINES)
    finally:
        os.close(descriptor)
    # The first is the end of a line, or all that was not taken; the last one is torn, or nothing.
    whole = not start and len(lines) <= MOST_LINES
    return [line for line in lines[0 if whole else 1 : -1] if line]


@contextmanager
def alone_in(directory: str) -> Iterator[None]:
    """Wait for whoever else is in here with this directory; where directories cannot be locked nobody waits.

    Raises:
        OSError: there is no such directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool | None:
    """Whether a process holds the file's lock (flock, exclusively) now; None when that cannot be told.

    No file is no lock. The lock is taken shared for a moment, so who tries for it in this moment has to try again.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def read_text_or_none(path: str) -> str | None:
    """A small kernel file (or any file) as text without its last newline; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


def explain_refusal(error: OSError, directory: str) -> tuple[str, str]:
    """What the file system of `directory` said, and what shows why: ``df`` alone shows no inodes."""
    if error.errno == errno.ENOSPC:
        try:
            room = os.statvfs(directory)
        except OSError:
            return "No space left on device", "df"
        if room.f_files and not room.f_favail and room.f_bavail:
            return "no inodes are left", "df -i"
    looks = {errno.ENOSPC: "df", errno.EDQUOT: "the quota of the account", errno.EROFS: "why it is mounted read-only"}
    return error.strerror or str(error), looks.get(error.errno or 0, "df and the directory's permissions")


def open_log(path: str) -> int:
    """Open a file that only grows, to append and to read; made (0600) when there is none. Not inherited.

    A job may have put a pipe in its place, and whoever writes into that waits for a reader.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", path)
    return descriptor


def append(path: str, data: bytes, *, durable: bool = False) -> None:
    """Append one line, or several; a torn last line is the reader's to ignore. `durable`: on the disk on return.

    A disk that takes only a part takes nothing; what an earlier crash tore is closed off, so that it costs no line but
    its own. One writer at a time.

    Raises:
        OSError: it could not be written.
    """
    descriptor = open_log(path)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        try:
            write_all(descriptor, b"\n" + data if torn else data)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
