"""Reading a small configuration text strictly: a subset of TOML, or JSON, into flat keys with the line they stand on.

The subset is ``key = value`` with strings, whole and decimal numbers, booleans and one-line lists, ``[section]`` lines
and comments. The standard library reads TOML only from Python 3.11 on, and gives no line numbers; rules need both.
Everything outside the subset is refused, nothing is guessed. Pure.
"""

from __future__ import annotations

import json
import re

from holdfast.model.pattern import compile_later

LONGEST_NUMBER = 40
"""In characters; int() refuses thousands of digits with an error of its own."""


class RulesError(ValueError):
    """The text is not a rules file; the message begins with the line."""


Pairs = dict[str, tuple[object, str]]
"""Flat key (``section.key``) to its value and where it stands (``file:line``)."""


def parse_pairs(text: str, source: str) -> Pairs:
    """Every key of the text with its value and place; a text that begins with a brace is JSON.

    Raises:
        RulesError: it is neither; the message begins with the file and, for TOML, the line.
    """
    return _parse_json(text, source) if text.lstrip().startswith("{") else _parse_toml(text, source)


def _parse_json(text: str, source: str) -> Pairs:
    def refuse_twice(items: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in items]
        if len(set(names)) != len(names):
            raise RulesError(f"{source}: {next(name for name in names if names.count(name) > 1)!r} is given twice")
        return dict(items)

    try:
        value = json.loads(text, object_pairs_hook=refuse_twice)
    except RecursionError as error:
        raise RulesError(f"{source}: nested too deeply") from error
    except ValueError as error:
        raise error if isinstance(error, RulesError) else RulesError(f"{source}: {error}") from error
    pairs: Pairs = {}
    for key, item in value.items():
        inner = {f"{key}.{name}": leaf for name, leaf in item.items()} if isinstance(item, dict) else {key: item}
        pairs.update({name: (leaf, source) for name, leaf in inner.items()})
    return pairs


_LINE = compile_later(
    r"""\s*(?:\[\s*(?P<section>[A-Za-z0-9_-]+)\s*\]|(?P<key>[A-Za-z0-9_-]+)\s*=\s*(?P<value>\S.*?))?\s*$"""
)
_TOKEN = compile_later(
    r"""\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*")|'(?P<raw>[^'\n]*)'|(?P<word>[^\s,\[\]#"']+)|(?P<mark>[\[\],])|(?P<comment>\#.*))\s*"""
)
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n", "\\t": "\t"}


def _parse_toml(text: str, source: str) -> Pairs:
    pairs: Pairs = {}
    section = ""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        where = f"{source}:{number}"
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        head = line if "=" in line.partition("#")[0] else line.partition("#")[0]
        match = _LINE.match(head)
        if match is None or (match["section"] is None and match["key"] is None):
            raise RulesError(f"{where}: expected `key = value` or `[section]`, found {line.strip()!r}")
        if match["section"] is not None:
            section = match["section"] + "."
            continue
        key = section + match["key"]
        if key in pairs:
            raise RulesError(f"{where}: {key!r} is given twice")
        pairs[key] = (_parse_value(match["value"], where), where)
    return pairs


def _parse_value(text: str, where: str) -> object:
    tokens: list[object] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            raise RulesError(f"{where}: cannot read the value {text!r}; strings stand in quotes")
        position = match.end()
        if match["comment"] is None:
            tokens.append(_Mark(match["mark"]) if match["mark"] else _parse_scalar(match, where))
    if len(tokens) == 1 and not isinstance(tokens[0], _Mark):
        return tokens[0]
    is_list = len(tokens) >= 2 and tokens[0] == _Mark("[") and tokens[-1] == _Mark("]")
    items, commas = tokens[1:-1:2], tokens[2:-1:2]
    if not is_list or any(isinstance(item, _Mark) for item in items) or any(mark != _Mark(",") for mark in commas):
        raise RulesError(f'{where}: expected one value or a list like ["a", "b"] on one line, found {text!r}')
    return items


class _Mark(str):
    """A bracket or a comma outside quotes."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mark) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _parse_scalar(match: re.Match[str], where: str) -> object:
    if match["text"] is not None:
        return re.sub(r"\\.", lambda escape: _unescape(escape[0], where), match["text"][1:-1])
    if match["raw"] is not None:
        return match["raw"]
    word = match["word"]
    if word in ("true", "false"):
        return word == "true"
    plain = word.replace("_", "")
    if len(plain) > LONGEST_NUMBER:
        raise RulesError(f"{where}: {word[:20]}... is too large a number")
    if re.fullmatch(r"[+-]?\d+", plain, re.ASCII):
        return int(plain)
    if re.fullmatch(r"[+-]?\d+\.\d+", plain, re.ASCII):
        return float(plain)
    raise RulesError(f"{where}: {word!r} is not a number, true or false; strings stand in quotes: {word!r}")


def _unescape(escape: str, where: str) -> str:
    if escape not in _ESCAPES:
        raise RulesError(f"{where}: unknown escape {escape!r} in a string; use '...' for text that is taken as it is")
    return _ESCAPES[escape]
