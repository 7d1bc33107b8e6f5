"""Where records go when the run directory cannot take them (full, read-only, gone): a private directory in memory.

`commit` never raises for a storage fault, because a supervisor that dies of a full disk loses more than a record
(OBS-11). A copy aside exists only as long as the one in its place is older, so readers need not know which case they
are in.
"""

from __future__ import annotations

import os
import stat

from . import files

MEMORY_ROOTS = ("/dev/shm", "/run/shm")  # noqa: S108 - a private 0700 directory of ours is made inside, links refused
ROOTS = (*MEMORY_ROOTS, "/tmp")  # noqa: S108 - as above


def directory(run_id: str, attempt: int) -> str | None:
    """The fallback directory of one attempt, or None when even that cannot be had."""
    base = private_directory()
    return None if base is None else f"{base}/{run_id}.{attempt}"


def commit(run_id: str, attempt: int, path: str, data: bytes, *, durable: bool = True) -> bool:
    """Commit a record; True when it is where it belongs, False when it went to the fallback place or nowhere."""
    try:
        files.commit(path, data, durable=durable)
    except OSError:
        _commit_aside(run_id, attempt, os.path.basename(path), data)
        return False
    aside = directory(run_id, attempt)
    if aside is not None:
        files.remove_quietly(f"{aside}/{os.path.basename(path)}")
    return True


def _commit_aside(run_id: str, attempt: int, name: str, data: bytes) -> None:
    aside = directory(run_id, attempt)
    if aside is None:
        return
    try:
        os.makedirs(aside, mode=0o700, exist_ok=True)
        files.commit(f"{aside}/{name}", data)
    except OSError:
        return


def read(run_id: str, attempt: int, path: str) -> bytes:
    """The newest copy of a record.

    Raises:
        OSError: neither place has a readable one.
    """
    aside = directory(run_id, attempt)
    other = None if aside is None else f"{aside}/{os.path.basename(path)}"
    if other is not None and 0 <= _mtime(other) >= _mtime(path):
        # Equal times are one tick of the clock: `commit` would have removed the copy, had the place taken it since.
        path = other
    return files.read_bytes(path)


def clear(run_id: str, attempt: int) -> None:
    """Remove the fallback directory of an attempt, once its records are where they belong."""
    aside = directory(run_id, attempt)
    if aside is None or not os.path.isdir(aside):
        return
    for name in os.listdir(aside):
        files.remove_quietly(f"{aside}/{name}")
    try:
        os.rmdir(aside)
    except OSError:
        return


def _mtime(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def private_directory(roots: tuple[str, ...] | None = None) -> str | None:
    """Our own 0700 directory under the first usable root (of `ROOTS`).

    A planted link or a stranger's directory is refused.
    """
    for root in ROOTS if roots is None else roots:
        path = f"{root}/holdfast-{os.getuid()}"
        found = _look_or_make(path)
        if found is None:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return path
    return None


def _look_or_make(path: str) -> os.stat_result | None:
    """What is there now; a directory of ours is made when there is nothing: the first time in a boot."""
    try:
        return os.lstat(path)
    except OSError:
        pass
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    try:
        return os.lstat(path)
    except OSError:
        return None
