"""Reads a job's output while it grows, and after its middle was cut.

The keeper bounds ``output.log`` in place: it keeps the head, writes one line that says how much went, and puts the
newest part after it, so everything behind the head moves. A follower therefore knows its place by the bytes that it
has passed (the anchor), not by the offset alone: when they are not there any more it looks for them behind the cut
and goes on from them, and only when they are gone too does it say that something was missed. Holes are skipped, never
shown as zeros.

Reads only; never blocks; knows nothing of runs or terminals.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from holdfast.model.pattern import compile_later

CHUNK_BYTES = 256 * 1024
ANCHOR_BYTES = 4096
MISSED = b"\n[holdfast: output was cut while it was being followed; some of it was missed here]\n"
_CUT = compile_later(rb"\n\[holdfast: \d+ bytes were cut here[^\n]*\]\n")


class TailReader:
    """A place in a growing file. `read` answers what is new; `close` gives the descriptor back."""

    def __init__(self, path: str, offset: int = 0, anchor: bytes = b"") -> None:
        """Follow `path` from `offset` bytes; it need not exist yet. `anchor` is what was passed before, if known."""
        self._path = path
        self._descriptor: int | None = None
        self._offset = offset
        self._anchor = anchor

    def read(self) -> Iterator[bytes]:
        """Everything that is there now and was not answered before, in pieces of at most `CHUNK_BYTES`.

        Raises:
            OSError: the file is there and cannot be read.
        """
        if not self._open():
            return
        assert self._descriptor is not None
        if not self._is_in_place() and not self._find_place():
            return
        while True:
            start, end = _find_data(self._descriptor, self._offset)
            if start != self._offset:
                self._offset, self._anchor = start, b""
            data = os.pread(self._descriptor, min(CHUNK_BYTES, end - start), start)
            if not data:
                return
            self._advance(data)
            yield data

    def read_rest(self) -> Iterator[bytes]:
        """As `read`, for the last time: a place that cannot be found again is given up with a line that says so."""
        yield from self.read()
        if self._descriptor is not None and not self._is_in_place():
            self._offset, self._anchor = _after_cut(self._descriptor), b""
            yield MISSED
            yield from self.read()

    @property
    def offset(self) -> int:
        """Where it stands: behind the piece that was answered last."""
        return self._offset

    @property
    def anchored(self) -> int:
        """How many bytes before that it knows its place by."""
        return len(self._anchor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                return False
            _check_regular(self._descriptor, self._path)
            if self._offset and not self._anchor:
                start = max(0, self._offset - ANCHOR_BYTES)
                self._anchor = os.pread(self._descriptor, self._offset - start, start)
        return True

    def _advance(self, data: bytes) -> None:
        self._offset += len(data)
        self._anchor = (self._anchor + data)[-ANCHOR_BYTES:]

    def _is_in_place(self) -> bool:
        assert self._descriptor is not None
        size = len(self._anchor)
        if os.fstat(self._descriptor).st_size < self._offset:
            return False
        return not size or os.pread(self._descriptor, size, self._offset - size) == self._anchor

    def _find_place(self) -> bool:
        """Find what was passed behind the cut; False while the new tail is still being written."""
        assert self._descriptor is not None
        start = _after_cut(self._descriptor)
        if start == 0:
            return False
        position, kept = start, b""
        while data := os.pread(self._descriptor, CHUNK_BYTES, position):
            window = kept + data
            found = window.find(self._anchor)
            if found >= 0:
                self._offset = position - len(kept) + found + len(self._anchor)
                return True
            kept = window[-(len(self._anchor) - 1) :] if len(self._anchor) > 1 else b""
            position += len(data)
        return False


def _check_regular(descriptor: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "is not a regular file; the job replaced it", path)


def _after_cut(descriptor: int) -> int:
    """The offset behind the last line that announces a cut; 0 when there is none.

    The line sits behind the head, whose size is the writer's; so the file is searched from its start.
    """
    position, kept, found = 0, b"", 0
    while data := os.pread(descriptor, CHUNK_BYTES, position):
        window = kept + data
        for match in _CUT.finditer(window):
            found = position - len(kept) + match.end()
        kept = window[-200:]
        position += len(data)
    return found


def _find_data(descriptor: int, offset: int) -> tuple[int, int]:
    """Begin and end of the next stretch of data at or after `offset`; at the end of the file both are `offset`."""
    try:
        start = os.lseek(descriptor, offset, os.SEEK_DATA)
        return start, os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError:
        return offset, max(offset, os.fstat(descriptor).st_size)


def find_last_lines(path: str, count: int) -> int:
    """The offset at which the last `count` lines of a file begin; 0 when it has fewer or does not exist.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return 0
    try:
        _check_regular(descriptor, path)
        end = os.fstat(descriptor).st_size
        if count <= 0:
            return end
        # The newline that ends the last line does not begin another.
        wanted = count + (os.pread(descriptor, 1, end - 1) == b"\n" if end else 0)
        position = end
        while position > 0:
            start = max(0, position - CHUNK_BYTES)
            data = os.pread(descriptor, position - start, start)
            newlines = data.count(b"\n")
            if newlines >= wanted:
                at = len(data)
                for _ in range(wanted):
                    at = data.rfind(b"\n", 0, at)
                return start + at + 1
            wanted -= newlines
            position = start
        return 0
    finally:
        os.close(descriptor)
