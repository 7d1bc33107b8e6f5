"""Packed files by their frame: gzip in full, tar by its headers, Zstandard by its blocks.

Sources: RFC 1952; POSIX.1-2017 pax, "ustar Interchange Format"; RFC 8878, sections 3.1.1 and 3.1.2.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from typing import BinaryIO

from .tried import CHUNK, Checked, Damage, Untested, limit_unpacked

BLOCK = 512
_WITHOUT_DATA = b"123456"
_SPARSE, _EXTENDED = b"S", b"x"
MOST_EXTENDED = 1 << 20
_SIZE = re.compile(rb"(?:^|\n)\d+ size=(\d{1,19})\n")
"""In an extended header: the size of the file that follows, of which its own header may say 0 (8 GiB and more)."""
ZSTANDARD = b"\x28\xb5\x2f\xfd"
UNPACKED = Checked(whole=False, why="unpacked, its content was not looked at")
FRAME = Checked(whole=False, why="its frame was read, not its content")


def check_gzip(path: str) -> Checked:
    """Unpack all of it, to nowhere.

    Raises:
        Damage, Untested: it cannot be unpacked; or it is too much.
        OSError: it cannot be read.
    """
    total, most = 0, limit_unpacked(os.stat(path).st_size)
    try:
        with gzip.open(path) as file:
            while piece := file.read(CHUNK):
                total += len(piece)
                if total > most:
                    raise Untested("it unpacks to more than is looked at")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Damage(f"cannot be unpacked: {error}") from error
    return UNPACKED


def check_tar(path: str) -> Checked:
    """Follow the headers to the end mark.

    Raises:
        Damage, Untested: it is cut off, or a header is damaged; or it has holes in a form that is not followed.
        OSError: it cannot be read.
    """
    size, at, first = os.stat(path).st_size, 0, True
    announced: re.Match[bytes] | None = None
    with open(path, "rb") as file:
        while True:
            if at + BLOCK > size:
                raise Damage("it ends before its end mark")
            file.seek(at)
            header = file.read(BLOCK)
            if not any(header):
                if any(file.read(BLOCK)) or size < at + 2 * BLOCK:
                    raise Damage("it ends before its end mark")
                return FRAME
            stated = _read_number(header[148:156])
            if stated != sum(header) - sum(header[148:156]) + 8 * ord(" "):
                raise Damage("it begins as no tar archive does" if first else "the checksum of a header is another")
            kind = header[156:157]
            if kind == _SPARSE:
                raise Untested("it has files with holes, which are not followed")
            length = _read_number(header[124:136]) if announced is None else int(announced[1])
            length = 0 if kind in _WITHOUT_DATA else length
            announced = _SIZE.search(file.read(min(length, MOST_EXTENDED))) if kind == _EXTENDED else None
            at, first = at + BLOCK + -(-length // BLOCK) * BLOCK, False


def _read_number(field: bytes) -> int:
    """Octal digits, or, behind a set bit, the number itself (GNU)."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0") or b"0"
    if digits.strip(b"01234567"):
        raise Damage("a header cannot be read")
    return int(digits, 8)


def check_zstandard(path: str) -> Checked:
    """Follow the blocks of each frame to the end of the file; nothing is unpacked.

    Raises:
        Damage: it is cut off, or none.
        OSError: it cannot be read.
    """
    size, at = os.stat(path).st_size, 0
    with open(path, "rb") as file:
        while at < size:
            file.seek(at)
            head = _read(file, 4)
            if 0x184D2A50 <= int.from_bytes(head, "little") <= 0x184D2A5F:  # to be skipped
                at += 8 + int.from_bytes(_read(file, 4), "little")
            elif head == ZSTANDARD:
                at = _follow_frame(file, at + 4)
            else:
                raise Damage("it begins as no Zstandard frame does" if not at else "something is behind its end")
    if at != size:
        raise Damage("it ends before its end")
    return FRAME


def _follow_frame(file: BinaryIO, at: int) -> int:
    """Where the frame ends whose header begins here."""
    what = _read(file, 1)[0]
    if what & 0x08:
        raise Damage("the header of a frame cannot be read")
    single = what >> 5 & 1
    at += 1 + (0 if single else 1) + (0, 1, 2, 4)[what & 3] + (single, 2, 4, 8)[what >> 6]
    last = False
    while not last:
        file.seek(at)
        block = int.from_bytes(_read(file, 3), "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3:
            raise Damage("the header of a block cannot be read")
        at += 3 + (1 if kind == 1 else length)
    return at + (4 if what & 4 else 0)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise Damage("it ends before its end")
    return data
