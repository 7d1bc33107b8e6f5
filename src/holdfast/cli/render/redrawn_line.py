"""One line of progress on a terminal, drawn over itself; nothing elsewhere."""

from __future__ import annotations

import shutil
import sys

from . import clean, is_terminal


class RedrawnLine:
    """The line. `shows` is False where nobody looks: then nothing is drawn."""

    def __init__(self, *, silent: bool) -> None:
        """Begin with nothing said."""
        self.shows = not silent and is_terminal(sys.stderr)
        self._width = 0

    def draw(self, text: str) -> None:
        """Put `text` in its place, as much of it as one line takes."""
        if not self.shows:
            return
        text = clean(text)[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._width = 0
