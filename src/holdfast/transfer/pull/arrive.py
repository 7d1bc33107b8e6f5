"""Takes the stream of a run (`core.pull.stream`) apart, and puts each file into its place when all of it is proven.

What arrives is believed in nothing: heads have a checksum, paths stay below the copy, each content has the SHA-256 that
was said of it. Whatever is wrong ends this stream with `Damaged`; what was whole by then is in its place.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.code.manifest import DIRECTORY_SUM, Manifest, check_path, hash_link
from holdfast.core.digest import sha256_hex
from holdfast.core.pull import stream
from holdfast.core.pull.stream import LEAST_PART, OURS, About
from holdfast.host.files.files import write_all
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.units import format_bytes
from holdfast.transfer.answers import read_error

from .copy import Copy, explain

LONGEST_PATH = 4096
LARGEST_LINK = 4096
MOST_GROWN = 1 << 30
"""So much more than twice what was announced may come of files that grow meanwhile; there is room for that, or not."""


class Damaged(Exception):
    """What arrives is not what was sent, or not what can be sent; the message says what is wrong with it."""


class _Incoming:
    """The file that arrives now."""

    def __init__(
        self, path: str, size: int, mtime_ns: int, opened: tuple[int, str, hashlib._Hash] | None, mode: int
    ) -> None:
        """`opened` is None for a link, whose target is kept in `content`, and for an empty directory."""
        self.path, self.size, self.mtime_ns = path, size, mtime_ns
        self.descriptor, self.part, self.digest = opened or (-1, "", hashlib.sha256())
        self.is_directory = stat.S_ISDIR(mode)
        self.content = b""

    @property
    def sum(self) -> str:
        """The SHA-256 of what arrived, or what stands for it."""
        if self.is_directory:
            return DIRECTORY_SUM
        return self.digest.hexdigest() if self.descriptor >= 0 else hash_link(self.content)


class Arrival:
    """One stream. Feed it; `roster` and `about` are there when `over`."""

    def __init__(self, copy: Copy, have: dict[str, stream.Have], tell: Callable[[int, int], None]) -> None:
        """`tell` gets the bytes of the run that are here, and how many there are."""
        self.over = False
        self.roster: Manifest | None = None
        self.about: About | None = None
        self.received = self.files = 0
        """Bytes of contents that came, and files that got their place."""
        self.problem: HoldfastError | None = None
        self._copy, self._have, self._tell = copy, have, tell
        self._held = b""
        self._left = 0
        self._file: _Incoming | None = None
        self._wants_sum = self._begun = False
        self._packed: list[bytes] | None = None
        self._seen: set[str] = set()
        self._here = self._total = self._announced = 0

    def feed(self, data: bytes) -> None:
        """Take more of the stream.

        Raises:
            Damaged: it is not what it should be.
            StorageError: the target does not take it, or there is no room.
            HoldfastError: what the other side reported.
        """
        if self._held:
            data, self._held = self._held + data, b""
        at, end = 0, len(data)
        try:
            while at < end:
                if self._left:
                    piece = data[at : at + self._left] if at or self._left < end else data
                    self._take_content(piece)
                    at += len(piece)
                    continue
                newline = data.find(b"\n", at)
                after = -1 if newline < 0 else self._take_line(data[at:newline], data, newline + 1)
                if after < 0:
                    if end - at > stream.LONGEST_ABOUT:
                        raise ValueError("a line without an end")
                    self._held = data[at:]
                    return
                at = after
        except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
            raise Damaged(str(error)) from error
        except OSError as error:
            raise explain(error, self._copy.directory) from error

    def close(self) -> None:
        """Give back what is open; the beginning of a large file stays, to be gone on with."""
        if self._file is not None and self._file.descriptor >= 0:
            os.close(self._file.descriptor)
            if self._file.size < LEAST_PART:
                with suppress(OSError):
                    os.unlink(self._file.part)
        self._file = None

    # ---------------------------------------------------------------------------------------------------------- lines

    def _take_line(self, line: bytes, data: bytes, after: int) -> int:
        """Take one line, and the path behind it; where the next begins, -1 where not all of it is here."""
        word = line.partition(b" ")[0]
        if self.over or (self._wants_sum and word != stream.SUM):
            raise ValueError(f"out of order: {line[:100]!r}")
        if word in (stream.FILE, stream.SAME, stream.GONE):
            return self._take_head(word, line, data, after)
        if word == stream.SUM:
            self._end_file(line[4:].decode("ascii"))
        elif word == stream.BEGIN:
            self._begin(line)
        elif word == stream.ROSTER:
            (self._left,), about = stream.parse_about(line, 1)
            self.about = wire.decode(About, about)
            self._packed = []
            if not 0 < self._left <= stream.MOST_PACKED:
                raise ValueError("a roster of no size")
        elif word == stream.ERROR:
            self.problem = read_error(stream.parse_about(line, 0)[1], self._copy.place)
            raise self.problem
        elif word == stream.END:
            if self.roster is None:
                raise ValueError("an end without a roster")
            self.over = True
        elif line != stream.WAIT:
            raise ValueError(f"a line that means nothing: {line[:100]!r}")
        return after

    def _begin(self, line: bytes) -> None:
        about = stream.parse_about(line, 0)[1]
        if self._begun or about["run_id"] != self._copy.run_id:
            raise ValueError(f"{about['run_id']!r} was sent, and {self._copy.run_id} was asked for")
        files, rest, self._total = (int(str(about[name])) for name in ("files", "rest", "bytes"))
        self._begun, self._announced = True, rest
        self._copy.require_room(rest, files - len(self._have))
        self._tell(0, self._total)

    def _take_head(self, word: bytes, line: bytes, data: bytes, after: int) -> int:
        numbers = [int(number) for number in line.split(b" ")[1:]]
        length = numbers[-2]
        if not 0 < length <= LONGEST_PATH:
            raise ValueError(f"a path of {length} bytes")
        if len(data) < after + length:
            return -1
        name = data[after : after + length]
        stream.check_head(line, name)
        check_path(name)
        path = os.fsdecode(name)
        if len(self._seen) >= stream.MOST_FILES:
            raise ValueError(f"more than {stream.MOST_FILES} files")
        if not self._begun or path in self._seen or path.partition("/")[0] in OURS:
            raise ValueError(f"there twice, or not to be sent: {path!r}")
        self._seen.add(path)
        self._copy.require_own_name(path)
        if word == stream.SAME:
            if path not in self._have:
                raise ValueError(f"the same as something that is not here: {path!r}")
            self._settle_part(path)
            self._advance(self._have[path].size)
        elif word == stream.FILE:
            self._begin_file(path, *numbers[:4])
        return after + length

    def _settle_part(self, path: str) -> None:
        """A part that is the whole file: the link was cut just before its end."""
        have, placed = self._have[path], self._copy.placed.get(path)
        if placed is None or placed.sha256 != have.sha256:
            descriptor, part, _ = self._copy.open_part(path, have.size, have.size, 0o600)
            try:
                self._copy.place_file(path, descriptor, part, have.sha256, os.fstat(descriptor).st_mtime_ns)
            finally:
                os.close(descriptor)
            self.files += 1

    def _begin_file(self, path: str, start: int, size: int, mode: int, mtime_ns: int) -> None:
        if not 0 <= start <= size <= stream.MOST_BYTES:
            raise ValueError(f"{path!r} from {start} to {size}")
        opened = None
        if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
            if start or size > (LARGEST_LINK if stat.S_ISLNK(mode) else 0):
                raise ValueError(f"{path!r} is no link, and no directory")
        else:
            opened = self._copy.open_part(path, start, size, mode & 0o777)
        self._file = _Incoming(path, size, mtime_ns, opened, mode)
        self._left, self._wants_sum = size - start, True
        self._advance(start)

    # -------------------------------------------------------------------------------------------------------- contents

    def _take_content(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._packed is not None:
            self._packed.append(piece)
            if not self._left:
                self._end_roster(b"".join(self._packed))
            return
        assert self._file is not None
        if self.received > 2 * self._announced + MOST_GROWN:
            raise StorageError(
                f"{self._copy.place} announced {format_bytes(self._announced)}, and has sent "
                f"{format_bytes(self.received)}: no more of it is taken",
                hint="see what writes there; the same command goes on, with what it is then",
            )
        self._file.digest.update(piece)
        if self._file.descriptor < 0:
            self._file.content += piece
        else:
            write_all(self._file.descriptor, piece)
        self.received += len(piece)
        self._advance(len(piece))

    def _advance(self, size: int) -> None:
        self._here += size
        self._tell(self._here, max(self._total, self._here))

    def _end_file(self, stated: str) -> None:
        file = self._file
        if file is None:
            raise ValueError("a sum of nothing")
        found = file.sum
        self._wants_sum = False
        if stated != found:
            self._drop_file(file)
            if stated == stream.SHORTER:
                return  # it was written meanwhile: the roster says what it is now
            raise ValueError(f"{file.path!r} arrived damaged: its SHA-256 is another")
        if file.is_directory:
            self._copy.place_directory(file.path)
        elif file.descriptor < 0:
            self._copy.place_link(file.path, os.fsdecode(file.content), found)
        else:
            self._copy.place_file(file.path, file.descriptor, file.part, found, file.mtime_ns)
            os.close(file.descriptor)
        self._file = None
        self.files += not file.is_directory

    def _drop_file(self, file: _Incoming) -> None:
        self._file = None
        if file.descriptor >= 0:
            os.close(file.descriptor)
            os.unlink(file.part)

    def _end_roster(self, packed: bytes) -> None:
        assert self.about is not None
        data = stream.unpack_manifest(packed)
        if sha256_hex(data) != self.about.sha256:
            raise ValueError("the roster is not the one that was made")
        self.roster = stream.parse_roster(data)
        self._packed = None
