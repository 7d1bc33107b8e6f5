"""A TOML text as a tree that remembers where each value was written: job files, sweep files, ``places.toml``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from holdfast.model.pattern import compile_later
from holdfast.model.record import record

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32

Value = str | int | float | bool | None | list["Node"] | dict[str, "Node"]


class NotTomlError(ValueError):
    """The text is not well-formed; the message begins with file and line."""


@record
class Node:
    """One value with its place.

    `where` is for people (``job.yaml:12``, ``--timeout``), `line` 1-based or 0 where there is none, `text` what was
    written (scalars only). `duplicates` are (key, line) pairs of a mapping that were written a second time.
    """

    value: Value
    where: str
    line: int = 0
    text: str = ""
    duplicates: tuple[tuple[str, int], ...] = ()


class _WrittenFloat(float):
    """A float that remembers how it was written."""

    __slots__ = ("text",)
    text: str


def _keep_text(text: str) -> _WrittenFloat:
    number = _WrittenFloat(text)
    number.text = text
    return number


def parse_toml(text: str, path: str) -> Node:
    """The tree of a TOML text.

    Raises:
        NotTomlError: it is not well-formed.
    """
    lines = _find_toml_lines(text, path)
    try:
        return _TomlTree(path, lines).build(load_plain(text, parse_float=_keep_text), (), 1)
    except ValueError as error:
        if type(error) is ValueError:
            # Source: sys.set_int_max_str_digits, "Integer string conversion length limitation".
            raise NotTomlError(f"{path}: holds a number that is too large: {str(error)[:80]}") from error
        found = re.search(r"\(at line (\d+), column \d+\)$", str(error))
        place = f"{path}:{found[1]}" if found else path
        problem = str(error)[: found.start()].rstrip() if found else str(error)
        raise NotTomlError(f"{place}: not valid TOML: {problem}") from error
    except RecursionError as error:
        raise NotTomlError(f"{path}: nested too deeply") from error


def load_plain(text: str, *, parse_float: Callable[[str], object] = float) -> dict[str, object]:
    """The plain values of a TOML text.

    Raises:
        ValueError: it is not well-formed (a class of it), or holds a number that Python does not convert.
        RecursionError: it is nested too deeply.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    # TOML 1.0, "Newline means LF or CRLF": the parser wants these, never CR alone.
    loaded: dict[str, object] = tomllib.loads(text, parse_float=parse_float)
    return loaded


_TABLE_LINE = compile_later(r"\s*\[\[?\s*([^\]\[]+?)\s*\]\]?\s*(?:#.*)?")
_KEY_LINE = compile_later(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)


def _find_toml_lines(text: str, source: str) -> dict[tuple[str, ...], int]:
    """Key path to the line it is written on, by looking for ``[table]`` and ``key =`` lines.

    tomllib does not tell. Inside multi-line strings a line may look like a key; the first finding counts, so that a
    real key before it keeps its line.

    Raises:
        NotTomlError: a key has more parts than we follow.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE_LINE.fullmatch(line):
            table = _split_key(header[1])
            _check_depth(table, f"{source}:{number}")
            lines.setdefault(table, number)
        elif entry := _KEY_LINE.match(line):
            path = (*table, *_split_key(entry[1]))
            _check_depth(path, f"{source}:{number}")
            for length in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:length], number)
    return lines


def find_headers(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """Where tables begin: the index of each header's line, and the table's key.

    A line inside a multi-line string looks like one and is none: what stands before a real header is TOML by itself.
    """
    lines = text.splitlines(keepends=True)
    found = []
    for index, line in enumerate(lines):
        header = _TABLE_LINE.fullmatch(line.rstrip("\r\n"))
        if header and is_toml("".join(lines[:index])):
            found.append((index, _split_key(header[1])))
    return found


def is_toml(text: str) -> bool:
    """Whether this is a whole TOML text."""
    try:
        load_plain(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_depth(key: tuple[str, ...], where: str) -> None:
    if len(key) > MAX_DEPTH:
        raise NotTomlError(f"{where}: more than {MAX_DEPTH} levels")


def _split_key(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


class _TomlTree:
    """Wraps plain values in nodes, with the nearest line that is known."""

    def __init__(self, path: str, lines: dict[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = lines

    def build(self, value: object, key: tuple[str, ...], line: int) -> Node:
        line = self._lines.get(key, line)
        where = f"{self._path}:{line}"
        if isinstance(value, dict):
            return Node(
                {str(name): self.build(item, (*key, str(name)), line) for name, item in value.items()}, where, line
            )
        if isinstance(value, list):
            return Node([self.build(item, key, line) for item in value], where, line)
        if isinstance(value, _WrittenFloat):
            return Node(float(value), where, line, value.text)
        if isinstance(value, (bool, int, str)):
            return Node(value, where, line, str(value))
        return Node(str(value), where, line, str(value))
