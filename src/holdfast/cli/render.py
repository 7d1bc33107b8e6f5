"""Words on the screen: tables, key and value lists, JSON for programs.

Plain text everywhere but on a terminal: there a table gets emphasis, by rich, imported only then. ``NO_COLOR`` and
``TERM=dumb`` are honoured. Text that other people or programs chose (names, commands, file names) is cleaned of
control characters before a terminal sees it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}
_CONTROLS_BUT_NEWLINE = {code: text for code, text in _CONTROLS.items() if code != ord("\n")}

STYLES: dict[str, tuple[str, str]] = {
    "pass": ("32", "green"),
    "unknown": ("36", "cyan"),
    "warn": ("33", "yellow"),
    "fail": ("31", "red"),
    "running": ("32", "green"),
    "waiting": ("36", "cyan"),
    "succeeded": ("32", "green"),
    "failed": ("31", "red"),
    "timed_out": ("31", "red"),
    "lost": ("31", "red"),
    "stopped": ("33", "yellow"),
    "preempted": ("33", "yellow"),
}
"""Word in a table cell to its colour: the SGR parameter and rich's name. A colour never says what the word does not."""


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with control characters (escape sequences too) made visible, so that it cannot steer a terminal."""
    return text.translate(_CONTROLS_BUT_NEWLINE if keep_newlines else _CONTROLS)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object for programs, with ``schema`` first; model objects are encoded as in the run directory."""
    import json

    from holdfast.model import wire
    from holdfast.model.errors import StorageError
    from holdfast.model.run import SCHEMA

    try:
        text = json.dumps({"schema": SCHEMA, **wire.encode(dict(value))}, indent=1, ensure_ascii=False)
    except RecursionError as error:
        raise StorageError(
            "a file of the run is nested deeper than anything holdfast writes", hint="look at its files themselves"
        ) from error
    print(text)


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    if sys.stderr is not None:
        print(f"holdfast: {clean(text, keep_newlines=True)}", file=sys.stderr, flush=True)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people look at `stream`."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def has_colour(stream: TextIO | None) -> bool:
    """Whether colour is wanted on `stream`.

    Source: no-color.org (any non-empty ``NO_COLOR`` turns colour off).
    """
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(word: str) -> str:
    """`word` in its colour when standard output shows colours."""
    style = STYLES.get(word.split(" ", 1)[0].rstrip(","))
    return f"\x1b[{style[0]}m{word}\x1b[0m" if style and has_colour(sys.stdout) else word


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Print rows under headers, columns aligned; the columns with an index in `right` are right-aligned.

    None is shown as ``-``. Nothing is cut off outside a terminal.
    """
    cells = [["-" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    if is_terminal(sys.stdout):
        _print_rich(headers, cells, frozenset(right))
    else:
        print("\n".join(format_table(headers, cells, right=right)))


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """The lines of a plain table: two spaces between columns, none at the end of a line."""
    lines = [[header.upper() for header in headers], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    to_right = frozenset(right)

    def pad(line: Sequence[str]) -> str:
        padded = [cell.rjust(widths[i]) if i in to_right else cell.ljust(widths[i]) for i, cell in enumerate(line)]
        return "  ".join(padded).rstrip()

    return [pad(line) for line in lines]


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, header in enumerate(headers):
        view.add_column(header.upper(), justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        view.add_row(*(Text(cell, style=STYLES.get(cell.split(",", 1)[0], ("", ""))[1]) for cell in row))
    Console(no_color=not has_colour(sys.stdout), highlight=False).print(view)


def pairs(items: Iterable[tuple[str, object]], *, indent: int = 0) -> None:
    """Print keys and values, values aligned; further lines of a value are indented under its first."""
    known = [(key, clean("-" if value is None else str(value), keep_newlines=True)) for key, value in items]
    if not known:
        return
    width = max(len(key) for key, _ in known)
    margin = " " * indent
    for key, value in known:
        first, *rest = value.split("\n")
        print(f"{margin}{key.ljust(width)}  {first}".rstrip())
        for line in rest:
            print(f"{margin}{' ' * width}  {line}".rstrip())


def heading(text: str) -> None:
    """Print a section's title, bold on a terminal."""
    print(f"\x1b[1m{text}\x1b[0m" if has_colour(sys.stdout) else text)
