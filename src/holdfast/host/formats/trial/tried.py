"""What came of loading a file as a trial, its errors, and bounded reading for the formats that are tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from holdfast.model.record import record

CHUNK = 1 << 20
MOST_UNPACKED = 1 << 32
"""So much may any file unpack to; a large one to a hundred times its size. What unpacks to more is not looked at."""


class Damage(ValueError):
    """The file cannot be what its name says; the message says why."""


class Untested(ValueError):
    """Nobody here can tell; the message says why."""


@record
class Checked:
    """It is sound: as a `whole`, values included, or its structure alone, with `why`.

    `array_bytes` is how much of it are tensors and arrays that were looked at: a checkpoint has some.
    """

    whole: bool
    why: str = ""
    array_bytes: int = 0


def read_pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """So many bytes.

    Raises:
        Damage: there are fewer.
    """
    while size:
        piece = file.read(min(size, CHUNK))
        if not piece:
            raise Damage(f"{size} bytes are missing at its end")
        size -= len(piece)
        yield piece


def read_to_end(file: IO[bytes]) -> Iterator[bytes]:
    """All that is left; at the end of a packed one its checksum is compared."""
    while piece := file.read(CHUNK):
        yield piece


def limit_unpacked(size: int) -> int:
    """How many bytes a packed file of this size may come to, to be looked at."""
    return max(MOST_UNPACKED, 100 * size)
