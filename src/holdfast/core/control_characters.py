"""Text that other people or programs chose (names, commands, file names), made harmless for a terminal."""

from __future__ import annotations

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}
_CONTROLS_BUT_NEWLINE = {code: text for code, text in _CONTROLS.items() if code != ord("\n")}


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with control characters (escape sequences too) made visible, so that it cannot steer a terminal."""
    return text.translate(_CONTROLS_BUT_NEWLINE if keep_newlines else _CONTROLS)


def one_line(text: str, longest: int) -> str:
    """`text` of a stranger as one line of at most `longest` characters, which every terminal and file takes."""
    return clean(" ".join(text.split())[:longest].encode("utf-8", "replace").decode())
