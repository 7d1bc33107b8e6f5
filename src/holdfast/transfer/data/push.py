"""Pushes a data set into a directory of a box: only what is missing or different there, one file after the other.

The proof is the box's: it hashes each file before that gets its name, and then keeps the roster beside them. Unchanged
data costs one call. After a cut what arrived stays: whole files, and of a large one its beginning.
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from typing import TYPE_CHECKING

from holdfast.core.code import stream
from holdfast.core.code.manifest import LINK
from holdfast.core.control_characters import clean
from holdfast.model import wire
from holdfast.model.errors import CutOff, HoldfastError, PlaceError, ResourceBusy, StorageError, TooLate, Unreachable
from holdfast.model.record import field, record
from holdfast.model.units import format_bytes
from holdfast.transfer.code.content import CHUNK, READ, send_file
from holdfast.transfer.code.push import shrinks
from holdfast.transport.child import STALL_S

from .hub import suggest_fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.core.code.manifest import CodeEntry
    from holdfast.transfer.box import Box

    from .roster import DataSet

ENTRY = "data"
ASK_LIMIT_S = 120.0
SLOWEST_READ_S = 20_000_000
"""Bytes a second of a disk there, of which what is there is read again."""
SLOWEST_BYTES_S = 20_000
PAUSES_S = (1.0, 5.0, 20.0)
"""Between tries in a row that brought nothing; then the same command goes on."""
PUSH_AGAIN = "run the same command again once nobody writes it"
GOES_ON = "the same command goes on; what arrived is kept"


@record
class Pushed:
    """What a push came to, or with `dry_run` would come to. `directory` is as the box has it.

    `sent` and `bytes` are files and bytes of content that were sent, `replaced` those that were there with another
    content, `files` and `total_bytes` all of the roster, `others` files that were pushed earlier and are not among
    these: they stay.
    """

    place: str
    directory: str
    files: int
    total_bytes: int
    sent: int = 0
    bytes: int = 0
    replaced: int = 0
    others: int = 0
    dry_run: bool = False


@record
class _Answer:
    """What the box says is missing; as `agent.place.data.receive.Missing`."""

    directory: str
    missing: tuple[int, ...]
    replaced: int = 0
    others: int = 0
    parts: dict[str, tuple[int, str]] = field(default_factory=dict)
    free_bytes: int | None = None
    free_inodes: int | None = None


def push_data(
    box: Box,
    data: DataSet,
    directory: str,
    *,
    dry_run: bool = False,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
    say: Callable[[str], None] = lambda _: None,
    pauses_s: Sequence[float] = PAUSES_S,
) -> Pushed:
    """Have the data in `directory` of the box, whole and proven; nothing there is removed.

    `tell` gets the bytes of content that were handed to the connection and how many there are, `say` words for people.

    Raises:
        StorageError: there is no room for it; a file was changed meanwhile; or the box cannot keep it.
        PlaceError: the place gave no answer; the same command goes on.
        HoldfastError: as of the entry.
    """
    tries, begun = _Tries(), False
    failed: HoldfastError | None = None
    while tries.failures <= len(pauses_s):
        try:
            return _push_once(box, data, directory, tries, dry_run=dry_run, tell=tell, say=None if begun else say)
        except (CutOff, TooLate, Unreachable, ResourceBusy) as error:
            if isinstance(error, ResourceBusy) and not begun:
                raise
            # The receiver of the try before may still hang. A box that was never reached is said at once.
            begun = begun or not isinstance(error, Unreachable)
            failed = error
            tries.failures += 1
            if not begun:
                break
            if tries.failures <= len(pauses_s):
                pause_s = pauses_s[tries.failures - 1]
                say(f"{error}; going on in {pause_s:g} s")
                time.sleep(pause_s)
    assert failed is not None
    hint = f"{GOES_ON}; {failed.hint}" if begun else failed.hint
    raise type(failed)(str(failed), hint=hint, details=failed.details) from failed


@record(frozen=False)
class _Tries:
    """`failures` are those in a row that brought nothing, `left` the bytes that were missing when last asked."""

    failures: int = 0
    left: int | None = None

    def note(self, left: int) -> None:
        """Hear how much is missing now."""
        if self.left is not None and left < self.left:
            self.failures = 0
        self.left = left


def _push_once(
    box: Box,
    data: DataSet,
    directory: str,
    tries: _Tries,
    *,
    dry_run: bool,
    tell: Callable[[int, int], None],
    say: Callable[[str], None] | None,
) -> Pushed:
    roster = data.roster
    packed = zlib.compress(roster.data, 1)
    limit_s = ASK_LIMIT_S + roster.bytes / SLOWEST_READ_S
    found = _read_answer(
        box.entry(ENTRY, ("look" if dry_run else "ask", directory, box.place.env_from), stdin=packed, limit_s=limit_s),
        len(roster.entries),
        box.place.name,
    )
    missing = {roster.entries[index].sha256: roster.entries[index] for index in found.missing}
    starts = {digest: _choose_start(data, entry, found.parts.get(digest)) for digest, entry in missing.items()}
    total = sum(entry.size - starts[digest] for digest, entry in missing.items())
    tries.note(total)
    result = Pushed(
        place=box.place.name,
        directory=clean(found.directory),
        files=len(roster.entries),
        total_bytes=roster.bytes,
        sent=len(found.missing),
        bytes=total,
        replaced=found.replaced,
        others=found.others,
        dry_run=dry_run,
    )
    if missing:
        _refuse_lack(data, found, starts, box.place.name)
    if say is not None and box.place.host is not None:
        for words in suggest_fetch(box.place.name, data, missing):
            say(words)
    if missing and not dry_run:
        _send(box, data, directory, missing, starts, total, tell)
    return result


def _read_answer(answer: dict[str, object], files: int, place: str) -> _Answer:
    answer.pop("schema", None)
    try:
        found = wire.decode(_Answer, answer)
    except wire.WireError as error:
        raise PlaceError(f"{place} answered something else than what is missing: {error}") from error
    if not all(0 <= index < files for index in found.missing) or any(size < 0 for size, _ in found.parts.values()):
        raise PlaceError(f"{place} asks for files that the roster does not have")
    return found


def _choose_start(data: DataSet, entry: CodeEntry, part: tuple[int, str] | None) -> int:
    """From where a file is sent: behind what arrived of it, where that is its beginning indeed."""
    if part is None or entry.kind == LINK or not 0 < part[0] <= entry.size:
        return 0
    digest, left = hashlib.sha256(), part[0]
    try:
        descriptor = os.open(data.sources[entry.path], READ)
    except OSError:
        return 0
    with open(descriptor, "rb") as file:
        try:
            while left and (piece := file.read(min(left, CHUNK))):
                digest.update(piece)
                left -= len(piece)
        except OSError:
            return 0
    return part[0] if not left and digest.hexdigest() == part[1] else 0


def _refuse_lack(data: DataSet, found: _Answer, starts: dict[str, int], place: str) -> None:
    """Say how much room is missing before anything is sent."""
    entries = [data.roster.entries[index] for index in found.missing]
    needed = sum(max(0, _measure(data, entry) - starts[entry.sha256]) for entry in entries)
    if found.free_bytes is not None and needed > found.free_bytes:
        raise StorageError(
            f"{place}: {clean(found.directory)} has {format_bytes(found.free_bytes)} free, and {format_bytes(needed)} "
            f"would be sent: {format_bytes(needed - found.free_bytes)} are missing",
            hint="make room there, or push into a directory on another disk; nothing was sent",
        )
    if found.free_inodes is not None and len(entries) > found.free_inodes:
        raise StorageError(
            f"{place}: {clean(found.directory)} has {found.free_inodes} inodes free, for {len(entries)} files",
            hint="pack small files (tar, zip), or push onto another disk; nothing was sent",
        )


def _measure(data: DataSet, entry: CodeEntry) -> int:
    """The room that a file takes; holes take none here, and none there."""
    try:
        return min(entry.size, os.lstat(data.sources[entry.path]).st_blocks * 512)
    except OSError:
        return entry.size


def _send(  # noqa: PLR0917 - what one stream is made of
    box: Box,
    data: DataSet,
    directory: str,
    missing: dict[str, CodeEntry],
    starts: dict[str, int],
    total: int,
    tell: Callable[[int, int], None],
) -> None:
    largest = sorted(missing.values(), key=lambda entry: entry.size, reverse=True)
    deflate = shrinks(data.sources[entry.path] for entry in largest if entry.kind != LINK)
    problem: list[StorageError] = []
    frames = _make_frames(data, missing, starts, total, tell, problem)
    limit_s = ASK_LIMIT_S + (total + len(data.roster.data)) / SLOWEST_BYTES_S + data.roster.bytes / SLOWEST_READ_S
    try:
        box.entry(
            ENTRY,
            ("receive", directory, box.place.env_from),
            stdin=stream.pack(frames, deflate=deflate),
            limit_s=limit_s,
            # Before it takes more of a file the box reads again what it has of that one, or of one like it.
            stall_s=STALL_S + max(entry.size for entry in missing.values()) / SLOWEST_READ_S,
        )
    except HoldfastError:
        if problem:
            raise problem[0] from None
        raise


def _make_frames(  # noqa: PLR0917 - as above
    data: DataSet,
    missing: dict[str, CodeEntry],
    starts: dict[str, int],
    total: int,
    tell: Callable[[int, int], None],
    problem: list[StorageError],
) -> Iterator[bytes]:
    yield stream.head_manifest(len(data.roster.data)) + data.roster.data
    done = 0
    for digest, entry in missing.items():
        start = starts[digest]
        yield stream.head_file(digest, entry.size - start)
        try:
            path = data.sources[entry.path]
            for piece in send_file(path, entry, during="it was pushed", hint=PUSH_AGAIN, start=start):
                yield piece
                done += len(piece)
                tell(done, total)
        except StorageError as error:
            problem.append(error)
            return
    yield stream.END
