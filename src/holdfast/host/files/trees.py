"""Measuring and removing a directory with all in it, by descriptors: never through a link, never into another mount.

A bind mount has the device of what it shows, so a device number does not tell that the data of others begins there:
the number of the mount does.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator

from .files import is_temporary

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened: a link in its place is an error."""

STALE_S = 3600.0
"""A temporary that nobody has touched for so long is nobody's: who made it was killed."""


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

    Source: proc_pid_fdinfo(5), mnt_id.

    Raises:
        OSError: it cannot be read.
    """
    with open(f"/proc/self/fdinfo/{directory}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENODATA, "the kernel does not tell its mount", str(directory))


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


def measure_tree(directory: int, path: str) -> tuple[int, int]:
    """How many files lie in an open directory, and how many bytes of disk they take.

    Raises:
        OSError: a part of it cannot be read, or something is mounted in it.
    """
    files, size = 0, 0
    for name, seen in list_entries(directory):
        if not stat.S_ISDIR(seen.st_mode):
            files, size = files + 1, size + seen.st_blocks * 512
            continue
        child = open_child(directory, name, f"{path}/{name}")
        try:
            more, bytes_ = measure_tree(child, f"{path}/{name}")
        finally:
            os.close(child)
        files, size = files + more, size + bytes_
    return files, size


def remove_tree(parent: int, name: str, path: str, *, expected: tuple[int, int] | None = None) -> None:
    """Empty and remove a directory of `parent`; `path` is its path, for errors.

    `expected` is the device and inode that it must have.

    Raises:
        OSError: something stays; its path is in the error.
    """
    directory = open_child(parent, name, path)
    try:
        facts = os.fstat(directory)
        if expected is not None and (facts.st_dev, facts.st_ino) != expected:
            raise OSError(errno.ESTALE, "is not what was looked at any more", path)
        for child, seen in list_entries(directory):
            if stat.S_ISDIR(seen.st_mode):
                remove_tree(directory, child, f"{path}/{child}")
            else:
                os.unlink(child, dir_fd=directory)
    except OSError as error:
        error.filename = error.filename if isinstance(error.filename, str) and "/" in error.filename else path
        raise
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def list_stale(path: str) -> list[str]:
    """Names of the temporaries (`files.name_temporary`) of ours in a directory that nobody will come back for."""
    try:
        directory = os.open(path, DIRECTORY)
    except OSError:
        return []
    try:
        return [
            name
            for name, seen in list_entries(directory)
            if is_temporary(name) and seen.st_uid == os.geteuid() and time.time() - seen.st_mtime > STALE_S
        ]
    except OSError:
        return []
    finally:
        os.close(directory)


def remove_entries(path: str, names: Iterable[str]) -> int:
    """Remove files and directories in a directory, as far as that can be; answers how many went."""
    try:
        done, directory = 0, os.open(path, DIRECTORY)
    except OSError:
        return 0
    try:
        for name in names:
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    remove_tree(directory, name, f"{path}/{name}")
                else:
                    os.unlink(name, dir_fd=directory)
                done += 1
            except OSError:
                continue
    finally:
        os.close(directory)
    return done
