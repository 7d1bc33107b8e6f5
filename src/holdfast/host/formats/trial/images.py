"""Images by their frame: the header, sizes that agree, and the end. No picture is decoded.

Sources: PNG specification (W3C), chunks; ITU T.81 annex B (JPEG); GIF89a specification; WebP container specification.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from typing import BinaryIO

from .tried import CHUNK, Checked, Damage, Untested

PNG = b"\x89PNG\r\n\x1a\n"
LARGEST = 256 << 20
"""Of a JPEG or GIF, which is read in one piece."""
SOS, EOI = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
FRAME = Checked(whole=False, why="an image: its frame was read, not its picture")


def check_image(path: str) -> Checked:
    """Look at an image by what it begins with.

    Raises:
        Damage: it is none that is known here, or not whole.
        OSError: it cannot be read.
    """
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        head = file.read(12)
        if head.startswith(PNG):
            _check_png(file, size)
        elif head.startswith(b"\xff\xd8\xff"):
            _check_jpeg(_read_all(file, size))
        elif head[:6] in (b"GIF87a", b"GIF89a"):
            _check_gif(_read_all(file, size))
        elif head[:4] == b"RIFF" and head[8:] == b"WEBP":
            _check_webp(file, struct.unpack("<I", head[4:8])[0] + 8, size)
        else:
            raise Damage("it begins as no PNG, JPEG, GIF or WebP does")
    return FRAME


def _check_png(file: BinaryIO, size: int) -> None:
    at, first = len(PNG), True
    while True:
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            raise Damage("it ends before its end: no IEND")
        length, kind = struct.unpack(">I4s", head)
        if first and kind != b"IHDR":
            raise Damage("it has no header: no IHDR")
        if at + 12 + length > size:
            raise Damage(f"a chunk of {length} bytes does not fit into it")
        digest, left = zlib.crc32(kind), length
        while left:
            piece = file.read(min(left, CHUNK))
            digest, left = zlib.crc32(piece, digest), left - len(piece)
        if file.read(4) != digest.to_bytes(4, "big"):
            raise Damage(f"the checksum of a chunk ({kind.decode('latin-1')}) is another")
        if kind == b"IEND":
            return
        at, first = at + 12 + length, False


def _read_all(file: BinaryIO, size: int) -> bytes:
    if size > LARGEST:
        raise Untested("an image that is larger than is read")
    file.seek(0)
    return file.read()


def _check_jpeg(data: bytes) -> None:
    """Segments have a length; what follows a scan's goes to the next marker, where FF is followed by what is none."""
    at, kind = 2, 0
    while kind != EOI:
        if at + 4 > len(data) and data[at:] != b"\xff\xd9":
            raise Damage("it ends before its end")
        if data[at] != 0xFF:
            raise Damage("a segment does not begin where it should")
        kind = data[at + 1]
        if kind == 0xFF:  # may fill up
            at += 1
        elif kind != EOI:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == SOS:
            found = _MARKER.search(data, at)
            if found is None:
                raise Damage("it ends before its end")
            at = found.start()


def _check_gif(data: bytes) -> None:
    """Screen and colours, then blocks up to the trailer, each of sub-blocks with a length."""
    if len(data) < 13:
        raise Damage("it ends before its end")
    at = 13 + _count_colours(data[10])
    try:
        while (kind := data[at]) != 0x3B:
            if kind == 0x2C:
                at += 11 + _count_colours(data[at + 9])
            elif kind == 0x21:
                at += 2
            else:
                raise Damage("a block does not begin where it should")
            while length := data[at]:
                at += 1 + length
            at += 1
    except IndexError:
        raise Damage("it ends before its end") from None


def _count_colours(flags: int) -> int:
    """The bytes of a table of colours."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _check_webp(file: BinaryIO, promised: int, size: int) -> None:
    """Chunks fill what the header promises."""
    if promised > size:
        raise Damage(f"it has {size} bytes, its header promises {promised}")
    at = 12
    while at < promised:
        file.seek(at)
        head = file.read(8)
        length = int.from_bytes(head[4:], "little")
        at += 8 + length + length % 2
    if at != promised or promised < 20:
        raise Damage("a chunk does not fit into it")
