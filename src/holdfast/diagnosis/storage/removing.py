"""Removing one thing below a directory by descriptors: never through a link, never onto another file system."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...core.scratch import Item

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened: a link in its place is an error."""


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

    A bind mount has the device of what it shows, so the device alone does not tell that data of others begins.
    Source: proc_pid_fdinfo(5), mnt_id.

    Raises:
        OSError: it cannot be read.
    """
    with open(f"/proc/self/fdinfo/{directory}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENODATA, "the kernel does not tell its mount", str(directory))


def open_parent(top: str, path: str) -> tuple[int, str]:
    """A descriptor of the directory that holds `path` (below `top`), reached without following any link.

    Raises:
        OSError: a part of it has gone, or is a link now.
    """
    parts = path.split("/")
    current = os.open(top, DIRECTORY)
    try:
        mount = read_mount(current)
        for part in parts[:-1]:
            child = os.open(part, DIRECTORY, dir_fd=current)
            os.close(current)
            current = child
            if read_mount(current) != mount:
                raise OSError(errno.EXDEV, "something else is mounted here", path)
    except OSError:
        os.close(current)
        raise
    return current, parts[-1]


def remove(top: str, item: Item) -> None:
    """Remove one thing if it is still the one that was planned.

    Raises:
        OSError: it is not, or cannot be removed.
    """
    parent, name = open_parent(top, item.path)
    try:
        now = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if (now.st_dev, now.st_ino) != (item.device, item.inode) or now.st_uid != os.geteuid():
            raise OSError(errno.ESTALE, "is not what was looked at any more", item.path)
        if item.is_directory:
            _remove_tree(parent, name, item)
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)


def _remove_tree(parent: int, name: str, item: Item | None = None) -> None:
    directory = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        facts = os.fstat(directory)
        if item is not None and (facts.st_dev, facts.st_ino) != (item.device, item.inode):
            raise OSError(errno.ESTALE, "is not what was looked at any more", name)
        if read_mount(directory) != read_mount(parent):
            raise OSError(errno.EXDEV, "something else is mounted here", name)
        for child, seen in list_entries(directory):
            if stat.S_ISDIR(seen.st_mode):
                _remove_tree(directory, child)
            else:
                os.unlink(child, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)
