"""How a code tree travels: one stream of frames, the manifest first, then contents by their hash, then the end.

    holdfast-code-stream 1 plain        or `deflate`: everything after this line is one zlib stream
    manifest SIZE                       and so many bytes
    file SHA256 SIZE                    and so many bytes; each content once, also when several files have it
    end                                 without it, it was cut off

Contents are those that the other side does not have. Pure: bytes come from a function and are handed on in pieces.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator

from .manifest import MOST_BYTES, MOST_MANIFEST_BYTES

MAGIC = b"holdfast-code-stream 1 "
PLAIN, DEFLATED = b"plain", b"deflate"
END = b"end\n"
PIECE = 1 << 18
_LONGEST_LINE = 200
_FRAME = re.compile(rb"(?:(manifest)|file ([0-9a-f]{64})) (0|[1-9][0-9]{0,15})")


class StreamError(ValueError):
    """What arrives is no stream of code, or is not what it says."""


class StreamCut(StreamError):
    """The stream ended before its end."""


def pack(frames: Iterable[bytes], *, deflate: bool) -> Iterator[bytes]:
    """The bytes of a stream, in pieces that are not too small."""
    yield MAGIC + (DEFLATED if deflate else PLAIN) + b"\n"
    packer = zlib.compressobj(1) if deflate else None
    kept: list[bytes] = []
    size = 0
    for frame in frames:
        data = packer.compress(frame) if packer is not None else frame
        kept.append(data)
        size += len(data)
        if size >= PIECE:
            yield b"".join(kept)
            kept, size = [], 0
    kept.append(packer.flush() if packer is not None else b"")
    yield b"".join(kept)


def head_manifest(size: int) -> bytes:
    """What stands before a manifest."""
    return b"manifest %d\n" % size


def head_file(sha256: str, size: int) -> bytes:
    """What stands before the content of a file."""
    return f"file {sha256} {size}\n".encode("ascii")


class StreamReader:
    """Takes a stream apart; `read` answers up to so many bytes, and nothing at the end."""

    def __init__(self, read: Callable[[int], bytes], *, most_bytes: int = MOST_BYTES) -> None:
        """Read the first line; no content may be larger than `most_bytes`.

        Raises:
            StreamError: it is no stream of code.
        """
        self._source = read
        self._most_bytes = most_bytes
        self._kept = self._packed = b""
        self._unpacker: zlib._Decompress | None = None
        line = self._line()
        if line not in (MAGIC + PLAIN, MAGIC + DEFLATED):
            raise StreamError(f"not a stream of code that this version reads: {line[:60]!r}")
        if line.endswith(DEFLATED):
            self._packed, self._kept = self._kept, b""
            self._unpacker = zlib.decompressobj()

    def manifest(self) -> bytes:
        """The manifest.

        Raises:
            StreamError: none stands here, or it was cut off.
        """
        match = _FRAME.fullmatch(self._line())
        if match is None or match[1] is None or int(match[3]) > MOST_MANIFEST_BYTES:
            raise StreamError("no manifest at the beginning")
        return b"".join(self.content(int(match[3])))

    def next_file(self) -> tuple[str, int] | None:
        """SHA-256 and size of the next content, which is then read by `content`; None at the end.

        Raises:
            StreamError: neither a file nor the end stands here, or it was cut off.
        """
        line = self._line()
        if line + b"\n" == END:
            return None
        match = _FRAME.fullmatch(line)
        if match is None or match[2] is None or int(match[3]) > self._most_bytes:
            raise StreamError(f"neither a file nor the end: {line[:60]!r}")
        return match[2].decode(), int(match[3])

    def content(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, in pieces.

        Raises:
            StreamCut: there are fewer.
        """
        while size:
            if not self._kept:
                self._kept = self._more()
            piece, self._kept = self._kept[:size], self._kept[size:]
            size -= len(piece)
            yield piece

    def _line(self) -> bytes:
        while b"\n" not in self._kept:
            if len(self._kept) > _LONGEST_LINE:
                raise StreamError(f"not a stream of code: {self._kept[:60]!r}")
            self._kept += self._more()
        line, _, self._kept = self._kept.partition(b"\n")
        return line

    def _more(self) -> bytes:
        """At least one byte more, at most `PIECE` of them.

        Raises:
            StreamCut: there is none.
        """
        if self._unpacker is None:
            data = self._source(PIECE)
            if not data:
                raise StreamCut("the stream ended before its end")
            return data
        while True:
            packed = self._packed or (b"" if self._unpacker.eof else self._source(PIECE))
            if not packed:
                raise StreamCut("the stream ended before its end")
            try:
                data = self._unpacker.decompress(packed, PIECE)
            except zlib.error as error:
                raise StreamError(f"the stream is damaged: {error}") from error
            self._packed = self._unpacker.unconsumed_tail
            if data:
                return data
