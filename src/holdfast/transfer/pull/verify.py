"""Holds a copy against the roster that stands in it, by itself: its place is not asked, and may be gone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.code.manifest import DIRECTORY, LINK, CodeEntry, hash_link
from holdfast.core.control_characters import clean, one_line
from holdfast.core.pull.stream import PULLING
from holdfast.host.formats.copy_mark import read_mark
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.receipt import DAMAGED, CopyMark, Receipt, Tried
from holdfast.model.record import record
from holdfast.model.results import ROSTER

from .copy import hash_file
from .earlier import read_receipt_of, read_roster
from .trial import LONGEST

OTHER = "is not what was pulled"


@record
class VerifiedCopy:
    """A copy as it is now: of `files` files of `bytes` bytes, all as they were at `pulled_at`, but those `damaged`.

    `damaged` are files that are not what was pulled, or are gone.
    """

    place: str
    run_id: str
    directory: str
    files: int
    bytes: int
    pulled_at: str
    damaged: tuple[Tried, ...]


@record
class VerifiedCopies:
    """Several copies, in the order in which they were named."""

    copies: tuple[VerifiedCopy, ...]


def verify_copy(directory: str, tell: Callable[[int, int], None] = lambda _done, _total: None) -> VerifiedCopy:
    """Read every file of a copy; `tell` gets the bytes that were read, and how many there are. Nothing is changed.

    Raises:
        UsageError: it is no copy.
        StorageError: what was pulled into it cannot be told any more, or another pull has put files into it since.
    """
    directory = os.path.realpath(directory)
    mark = read_mark(directory)
    if mark is None:
        hint = "--verify takes directories that were pulled into"
        if os.path.lexists(f"{directory}/{ROSTER}"):
            hint += "; what `holdfast results copy` brought is compared when you say that again"
        raise UsageError(f"{clean(directory)} is no copy of a run", hint=hint)
    try:
        receipt = read_receipt_of(directory)
        roster = read_roster(directory, receipt)
    except FileNotFoundError as error:
        raise StorageError(
            f"{clean(directory)} has no receipt or no roster: it was not pulled to its end",
            hint=f"holdfast pull {mark.place}:{mark.run_id} {directory}",
        ) from error
    except (OSError, ValueError) as error:
        raise StorageError(
            f"what was pulled into {clean(directory)} cannot be told any more: {error}",
            hint=f"holdfast pull {mark.place}:{mark.run_id} {directory}",
        ) from error
    done = [0]

    def count(size: int) -> None:
        done[0] += size
        tell(done[0], roster.bytes)

    found = ((entry.path, _find_damage(f"{directory}/{entry.path}", entry, count)) for entry in roster.entries)
    damaged = tuple(Tried(one_line(path, LONGEST), DAMAGED, why) for path, why in found if why)
    if damaged:
        _require_no_later(directory, receipt, mark)
    files = sum(entry.kind != DIRECTORY for entry in roster.entries)
    place, run_id = receipt.place, receipt.run_id
    return VerifiedCopy(place, run_id, directory, files, roster.bytes, receipt.verified_at, damaged)


def _require_no_later(directory: str, receipt: Receipt, mark: CopyMark) -> None:
    """Refuse to call damaged what a later pull may have put there: receipt and roster are written at its end.

    Raises:
        StorageError: one is unfinished, or at work, or came to its end meanwhile.
    """
    again = f"holdfast pull {mark.place}:{mark.run_id} {directory}"
    if os.path.lexists(f"{directory}/{PULLING}"):
        raise StorageError(
            f"{clean(directory)} is not what was pulled at {receipt.verified_at}, and a later pull is unfinished, or "
            "at work",
            hint=f"run it to its end first: {again}; where its place is gone: remove {directory}/{PULLING}, then say "
            "it again, which names the files",
        )
    with suppress(OSError, ValueError):
        if read_receipt_of(directory) == receipt:
            return
    raise StorageError(f"{clean(directory)}: a later pull came to its end meanwhile", hint="say it again")


def _find_damage(path: str, entry: CodeEntry, count: Callable[[int], None]) -> str:
    """What is wrong with one entry of the roster; empty: it is what was pulled."""
    try:
        mode = os.lstat(path).st_mode
        if entry.kind == DIRECTORY:
            return "" if stat.S_ISDIR(mode) else OTHER
        if entry.kind == LINK:
            same = stat.S_ISLNK(mode) and hash_link(os.fsencode(os.readlink(path))) == entry.sha256
            return "" if same else OTHER
        if not stat.S_ISREG(mode):
            return OTHER
        _forget(path)
        digest, _ = hash_file(path, count)
    except FileNotFoundError:
        return "is not there any more"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if digest.hexdigest() == entry.sha256 else OTHER


def _forget(path: str) -> None:
    """Have the disk read, not what memory has of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with suppress(OSError, AttributeError):  # no such call on this system
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
