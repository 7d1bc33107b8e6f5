"""The content of files on their way to a box: read once to be hashed, and again to be sent, proven as it goes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from holdfast.core.code import refusals, stream
from holdfast.core.code.manifest import LINK
from holdfast.core.control_characters import clean
from holdfast.host.files.code.hashes import Remembered, settle
from holdfast.model.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.core.code.manifest import CodeEntry
    from holdfast.host.files.code.hashes import HashMemory

CHUNK = 1 << 20
MOST_NAMED = 10
PROVEN_BYTES = 4 << 20
"""Nothing is handed on of a file up to here that is another one now: it may be a key."""
MENDED, POINTER = "mended", "pointer"
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OVERLAP = 256


def name_some(names: Sequence[str]) -> str:
    """Names for people, as many as are read."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(clean(name) for name in names[:MOST_NAMED]) + more


def hash_file(
    path: str, full: str, memory: HashMemory, *, mends: bool = False, tell: Callable[[int], None] = lambda _: None
) -> Remembered | None:
    """Read a file once; None where it holds a private key. `tell` gets how many bytes were read.

    With `mends` a shell script with Windows line ends counts as it is sent, and `notes` says so, or that it is a
    pointer of git LFS.

    Raises:
        OSError: it cannot be read.
    """
    digest, size, tail, notes = hashlib.sha256(), 0, b"", ""
    descriptor = os.open(full, READ)
    try:
        settled_ns = settle(descriptor)
        before = os.fstat(descriptor)
        while chunk := os.read(descriptor, CHUNK):
            if refusals.holds_private_key(tail + chunk):
                return None
            if mends and size == 0 and len(chunk) == before.st_size:
                crooked = refusals.is_crooked_script(path, chunk)
                notes = POINTER if refusals.is_pointer(chunk) else MENDED if crooked else ""
                chunk = refusals.mend_line_ends(chunk) if notes == MENDED else chunk
            digest.update(chunk)
            size += len(chunk)
            tail = chunk[-_OVERLAP:]
            tell(len(chunk))
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    read = Remembered(digest.hexdigest(), size, notes)
    if _facts(before) == _facts(after):
        memory.remember(path, before, read, settled_ns=settled_ns)
    return read


def send_file(
    path: str, entry: CodeEntry, *, during: str, hint: str, start: int = 0, mended: bool = False
) -> Iterator[bytes]:
    """The content of an entry from `start` on, as its hash has it; of a file that only grew since, its beginning.

    Raises:
        StorageError: it is another one now; `during` says what was going on, `hint` what to do.
    """
    digest, size, held = hashlib.sha256(), 0, []
    try:
        for piece in _read_pieces(path, entry, mended=mended):
            digest.update(piece)
            size += len(piece)
            rest = piece[max(0, start - (size - len(piece))) :] if size > start else b""
            if entry.size <= PROVEN_BYTES:
                held.append(rest)
            elif rest:
                yield rest
        if size == entry.size and digest.hexdigest() == entry.sha256:
            yield from held
            return
        seen = "was changed"
    except OSError as error:
        seen = f"cannot be read any more ({error.strerror})"
    raise StorageError(f"{clean(path)} {seen} while {during}", hint=hint)


def _read_pieces(path: str, entry: CodeEntry, *, mended: bool) -> Iterator[bytes]:
    if entry.kind == LINK:
        yield os.fsencode(os.readlink(path))
        return
    descriptor = os.open(path, READ)
    try:
        if mended:
            with open(descriptor, "rb", closefd=False) as file:
                yield refusals.mend_line_ends(file.read())
            return
        left = entry.size
        while left and (piece := os.read(descriptor, min(left, stream.PIECE))):
            left -= len(piece)
            yield piece
    finally:
        os.close(descriptor)


def _facts(seen: os.stat_result) -> tuple[int, ...]:
    return (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
