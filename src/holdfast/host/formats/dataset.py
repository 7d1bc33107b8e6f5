"""Compares a directory before and after a run by bounded looks (RAIL-07).

A look lists files and directories in a fixed order with size, modification and change time, and hashes the ends of the
first few files. Change time cannot be set back by a program, so a write is seen even when the modification time was
restored; the hash is there for file systems with coarse times. Above the bounds the look is a sample and says so.
"""

from __future__ import annotations

import hashlib
import os

from holdfast.host.clock import monotonic_s
from holdfast.model.record import record

MOST_FILES = 2000
MOST_HASHED = 64
END_BYTES = 64 * 1024
WITHIN_S = 1.0


@record
class DataEntry:
    """One file or directory: sizes in bytes, times in nanoseconds, the hash of its two ends where it was taken."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    ends: str | None = None


@record
class DataSurvey:
    """What lay under `paths`, in the order of looking. `complete` is False when a bound was reached.

    `unreadable` are places that could not be looked at.
    """

    paths: tuple[str, ...]
    entries: tuple[DataEntry, ...] = ()
    complete: bool = True
    unreadable: tuple[str, ...] = ()


def survey_data(paths: tuple[str, ...], *, within_s: float = WITHIN_S) -> DataSurvey:
    """Look at everything under `paths`, up to 2000 entries and `within_s` seconds; links are not followed inside."""
    end = monotonic_s() + within_s
    entries: list[DataEntry] = []
    unreadable: list[str] = []
    todo = [os.path.realpath(path) for path in paths]
    position = hashed = 0
    while position < len(todo):
        if len(entries) >= MOST_FILES or monotonic_s() > end:
            return DataSurvey(paths, tuple(entries), complete=False, unreadable=tuple(unreadable))
        path = todo[position]
        position += 1
        try:
            facts = os.stat(path, follow_symlinks=False)
            is_directory = facts.st_mode & 0o170000 == 0o040000
            if is_directory and len(todo) < MOST_FILES * 2:
                todo += sorted(f"{path}/{name}" for name in os.listdir(path))
            ends = None
            if facts.st_mode & 0o170000 == 0o100000 and hashed < MOST_HASHED:
                ends = _hash_ends(path, facts.st_size)
                hashed += 1
        except OSError:
            unreadable.append(path)
            continue
        size = 0 if is_directory else facts.st_size
        entries.append(DataEntry(path, size, facts.st_mtime_ns, facts.st_ctime_ns, ends))
    return DataSurvey(paths, tuple(entries), unreadable=tuple(unreadable))


def _hash_ends(path: str, size: int) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        digest = hashlib.sha256(os.pread(descriptor, END_BYTES, 0))
        if size > END_BYTES:
            digest.update(os.pread(descriptor, END_BYTES, max(END_BYTES, size - END_BYTES)))
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def compare_surveys(before: DataSurvey, after: DataSurvey) -> tuple[str, ...]:
    """What differs, in words, one line for each path; where both looks are samples only common paths count."""
    old = {seen.path: seen for seen in before.entries}
    new = {seen.path: seen for seen in after.entries}
    changes = []
    for path, seen in old.items():
        now = new.get(path)
        if now is None:
            gone = after.complete or not os.path.lexists(path)
            if gone and path not in after.unreadable:
                changes.append(f"{path} is gone")
        elif now.size != seen.size:
            changes.append(f"{path} was {seen.size} bytes and is {now.size}")
        elif seen.ends is not None and now.ends is not None and seen.ends != now.ends:
            changes.append(f"{path} has other content")
        elif (now.mtime_ns, now.ctime_ns) != (seen.mtime_ns, seen.ctime_ns):
            changes.append(f"{path} was touched")
    if before.complete:
        changes += [f"{path} is new" for path in new if path not in old]
    return tuple(changes)
