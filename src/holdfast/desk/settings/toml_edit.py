"""One value of a TOML text, set or taken out; all else stays to the letter.

What a change comes to is proven by reading both texts: they must differ in this value alone, else it is refused.
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.desk.toml import Node, find_headers, load_plain, parse_toml
from holdfast.model.errors import UsageError


def set_value(text: str, key: str, value: object, path: str) -> str:
    """The text with ``TABLE.NAME`` (or ``NAME``) as `value`: text, a number, a truth value or a list of texts.

    A table may be in others: ``tiers.data.note``.

    Raises:
        UsageError: the file is written so that a person has to change it.
    """
    line = f"{key.rpartition('.')[2]} = {write_value(value)}\n"
    group = key.rpartition(".")[0]
    lines = text.splitlines(keepends=True)
    at = _find_line(text, key, path)
    if at is not None:
        before, comment = _find_surroundings(lines[at])
        made = [*lines[:at], f"{before}{line.rstrip()}{comment}\n", *lines[at + 1 :]]
    else:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        headers = find_headers(text)
        starts = [start for start, name in headers if name == tuple(group.split("."))]
        if group and not starts:
            made = [*lines, *(["\n"] if lines else []), f"[{group}]\n", line]
        else:
            start = starts[0] + 1 if group else headers[0][0] if headers else len(lines)
            made = [*lines[:start], line, *lines[start:]]
    return _prove("".join(made), _lay(load_plain(text), key, value), key, path)


def remove_value(text: str, key: str, path: str) -> str:
    """The text without this value.

    Raises:
        UsageError: the file is written so that a person has to change it.
    """
    at = _find_line(text, key, path)
    lines = text.splitlines(keepends=True)
    made = lines if at is None else [*lines[:at], *lines[at + 1 :]]
    return _prove("".join(made), _lay(load_plain(text), key, None), key, path)


def _find_line(text: str, key: str, path: str) -> int | None:
    """The index of the line where the value is written; None where it is not there."""
    node: Node = parse_toml(text, path)
    for part in key.split("."):
        if not isinstance(node.value, dict) or part not in node.value:
            return None
        node = node.value[part]
    return node.line - 1


def _find_surroundings(line: str) -> tuple[str, str]:
    """What stands before a key and behind its value: the indentation, and a comment with the space before it."""
    text = line.rstrip("\r\n")
    for at in (at for at, letter in enumerate(text) if letter == "#"):
        try:
            load_plain(text[:at])
        except ValueError:
            continue  # that one is in the value
        value = text[:at].rstrip()
        return text[: len(text) - len(text.lstrip())], text[len(value) :]
    return text[: len(text) - len(text.lstrip())], ""


def _lay(plain: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """The values with this one changed; without it for None."""
    group, _, name = key.rpartition(".")
    table: Any = plain
    for part in group.split(".") if group else ():
        table = table.setdefault(part, {}) if isinstance(table, dict) else None
    if isinstance(table, dict):
        if value is None:
            table.pop(name, None)
        else:
            table[name] = list(value) if isinstance(value, tuple) else value
    return plain


def _prove(made: str, expected: dict[str, Any], key: str, path: str) -> str:
    try:
        found: dict[str, Any] | None = load_plain(made)
    except ValueError:
        found = None
    if found is None or _drop_empty(found) != _drop_empty(expected):
        raise UsageError(f"{path}: {key} cannot be changed by a program there", hint="change it in the file by hand")
    return made


def _drop_empty(plain: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in plain.items() if value != {}}


def write_value(value: object) -> str:
    """A value as TOML has it, in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {write_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(write_value(item) for item in value)}]"
    # A basic string of TOML has the escapes of JSON, besides DEL. Source: TOML 1.0, "String".
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
