"""What travels when a run is pulled: what the desk has already, then files, then the roster made after the last one.

The desk begins, on standard input, with one line of JSON (what it wants), then a record for each file that it has:
``SIZE SHA256<tab>PATH`` and a zero byte, of a whole file or of the beginning that arrived. The box answers with

    begin CRC {"files": N, "bytes": N, "rest": N}   `rest` without what the desk says that it has
    same LENGTH CRC                                 and the path: what the desk has is all of it
    file START SIZE MODE MTIME_NS LENGTH CRC        and the path, then SIZE-START bytes, then
    sum SHA256                                      of the whole file as it was read; `-`: it became shorter; of a
                                                    link as `hash_link` has it, of an empty directory `DIRECTORY_SUM`
    gone LENGTH CRC                                 and the path: it is not there any more, or cannot be read
    wait                                            while something long is read: nobody is stuck
    roster LENGTH CRC {"run_id": ...}               and the manifest, deflated
    error CRC {...}                                 as every entry answers it; then nothing more comes
    end

A path may hold anything, and so has its length before it. CRC is the CRC-32 of the rest of its line and of the path: a
head that was damaged names no other file. Pure.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from zlib import crc32

from holdfast.core.code.manifest import (
    MOST_MANIFEST_BYTES,
    PUSHING,
    RUN_FORMAT,
    Manifest,
    check_path,
    encode_path,
    parse_manifest,
)
from holdfast.core.code.manifest import ROSTER as BESIDE
from holdfast.core.run.recorded_results import Change
from holdfast.model.receipt import COPY, RECEIPT, LeftOut
from holdfast.model.record import field, record

MOST_FILES = 400_000
"""More are millions of small files, which belong into archives (STOR-07)."""
MOST_BYTES = 1 << 50
PIECE = 1 << 18
LEAST_PART = 1 << 20
"""Of a file, a shorter beginning is not worth keeping."""
TICK_S = 5.0
"""So often the box says that it is still reading."""
LONGEST_ABOUT = 1 << 22
MOST_PACKED = MOST_MANIFEST_BYTES
UNKNOWN = "0" * 64
"""In a quick roster: the hash of a file that was not read yet."""
BEGIN, SAME, FILE, SUM, GONE, WAIT, ROSTER, ERROR, END = (
    b"begin", b"same", b"file", b"sum", b"gone", b"wait", b"roster", b"error", b"end",
)  # fmt: skip
LINK_MODE = 0o120777
"""The mode of a link, whose target is its content."""
DIRECTORY_MODE = 0o040755
"""The mode of an empty directory, which has no content."""
SHORTER = "-"
PULLING = ".holdfast-pull"
"""In a copy: where parts lie until a pull is done."""
OURS = frozenset({COPY, RECEIPT, BESIDE, PUSHING, PULLING})
"""What holdfast itself keeps at the top of a copy."""
_HAVE = re.compile(rb"(0|[1-9][0-9]{0,15}) ([0-9a-f]{64})\t(.+)", re.DOTALL)


@record
class Have:
    """What the desk has of a file: so many bytes from its beginning, with this SHA-256."""

    size: int
    sha256: str


@record
class Wish:
    """What is to be pulled: the run, patterns of what alone, and of what not, as `core.pull.choose` reads them.

    `good` are results that the desk has as the end of `attempt` left them: these are not sent, whatever became of them,
    but for what a later attempt wrote.
    """

    run: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    attempt: int = 0
    good: tuple[str, ...] = ()


@record
class About:
    """What is said of a roster: of which run and attempt, when it was made, whether the run had ended by then.

    `left_out` are entries that are no part of it, those first that close a gate; `left_out_more` says of each reason
    how many more there are. `not_wanted` are files of it that an option left out, by that option: how many, and their
    bytes. `proven` is the newest attempt whose end proved results (0: none did); `changed` are those of them that are
    not what they were then, with how, and `rewritten` those that a later attempt wrote, or may have.
    """

    run_id: str
    attempt: int
    made_at: str
    live: bool
    files: int
    bytes: int
    sha256: str
    left_out: tuple[LeftOut, ...] = ()
    left_out_more: dict[str, int] = field(default_factory=dict)
    not_wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    proven: int = 0
    changed: dict[str, Change] = field(default_factory=dict)
    rewritten: tuple[str, ...] = ()


def build_request(wish: Wish, have: Iterable[tuple[str, Have]]) -> bytes:
    """What the desk writes."""
    asked = {"run": wish.run, "only": wish.only, "without": wish.without, "attempt": wish.attempt, "good": wish.good}
    head = json.dumps(asked).encode() + b"\n"
    return head + b"".join(f"{one.size} {one.sha256}\t".encode() + encode_path(path) + b"\0" for path, one in have)


def parse_request(data: bytes) -> tuple[Wish, dict[str, Have]]:
    """What the desk wants, and has.

    Raises:
        ValueError: it is no request.
    """
    head, newline, rest = data.partition(b"\n")
    if not newline or len(data) > 2 * MOST_MANIFEST_BYTES:
        raise ValueError("no request to send a run")
    asked = json.loads(head)
    try:
        only, without = (tuple(map(str, asked[name])) for name in ("only", "without"))
        good = tuple(map(str, asked.get("good", ())))
        wish = Wish(str(asked["run"]), only, without, int(asked.get("attempt", 0)), good)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no request to send a run: {error}") from error
    records = rest.split(b"\0")
    if records.pop():
        raise ValueError("the request is torn")
    have = {}
    for text in records:
        match = _HAVE.fullmatch(text)
        if match is None:
            raise ValueError(f"no record of a request: {text[:100]!r}")
        check_path(match[3])
        have[match[3].decode("utf-8", "surrogateescape")] = Have(int(match[1]), match[2].decode())
    return wish, have


def head_path(word: bytes, path: str, *numbers: int) -> bytes:
    """A line with numbers, the path's length, and behind it the path."""
    name = encode_path(path)
    head = b"%s %s" % (word, b" ".join([b"%d" % number for number in (*numbers, len(name))]))
    return b"%s %d\n%s" % (head, crc32(name, crc32(head)), name)


def line_about(word: bytes, about: dict[str, object], *numbers: int) -> bytes:
    """A line with numbers and an object of JSON."""
    head, text = b" ".join((word, *(b"%d" % number for number in numbers))), json.dumps(about).encode()
    return b"%s %d %s\n" % (head, crc32(text, crc32(head)), text)


def check_head(line: bytes, name: bytes) -> None:
    """Refuse a head that is not as it was written.

    Raises:
        ValueError: its CRC is another one.
    """
    head, _, stated = line.rpartition(b" ")
    if b"%d" % crc32(name, crc32(head)) != stated:
        raise ValueError(f"a damaged head: {line[:100]!r}")


def parse_about(line: bytes, numbers: int) -> tuple[list[int], dict[str, object]]:
    """The numbers and the object of a line that `line_about` wrote.

    Raises:
        ValueError: it is none, or was damaged.
    """
    parts = line.split(b" ", numbers + 2)
    if len(parts) < numbers + 3 or b"%d" % crc32(parts[-1], crc32(b" ".join(parts[:-2]))) != parts[-2]:
        raise ValueError(f"a damaged line: {line[:100]!r}")
    about = json.loads(parts[-1])
    return [int(part) for part in parts[1:-2]], dict(about)


def pack_manifest(data: bytes) -> bytes:
    """A manifest as it travels."""
    return zlib.compress(data, 1)


def parse_roster(data: bytes) -> Manifest:
    """The manifest of a run.

    Raises:
        ValueError: it is none.
    """
    return parse_manifest(data, most_bytes=MOST_BYTES, most_files=MOST_FILES, form=RUN_FORMAT)


def unpack_manifest(packed: bytes) -> bytes:
    """The manifest that travelled.

    Raises:
        ValueError: it is none.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MOST_MANIFEST_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"the roster is damaged: {error}") from error
    if not unpacker.eof:
        raise ValueError("the roster is torn, or larger than any")
    return data
