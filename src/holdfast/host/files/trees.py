"""Directories with all in them, by descriptors: never through a link, never into another mount.

How large one is, and the temporaries in it whose maker was killed: listed, and removed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from .files import DIRECTORY, is_temporary, list_entries, open_child, remove_child

STALE_S = 3600.0
"""A temporary that nobody has touched for so long is nobody's: who made it was killed."""


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
                    remove_child(directory, name, f"{path}/{name}")
                else:
                    os.unlink(name, dir_fd=directory)
                done += 1
            except OSError:
                continue
    finally:
        os.close(directory)
    return done
