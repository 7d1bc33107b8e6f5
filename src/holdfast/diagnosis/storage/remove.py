"""Removing one thing below a directory by descriptors: never through a link, never onto another file system."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from holdfast.host.files import files

if TYPE_CHECKING:
    from holdfast.core.job.scratch import ScratchItem


def open_parent(top: str, path: str) -> tuple[int, str]:
    """A descriptor of the directory that holds `path` (below `top`), reached without following any link.

    Raises:
        OSError: a part of it has gone, or is a link now.
    """
    parts = path.split("/")
    current = os.open(top, files.DIRECTORY)
    try:
        for part in parts[:-1]:
            child = files.open_child(current, part, path)
            os.close(current)
            current = child
    except OSError:
        os.close(current)
        raise
    return current, parts[-1]


def remove_item(top: str, item: ScratchItem) -> None:
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
            files.remove_child(parent, name, item.path, expected=(item.device, item.inode))
        else:
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)
