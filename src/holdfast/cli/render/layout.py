"""The lines of a table: plain, or fitted to the width of a terminal.

A word is never broken where it could be copied (`LONGEST_WHOLE` holds a run id): what does not fit even then is left
to the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module

GAP = "  "
LEAST_TEXT = 28
"""A last column of words that would get narrower stands on lines of its own below its row."""
INDENT = "    "
LONGEST_WHOLE = 72
"""A run id has at most 69 characters."""

Paint = Callable[[str, str], str]
"""Gives a padded piece of a cell its look; the second word is the whole cell."""


def measure(text: str) -> int:
    """Columns that a terminal gives to `text`: two for a wide character, none for one that combines (UAX 11)."""
    if text.isascii():
        return len(text)
    tables = import_module("unicodedata")
    return sum(0 if tables.combining(one) else 1 + (tables.east_asian_width(one) in "WF") for one in text)


def _as_it_is(text: str, _cell: str) -> str:
    return text


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    paint: Paint = _as_it_is,
    emphasise: Callable[[str], str] = str,
) -> list[str]:
    """The lines of a table: two spaces between columns, none at the end of a line.

    With `width` cells are wrapped where that makes the table fit, and a last column of words that has too little room
    stands below its row. `paint` and `emphasise` (for the line of headers)
    add what takes no room.
    """
    titles = [header.upper() for header in headers]
    widths = [max(measure(line[column]) for line in [titles, *rows]) for column in range(len(titles))]
    below: list[str] | None = None
    if width is not None:
        whole = widths[-1]
        widths = _narrow(widths, [titles, *rows], width)
        if widths[-1] < LEAST_TEXT < whole and len(titles) > 1 and len(titles) - 1 not in right:
            below = [row[-1] for row in rows]
            titles, rows = titles[:-1], [row[:-1] for row in rows]
            widths = [max(measure(line[column]) for line in [titles, *rows]) for column in range(len(titles))]
            widths = _narrow(widths, [titles, *rows], width)

    def draw(cells: Sequence[str], look: Paint) -> list[str]:
        pieces = [_wrap(cell, widths[column]) for column, cell in enumerate(cells)]
        lines = []
        for number in range(max((len(piece) for piece in pieces), default=0)):
            texts = [piece[number] if number < len(piece) else "" for piece in pieces]
            last = max((column for column, text in enumerate(texts) if text.strip()), default=-1)
            drawn = []
            for column, text in enumerate(texts[: last + 1]):
                room = " " * (widths[column] - measure(text))
                shown = look(text, cells[column]) if text else ""
                drawn.append(room + shown if column in right else shown + ("" if column == last else room))
            lines.append(GAP.join(drawn).rstrip())
        return lines

    head = [emphasise(line) for line in draw(titles, _as_it_is)]
    lines = list(head)
    for number, row in enumerate(rows):
        lines += draw(row, paint)
        if below is not None and width is not None and below[number] not in ("", "-"):
            lines += [INDENT + piece for piece in _wrap(below[number], max(20, width - len(INDENT)))]
    return lines


def _narrow(widths: list[int], lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths with which the table fits, as far as whole words allow; the widest columns give way first."""
    least = [min(widths[column], max(_longest_word(line[column]) for line in lines)) for column in range(len(widths))]
    found = list(widths)
    while sum(found) + len(GAP) * (len(found) - 1) > width:
        wide = [column for column in range(len(found)) if found[column] > least[column]]
        if not wide:
            break
        found[max(wide, key=lambda column: found[column])] -= 1
    return found


def _longest_word(text: str) -> int:
    return min(max((measure(word) for word in text.split(" ")), default=0), LONGEST_WHOLE)


def _wrap(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`, broken at spaces; a word that is longer is broken anywhere."""
    if measure(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        if line and measure(line) + 1 + measure(word) > width:
            lines.append(line.rstrip())
            line = ""
        line = f"{line} {word}" if line else word
        while measure(line) > width > 0:
            end = next(end for end in range(len(line), 0, -1) if end == 1 or measure(line[:end]) <= width)
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line] if line or not lines else lines
