"""A private directory in memory for records that the run directory cannot take (full, read-only, gone).

`commit` never raises for a storage fault, because a supervisor that dies of a full disk loses more than a record
(OBS-11). A copy aside exists only as long as the one in its place is older, so readers need not know which case they
are in.
"""

from __future__ import annotations

import functools
import os
import stat

from holdfast.host import clock
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import is_run_id

from . import files
from .ownership import make_own_directory

MEMORY_ROOTS = ("/dev/shm", "/run/shm")  # noqa: S108 - a private 0700 directory of ours is made inside, links refused
ROOTS = (*MEMORY_ROOTS, "/tmp")  # noqa: S108 - as above
BESIDE = "memory-"
"""Begins the name of the file, one of a boot, that says how our names beside a planted one end."""


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


def read(run_id: str, attempt: int, path: str, *, limit: int = files.MAX_RECORD_BYTES) -> bytes:
    """The newest copy of a record, at most `limit` bytes.

    Raises:
        OSError: neither place has a readable one.
    """
    aside = directory(run_id, attempt)
    other = None if aside is None else f"{aside}/{os.path.basename(path)}"
    if other is not None and 0 <= _mtime(other) >= _mtime(path):
        # Equal times are one tick of the clock: `commit` would have removed the copy, had the place taken it since.
        path = other
    return files.read_bytes(path, limit=limit)


def bring_home(run_id: str, attempt: int, place: str) -> bool:
    """Move what lies aside of an attempt to `place`, its directory; False when the disk still refuses some of it."""
    aside = directory(run_id, attempt)
    if aside is None or not os.path.isdir(aside):
        return True
    try:
        for name in os.listdir(aside):
            if not name.startswith("."):
                files.commit(f"{place}/{name}", files.read_bytes(f"{aside}/{name}"))
    except OSError:
        return False
    clear(run_id, attempt)
    return True


def list_aside() -> list[tuple[str, int]]:
    """Run id and attempt of all that lies aside for this account."""
    try:
        names = os.listdir(private_directory() or "")
    except OSError:
        return []
    found = (name.rpartition(".") for name in names)
    return sorted((run_id, int(attempt)) for run_id, _, attempt in found if is_run_id(run_id) and attempt.isdecimal())


def clear(run_id: str, attempt: int) -> None:
    """Remove the fallback directory of an attempt, once its records are where they belong."""
    aside = directory(run_id, attempt)
    try:
        if aside is None or not _is_private(os.lstat(aside)):
            return
        for name in os.listdir(aside):
            files.remove_quietly(f"{aside}/{name}")
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

    A planted link or a stranger's directory is refused; then it has another name, which nobody can foresee.
    """
    for root in ROOTS if roots is None else roots:
        path = f"{root}/holdfast-{os.getuid()}"
        found = _look_or_make(path)
        if found is None:
            continue
        if _is_private(found):
            return path
        if found.st_uid != os.getuid() and (beside := _make_beside(path)):
            return beside
    return None


def _is_private(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _make_beside(path: str) -> str | None:
    """One of ours under a name that nobody can foresee, because somebody else was first at `path`; None without one.

    Its owner keeps the name where nobody else writes, so it is found again without a search: of names like it others
    can make any number.
    """
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    try:
        beside = f"{path}.{_read_or_make_ending(f'{base}/holdfast', clock.boot_id())}"
    except (OSError, ValueError, HoldfastError):
        return None
    found = _look_or_make(beside)
    return beside if found is not None and _is_private(found) else None


@functools.lru_cache(maxsize=1)
def _read_or_make_ending(directory: str, boot_id: str) -> str:
    """How names beside end, in this boot alone: in the next one everybody knows it, and memory is empty.

    Raises:
        OSError, HoldfastError, ValueError: it cannot be read or kept, or others could replace it.
    """
    path = f"{directory}/{BESIDE}{boot_id}"
    if not os.path.lexists(path):
        make_own_directory(directory, "the state directory", "let XDG_STATE_HOME name a place of your own")
        files.make_once(path, os.urandom(8).hex().encode("ascii"))
    return f"{int(files.read_bytes(path, limit=16, owners=(os.geteuid(),)), 16):016x}"


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
