"""How far a copy is, in memory that a child shares with whoever watches it."""

from __future__ import annotations

import mmap
import struct

LONGEST_WORDS = 1000
"""Bytes."""


class Progress:
    """The numbers of one copy; made before the child is forked that moves them."""

    _FORM = struct.Struct("5Q")
    _LENGTH = struct.Struct("Q")

    def __init__(self) -> None:
        """Nothing is done."""
        self._memory = mmap.mmap(-1, self._FORM.size + self._LENGTH.size + LONGEST_WORDS)

    def say(self, words: str) -> None:
        """What there is to be said of it now, in words; empty: nothing."""
        data, at = words.encode("utf-8", "replace")[:LONGEST_WORDS], self._FORM.size + self._LENGTH.size
        self._LENGTH.pack_into(self._memory, self._FORM.size, 0)
        self._memory[at : at + len(data)] = data
        self._LENGTH.pack_into(self._memory, self._FORM.size, len(data))

    def read_words(self) -> str:
        """What was said last."""
        (length,) = self._LENGTH.unpack_from(self._memory, self._FORM.size)
        at = self._FORM.size + self._LENGTH.size
        return self._memory[at : at + length].decode("utf-8", "replace")

    def read(self) -> tuple[int, int, int, int, int]:
        """Files and bytes in all; files and bytes that are proven there; a count that grows while anything moves."""
        return self._FORM.unpack_from(self._memory)

    def begin(self, files_total: int, bytes_total: int) -> None:
        """A try begins with so much to do."""
        self._FORM.pack_into(self._memory, 0, files_total, bytes_total, 0, 0, self.read()[4] + 1)

    def move(self, *, files_done: int = 0, bytes_done: int = 0) -> None:
        """Something moved."""
        total, size, done, done_bytes, ticks = self.read()
        self._FORM.pack_into(self._memory, 0, total, size, done + files_done, done_bytes + bytes_done, ticks + 1)
