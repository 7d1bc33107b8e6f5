"""Words on the screen: tables, key and value lists, JSON for programs.

Plain text everywhere but on a terminal (also one of the desk that sent the command): there a table is fitted to the
width and gets emphasis. ``NO_COLOR`` and ``TERM=dumb`` are honoured. Text that other people or programs chose (names,
commands, file names) is cleaned of control characters before a terminal sees it. Moments are shown by the clock of who
reads them, all in one form; ``--json`` and files have them in UTC.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.control_characters import clean as make_harmless
from holdfast.core.control_characters import clean_json
from holdfast.core.moments import show_times
from holdfast.desk.caller import has_colour as has_colour
from holdfast.desk.caller import is_terminal as is_terminal
from holdfast.desk.caller import terminal_width as terminal_width
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.record import is_record
from holdfast.model.run import SCHEMA

from .layout import GAP, format_table, measure

STYLES: dict[str, str] = {
    "pass": "32",
    "unknown": "36",
    "warn": "33",
    "fail": "31",
    "running": "32",
    "waiting": "36",
    "succeeded": "32",
    "failed": "31",
    "timed_out": "31",
    "lost": "31",
    "stopped": "33",
    "preempted": "33",
}
"""Word in a table cell to its colour, an SGR parameter. A colour never says what the word does not."""


DONE: list[str] = []
"""What `keep_done` was told last."""


def clean(text: str, *, keep_newlines: bool = False) -> str:
    """`text` for people: control characters made visible, moments by the clock of who reads it."""
    return show_times(make_harmless(text, keep_newlines=keep_newlines))


def print_json(value: Mapping[str, object]) -> None:
    """Print an error as the JSON object that programs get, with ``schema`` first."""
    _print_encoded(dict(value))


def print_record(record: object) -> None:
    """Print one record as the JSON object that programs get: its fields, with ``schema`` first."""
    assert is_record(record), f"{type(record)} is no record, so the schema of --json cannot have it"
    _print_encoded(record)


def _print_encoded(value: object) -> None:
    try:
        text = json.dumps(_without_nan({"schema": SCHEMA, **wire.encode(value)}), indent=1, ensure_ascii=False)
    except RecursionError as error:
        raise StorageError(
            "a file of the run is nested deeper than anything holdfast writes", hint="look at its files themselves"
        ) from error
    print(clean_json(text))


def _without_nan(value: object) -> object:
    """JSON has no word for NaN and the infinities, which a diverged run logs: they are null in it."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_exactly(text: str) -> None:
    """Print what is, or will be, the text of a file: no command in it is named as a desk elsewhere would type it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


def flush_output() -> None:
    """Let what was printed so far stand before what is said next, where one file takes both.

    What cannot be written is told of when the command leaves.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()


def keep_done(text: str) -> None:
    """Keep what the command has done so far: it is said beside, where standard output takes no words any more."""
    DONE[:] = [text]


def note(text: str) -> None:
    """Say something beside the result, on standard error."""
    if sys.stderr is not None:
        flush_output()
        # In one write, also without a buffer (PYTHONUNBUFFERED): else what a pipe beside it says comes between.
        print(f"holdfast: {clean(text, keep_newlines=True)}\n", end="", file=sys.stderr, flush=True)


def paint(word: str) -> str:
    """`word` in its colour when standard output shows colours."""
    return _colour(word, word.split(" ", 1)[0].rstrip(",:")) if has_colour(sys.stdout) else word


def _colour(text: str, word: str) -> str:
    style = STYLES.get(word.split(",", 1)[0])
    return f"\x1b[{style}m{text}\x1b[0m" if style else text


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """Print rows under headers, columns aligned; the columns with an index in `right` are right-aligned.

    None is shown as ``-``. Nothing is cut off; on a terminal long cells are wrapped.
    """
    cells = [["-" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    width = terminal_width() if is_terminal(sys.stdout) else None
    if has_colour(sys.stdout):
        lines = format_table(headers, cells, right=frozenset(right), width=width, paint=_colour, emphasise=_bold)
    else:
        lines = format_table(headers, cells, right=frozenset(right), width=width)
    print("\n".join(lines))


def fits(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Whether a table is shown without wrapping: there is no terminal, or it is wide enough."""
    lines = [headers, *([str("-" if cell is None else cell) for cell in row] for row in rows)]
    width = sum(max(map(measure, column)) + len(GAP) for column in zip(*lines, strict=True)) - len(GAP)
    return not is_terminal(sys.stdout) or width <= terminal_width()


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"


def pairs(items: Iterable[tuple[str, object]], *, indent: int = 0, wrap: bool = False) -> None:
    """Print keys and values, values aligned; further lines of a value are indented under its first.

    With `wrap` long values are broken at spaces on a terminal, but no word is: for lists, not for what may be copied.
    """
    known = [(key, clean("-" if value is None else str(value), keep_newlines=True)) for key, value in items]
    if not known:
        return
    width = max(len(key) for key, _ in known)
    margin = " " * indent
    room = max(20, terminal_width() - indent - width - 2) if wrap and is_terminal(sys.stdout) else None
    for key, value in known:
        first, *rest = value.split("\n") if room is None else break_lines(value, room)
        print(f"{margin}{key.ljust(width)}  {first}".rstrip())
        for line in rest:
            print(f"{margin}{' ' * width}  {line}".rstrip())


def break_lines(text: str, room: int) -> list[str]:
    """The lines of `text`, each of at most `room` characters where its words allow it."""
    lines: list[str] = []
    for whole in text.split("\n"):
        lines.append("")
        for word in whole.split(" "):
            if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def heading(text: str) -> None:
    """Print a section's title, bold on a terminal."""
    print(_bold(text) if has_colour(sys.stdout) else text)
