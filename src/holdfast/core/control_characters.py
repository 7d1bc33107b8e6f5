"""Text that other people or programs chose (names, commands, file names), made harmless for a terminal."""

from __future__ import annotations

_ORDER = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What makes a terminal show characters in another order. Source: Unicode Standard Annex 9, section 2."""
_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}
_CONTROLS.update({code: f"\\u{code:04x}" for code in _ORDER})
_IN_JSON = {code: f"\\u{code:04x}" for code in (*range(127, 160), *_ORDER)}
_CONTROLS_BUT_NEWLINE = {code: text for code, text in _CONTROLS.items() if code != ord("\n")}


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with control characters made visible (escape sequences and marks of direction, too).

    So that it cannot steer a terminal, nor look like another text.
    """
    return text.translate(_CONTROLS_BUT_NEWLINE if keep_newlines else _CONTROLS)


def clean_json(text: str) -> str:
    """A JSON text that means the same, with such characters as escapes: json.dumps leaves most of them as they are."""
    return text.translate(_IN_JSON)


def one_line(text: str, longest: int) -> str:
    """`text` of a stranger as one line of at most `longest` characters, which every terminal and file takes."""
    return clean(" ".join(text.split())[:longest].encode("utf-8", "replace").decode())
