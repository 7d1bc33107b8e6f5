"""How one answer is told from everything around it (docs/places.md): the command line, and parsers of what comes back.

Three lines of ours stand around what a command writes. ``NONCE begin`` comes first on both streams; ``NONCE end`` comes
last on standard output and ``NONCE end CODE`` last on standard error. Both ends together say that the answer is whole:
nothing depends on when the other side closes its pipes, which a process that the command left behind may hold open.

The nonce is new for every call, so nothing that was written before can hold it. Standing alone it is also a word of
the command line, which a shell with ``set -x`` prints; with a second word behind it, it is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .base import MOST_NOISE_BYTES, check_call

_WRAPPER = (
    # The shell's own remarks ("Killed") are nobody's output: it keeps standard error aside, the script gets it back.
    "exec 3>&2 2>/dev/null;echo $0 begin;echo $0 begin >&3;"
    "(exec 2>&3 3>&-;{script});"
    "set -- $?;echo $0 end;echo $0 end $1 >&3"
)
_CODE, _PART_OF_CODE = re.compile(rb" ([0-9]{1,3})\n"), re.compile(rb"( [0-9]{0,3})?")
_NO_CODE, _PART_OF_NO_CODE = re.compile(rb"()\n"), re.compile(rb"")


def make_nonce() -> str:
    """A word that no earlier output can contain."""
    return os.urandom(12).hex()


def build_line(nonce: str, script: str, words: Sequence[str]) -> str:
    """The one line that every login shell reads alike.

    Raises:
        ValueError: as of `check_call`.
    """
    check_call(script, words)
    return f"sh -c '{_WRAPPER.replace('{script}', script)}' {' '.join([nonce, *words])}"


def build_plain_line(script: str, words: Sequence[str]) -> str:
    """The same without a frame, for a person at a terminal.

    Raises:
        ValueError: as of `check_call`.
    """
    check_call(script, words)
    return f"sh -c '{script}' holdfast {' '.join(words)}"


class Framed:
    """One stream of an answer, parsed as it comes.

    `begun`: the command was started. `over`: the end was seen, and all of its output has been handed on. `noise` is
    what came before, at most `MOST_NOISE_BYTES` and a little; `too_noisy` when there was more: nothing will come of it.
    """

    def __init__(self, nonce: str, *, with_code: bool) -> None:
        """`with_code`: the end carries the exit code, as on standard error."""
        self._begin = f"{nonce} begin\n".encode()
        self._end = f"{nonce} end".encode()
        self._whole, self._partial = (_CODE, _PART_OF_CODE) if with_code else (_NO_CODE, _PART_OF_NO_CODE)
        self._held = b""
        self.begun = False
        self.over = False
        self.too_noisy = False
        self.code: int | None = None
        self.noise = b""

    def feed(self, data: bytes) -> bytes:
        """Take what was read and answer what of it the command wrote; what may be the end is held back."""
        if self.over:
            return b""
        held = self._held + data
        if not self.begun:
            at = held.find(self._begin)
            if at < 0:
                self._held = held[-MOST_NOISE_BYTES:]
                self.noise = self._held
                self.too_noisy = self.too_noisy or len(held) > MOST_NOISE_BYTES
                return b""
            self.begun, self.noise = True, held[:at]
            held = held[at + len(self._begin) :]
        return self._strip_end(held)

    def _strip_end(self, held: bytes) -> bytes:
        start = 0
        while True:
            at = held.find(self._end, start)
            if at < 0:
                at = len(held) - _overlap(held[start:], self._end)
                break
            rest = held[at + len(self._end) :]
            match = self._whole.match(rest)
            if match:
                self.over, self.code = True, int(match[1]) if match[1] else None
                break
            if self._partial.fullmatch(rest):
                break
            start = at + len(self._end)  # the command itself wrote something like it, as `ps` does
        self._held = held[at:]
        return held[:at]


def _overlap(data: bytes, marker: bytes) -> int:
    """How many of the last bytes of `data` may be the beginning of `marker`."""
    for size in range(min(len(data), len(marker) - 1), 0, -1):
        if marker.startswith(data[-size:]):
            return size
    return 0
