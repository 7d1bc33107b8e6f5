"""The entry ``send``: the files of a run in one stream (`core.pull.stream`), for a desk that says what it has of them.

Each file is read once, and hashed as it is sent. What the desk has of a file is proven here by its hash, and not sent
again. The roster comes last, made after the last byte: whatever was written meanwhile is another file in it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.agent.place.answer import describe_error
from holdfast.agent.view.find import find_run, require_readable
from holdfast.agent.view.observe import observe_run
from holdfast.agent.view.runs.proven_results import find_proven
from holdfast.core.code.manifest import MOST_MANIFEST_BYTES
from holdfast.core.pull import stream
from holdfast.core.pull.choose import Choice
from holdfast.core.pull.stream import LEAST_PART, PIECE, TICK_S, Have
from holdfast.host.files.code.hashes import settle
from holdfast.host.files.files import write_all
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, StorageError, UsageError

from .run_roster import CHUNK, Found, LeftOuts, Opener, keep_hash, make_roster, open_memory, walk_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.host.files.code.hashes import HashMemory


def main(_words: list[str]) -> int:
    """Write the stream; the exit code."""
    out = _Out()
    try:
        _send(out)
    except BrokenPipeError:
        return 0  # whoever asked has gone
    except HoldfastError as error:
        return _end(out, error)
    except OSError as error:
        return _end(out, StorageError(f"{error.filename or 'send'}: {error.strerror}"))
    return 0


def _end(out: _Out, error: HoldfastError) -> int:
    out.write(stream.line_about(stream.ERROR, describe_error(error)))
    out.flush()
    return error.exit_code


class _Out:
    """Standard output, in pieces that are not too small; small ones wait no longer than `TICK_S`."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._size = 0
        self._last = time.monotonic()

    def write(self, data: bytes) -> None:
        self._kept.append(data)
        self._size += len(data)
        if self._size >= PIECE or time.monotonic() - self._last >= TICK_S:
            self.flush()

    def flush(self) -> None:
        if self._kept:
            write_all(1, b"".join(self._kept))
        self._kept, self._size, self._last = [], 0, time.monotonic()

    def tick(self) -> None:
        """Say that something is still read, where nothing was said for a while."""
        if time.monotonic() - self._last >= TICK_S:
            self.write(stream.WAIT + b"\n")
            self.flush()


def _send(out: _Out) -> None:
    try:
        wish, have = stream.parse_request(_read_request(out.tick))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"refused as a request to send a run: {error}") from error
    found = find_run(wish.run)
    require_readable(found)
    run_dir, choice = found.run_dir, Choice(wish.only, wish.without)
    memory = open_memory(run_dir, os.environ)
    try:
        view = observe_run(run_dir)
        walked = walk_run(view, LeftOuts(), tell=out.tick)
        proven = find_proven(view)
        spared = frozenset(wish.good if proven.attempt == wish.attempt else ()).difference(proven.rewritten)
        listed = [one for one in walked if one.path not in spared and not choice.refuse(one.path)]
        size = sum(one.size for one in listed)
        rest = size - sum(min(one.size, have[one.path].size) for one in listed if one.path in have)
        begin: dict[str, object] = {"files": len(listed), "bytes": size, "rest": rest, "run_id": found.run_id}
        out.write(stream.line_about(stream.BEGIN, begin))
        out.flush()
        with closing(Opener()) as opener:
            sender = _Sender(opener, memory, out)
            for one in listed:
                sender.send(one, have.get(one.path))
        out.flush()
        roster, about = make_roster(run_dir, choice, memory, tell=out.tick)
    finally:
        memory.save()
    packed = stream.pack_manifest(roster.data)
    out.write(stream.line_about(stream.ROSTER, wire.encode(about), len(packed)) + packed + stream.END + b"\n")
    out.flush()


def _read_request(tell: Callable[[], None]) -> bytes:
    pieces, size = [], 0
    while piece := os.read(0, 1 << 20):
        tell()
        pieces.append(piece)
        size += len(piece)
        if size > 2 * MOST_MANIFEST_BYTES:
            raise ValueError("too long")
    return b"".join(pieces)


class _Sender:
    """Sends files of one run."""

    def __init__(self, opener: Opener, memory: HashMemory, out: _Out) -> None:
        self._opener, self._memory, self._out = opener, memory, out

    def send(self, found: Found, have: Have | None) -> None:
        """One file, from where the desk has it."""
        if found.sum is not None:
            self._send_whole(found, found.sum, have)
            return
        known = self._memory.recall(found.path, found.seen)
        if have is not None and known is not None and (have.size, have.sha256) == (known.size, known.sha256):
            self._out.write(stream.head_path(stream.SAME, found.path))
            return
        try:
            descriptor = self._opener.open(found)
        except OSError:
            self._out.write(stream.head_path(stream.GONE, found.path))  # the roster says why
            return
        try:
            self._send_open(descriptor, found, have)
        finally:
            os.close(descriptor)

    def _send_whole(self, found: Found, digest: str, have: Have | None) -> None:
        """A link, or an empty directory."""
        if have is not None and have.sha256 == digest:
            self._out.write(stream.head_path(stream.SAME, found.path))
            return
        content = os.fsencode(found.target or "")
        mode = stream.DIRECTORY_MODE if found.target is None else stream.LINK_MODE
        head = stream.head_path(stream.FILE, found.path, 0, len(content), mode, found.seen.st_mtime_ns)
        self._out.write(head + content + _sum(digest))

    def _send_open(self, descriptor: int, found: Found, have: Have | None) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._out.write(stream.head_path(stream.GONE, found.path))
            return
        settled_ns = settle(descriptor, self._out.tick)
        before = os.fstat(descriptor)
        size, start, digest = before.st_size, 0, hashlib.sha256()
        if have is not None and (have.size == size or LEAST_PART <= have.size < size):
            digest = self._hash(descriptor, have.size)
            is_same = digest.hexdigest() == have.sha256
            start = have.size if is_same else 0
            if is_same and start == size:
                keep_hash(found.path, before, descriptor, have.sha256, self._memory, settled_ns=settled_ns)
                self._out.write(stream.head_path(stream.SAME, found.path))
                return
            if not start:
                digest = hashlib.sha256()
        numbers = (start, size, stat.S_IMODE(before.st_mode) & 0o777, before.st_mtime_ns)
        self._out.write(stream.head_path(stream.FILE, found.path, *numbers))
        left, shorter = size - start, False
        while left:
            piece = _read(descriptor, min(left, CHUNK), size - left)
            if not piece:  # as many bytes as were promised, and the sum says that they are none of it
                shorter, piece = True, bytes(min(left, CHUNK))
            digest.update(piece)
            self._out.write(piece)
            left -= len(piece)
        if shorter:
            self._out.write(_sum(stream.SHORTER))
            return
        found_sum = digest.hexdigest()
        keep_hash(found.path, before, descriptor, found_sum, self._memory, settled_ns=settled_ns)
        self._out.write(_sum(found_sum))

    def _hash(self, descriptor: int, size: int) -> hashlib._Hash:
        """The hash of the beginning; the other side hears that somebody reads."""
        digest, left = hashlib.sha256(), size
        while left and (piece := _read(descriptor, min(left, CHUNK * 4), size - left)):
            digest.update(piece)
            left -= len(piece)
            self._out.tick()
        return digest


def _read(descriptor: int, size: int, at: int) -> bytes:
    """What is there. A block that cannot be read is as the file's end: others are sent, and the roster says why."""
    try:
        return os.pread(descriptor, size, at)
    except OSError:
        return b""


def _sum(text: str) -> bytes:
    return stream.SUM + b" " + text.encode() + b"\n"
