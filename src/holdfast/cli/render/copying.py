"""How far a copy is, on standard error."""

from __future__ import annotations

import sys
import time

from holdfast.model.units import format_bytes, format_duration

from . import is_terminal

PAUSE_S = 0.5


class CopyProgress:
    """One line on standard error, where people look at it, with the rate and the time left."""

    def __init__(self, label: str = "") -> None:
        """Nothing is shown before it takes a while; `label` stands before it."""
        self._label = label
        self._begun = self._last = time.monotonic()
        self._shown = False
        self._on = is_terminal(sys.stderr)

    def tell(self, done: int, total: int) -> None:
        """So much is here."""
        now = time.monotonic()
        if not self._on or now - self._last < PAUSE_S:
            return
        self._last, self._shown = now, True
        rate = done / (now - self._begun)
        left = f", {format_duration((total - done) / rate)} left" if rate > 0 else ""
        self._show(f"{format_bytes(done)} of {format_bytes(total)}, {format_bytes(int(rate))}/s{left}")

    def count(self, done: int) -> None:
        """So much is done, of nobody knows how much."""
        now = time.monotonic()
        if self._on and now - self._last >= PAUSE_S:
            self._last, self._shown = now, True
            self._show(format_bytes(done))

    def _show(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{self._label}{text}")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
