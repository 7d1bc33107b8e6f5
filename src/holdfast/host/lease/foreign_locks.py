"""Hand-written lock files: ``/tmp/gpu_locks/gpu_<index>.lock``, which people made long before holdfast came.

A file there means that the card is taken, by whoever is written in it; only its author removes it. Where the directory
exists we publish our own leases in it too, created exclusively, so that scripts which look there leave our cards alone.
Files of ours are told by their first word; they are judged by the lease that they name, not by their being there.
It does not know what a lock of the kernel is.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.host.clock import format_utc
from holdfast.host.files.files import remove_quietly, write_all
from holdfast.host.process.processes import user_name
from holdfast.model.record import record

if TYPE_CHECKING:
    from holdfast.model.lease import LeaseRecord

_SIGNATURE = "holdfast"
_MAX_BYTES = 4096


@record
class ForeignLock:
    """One lock file: `run_id` when holdfast wrote it; `text` its first line for people; `since` ISO UTC."""

    path: str
    text: str
    since: str
    uid: int
    run_id: str | None = None


def lock_path(directory: str, index: int) -> str:
    """Where the lock file of the card with this index would be."""
    return f"{directory}/gpu_{index}.lock"


def read_lock(directory: str, index: int) -> ForeignLock | None:
    """The lock file of one card, or None. Whatever has that name counts, readable or not."""
    path = lock_path(directory, index)
    try:
        seen = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return ForeignLock(path, f"{path} cannot be looked at: {error.strerror}{_name_directory(directory)}", "", -1)

    since, owner = format_utc(seen.st_mtime), user_name(seen.st_uid)
    text = _read_first_line(path) if stat.S_ISREG(seen.st_mode) else ""
    words = text.split()
    run_id = words[1] if len(words) > 1 and words[0] == _SIGNATURE else None
    return ForeignLock(path, f"{path} of {owner}" + (f": {text}" if text else ""), since, seen.st_uid, run_id)


def _name_directory(directory: str) -> str:
    """Whose directory it is, for people; empty when that cannot be told."""
    try:
        return f"; {directory} belongs to {user_name(os.lstat(directory).st_uid)}"
    except OSError:
        return ""


def _read_first_line(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        data = os.read(descriptor, _MAX_BYTES)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    lines = data.decode("utf-8", "replace").strip().splitlines()
    first = lines[0] if lines else ""
    return "".join(letter if letter.isprintable() else "?" for letter in first)[:200]


def publish_lock(directory: str, index: int, record: LeaseRecord, *, alone: bool = True) -> str | None:
    """Put our lock file where scripts look; the path, or None when no such directory exists or it is closed to us.

    The caller holds the card's lease, so a file of holdfast's that is there already belongs to a run that is gone, or
    (when the lease is not `alone` on the card) to one beside us: the first is replaced when it is ours, the second
    says enough.

    Raises:
        FileExistsError: the card was locked by hand in the meantime.
    """
    path = lock_path(directory, index)
    if os.path.islink(directory):
        return None
    left = read_lock(directory, index)
    if left is not None and left.run_id is not None and not (alone and remove_lock(path, left.run_id)):
        return None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileExistsError:
        raise
    except OSError:
        return None
    text = f"{_SIGNATURE} {record.run_id} user {record.user} pid {record.supervisor.pid} since {record.since}\n"
    try:
        write_all(descriptor, text.encode())
        os.fchmod(descriptor, 0o644)
    except OSError:
        remove_quietly(path)
        return None
    finally:
        os.close(descriptor)
    return path


def remove_lock(path: str, run_id: str) -> bool:
    """Remove a lock file that this run published; False when it is not (or no longer) its own."""
    directory, name = os.path.split(path)
    index = name.removeprefix("gpu_").removesuffix(".lock")
    found = read_lock(directory, int(index)) if index.isascii() and index.isdigit() else None
    if found is None or found.run_id != run_id or found.uid != os.geteuid():
        return False
    remove_quietly(path)
    return True
