"""Which files of a run are pulled: ``--only PATTERN`` and ``--without PATTERN``.

A pattern with a slash in it is of the whole path, one without of any name in it; ``*`` matches slashes, too. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate

CONTROL = re.compile(r"(run|desired)\.json|results\.json|attempts/[^/]+/[^/]+\.json")
"""What says what the run is: it comes always."""


class Choice:
    """Which paths are wanted; `why` of one that is not names the option."""

    def __init__(self, only: Sequence[str], without: Sequence[str]) -> None:
        """All of them, without either."""
        self._only = [_compile(pattern) for pattern in only]
        self._without = [(f"--without {pattern}", _compile(pattern)) for pattern in without]
        self._said = " ".join(f"--only {pattern}" for pattern in only)

    def refuse(self, path: str) -> str:
        """The option that leaves this path out; empty when it is wanted."""
        if not self._only and not self._without:
            return ""
        if CONTROL.fullmatch(path):
            return ""
        for words, pattern in self._without:
            if pattern.fullmatch(path):
                return words
        return self._said if self._only and not self.names(path) else ""

    def names(self, path: str) -> bool:
        """Whether a pattern of what alone is wanted names this path."""
        return any(pattern.fullmatch(path) for pattern in self._only)


def _compile(pattern: str) -> re.Pattern[str]:
    pattern = pattern.strip("/").removesuffix("/**")
    inside = translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    before = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(f"{before}(?:{inside})(?:/.*)?", re.DOTALL)
