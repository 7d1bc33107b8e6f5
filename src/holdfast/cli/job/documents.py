"""A YAML or TOML file as a tree that remembers where each value was written.

YAML is read from libyaml's events, with bounds on size, depth, nodes and aliases, and with a strict idea of scalars:
null, true/false (also YAML 1.1's yes/no/on/off, so that they can be told from text), decimal numbers, and else text.
No tags, no merge keys, no second document. Dates, octal and base-60 numbers stay text: nothing turns silently into
something that was not written.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from collections.abc import Iterator
from importlib import import_module

from holdfast.core.near import find_near
from holdfast.desk import toml
from holdfast.desk.toml import MAX_BYTES as MAX_BYTES  # noqa: PLC0414 - handed on
from holdfast.desk.toml import MAX_DEPTH, Value
from holdfast.desk.toml import Node as Node  # noqa: PLC0414 - handed on
from holdfast.model.errors import JobFileError, UsageError
from holdfast.model.pattern import compile_later

from .shell_words import run_script

MAX_NODES = 20_000
MAX_ALIASES = 100
SILENT_PIPE_S = 5
PROGRAM_ENDINGS = (".py", ".sh", ".bash", ".ipynb")
"""No job file is called so."""

_INT = compile_later(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = compile_later(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


def load_document(path: str) -> Node:
    """The tree of a job file; by its ending TOML, else YAML (of which JSON is a subset).

    Raises:
        JobFileError: it is missing, unreadable, not text, too large, or not well-formed; file and line are named.
    """
    text = read_text(path)
    refuse_program(text, path)
    return parse_toml(text, path) if path.lower().endswith(".toml") else parse_yaml(text, path)


def refuse_program(text: str, path: str) -> None:
    """Refuse a script that was named where a job file belongs.

    Raises:
        JobFileError: it is one.
    """
    if text.startswith("#!") or path.endswith(PROGRAM_ENDINGS):
        interpreter = "python3 " if path.endswith(".py") else "bash " if path.endswith((".sh", ".bash")) else ""
        command = f"{interpreter}{path if interpreter or '/' in path else './' + path}"
        hint = f"to run it, write the command behind all options: -- {command}"
        raise JobFileError(f"{path}: is a program, not a job file", hint=hint)


def read_text(path: str) -> str:
    """The text of a job file: UTF-8 (a byte order mark is fine), at most 1 MiB.

    Raises:
        JobFileError: there is no such text.
    """
    try:
        data = _read_data(path)
    except FileNotFoundError as error:
        raise JobFileError(f"{path}: no such job file", hint=_suggest_file(path)) from error
    except IsADirectoryError as error:
        raise JobFileError(f"{path}: is a directory, not a job file", hint=_suggest_inside(path)) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise JobFileError(f"{path}: cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise JobFileError(f"{path}: is larger than 1 MiB, which no job file is")
    return decode_text(data, path)


def decode_text(data: bytes, path: str) -> str:
    """The text in the bytes of a file, without a byte order mark; `path` is its name in errors.

    Raises:
        JobFileError: it is no UTF-8 text.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise JobFileError(f"{path}: is UTF-16 text", hint="save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise JobFileError(f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise JobFileError(f"{path}:{line}: is not a text file (it contains a zero byte)")
    return text


def _read_data(path: str) -> bytes:
    """At most `MAX_BYTES` and one more. A pipe (``<(...)``) is read to its end; one that stays silent is no job file.

    Raises:
        OSError: it cannot be read, or nothing came.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        data = b""
        while len(data) <= MAX_BYTES:
            if not poll.poll(SILENT_PIPE_S * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe into which nobody wrote for {SILENT_PIPE_S} s")
            piece = os.read(descriptor, MAX_BYTES + 1 - len(data))
            if not piece:
                break
            data += piece
        return data
    finally:
        os.close(descriptor)


def _suggest_file(path: str) -> str:
    directory, name = os.path.split(path)
    if " " in path:
        return f"to run a command: holdfast run -- {path}"
    if name.endswith((".py", ".sh")):
        return f"to run a script: holdfast run -- {' '.join(run_script(path))}"
    try:
        names = [entry for entry in os.listdir(directory or ".") if entry.endswith((".yaml", ".yml", ".toml"))]
    except OSError:
        return f"there is no directory {directory}" if directory else ""
    # Without their endings, which all have in common.
    stems = {os.path.splitext(entry)[0]: entry for entry in names}
    near = find_near(os.path.splitext(name)[0], stems)
    if near:
        return f"did you mean {os.path.join(directory, stems[near])}?"
    return "to run a command instead of a job file, write `--` before it"


def _suggest_inside(path: str) -> str:
    try:
        names = sorted(entry for entry in os.listdir(path) if entry.endswith((".yaml", ".yml", ".toml")))
    except OSError:
        return ""
    return f"did you mean {os.path.join(path, names[0])}?" if names else ""


def resolve_plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if len(text) <= 32:
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def require_reader(module: str, path: str) -> None:
    """Refuse a file that only a third party's reader understands, where a bundle is all of holdfast that is there.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        other = " write it as TOML," if module == "yaml" and sys.version_info >= (3, 11) else ""
        raise UsageError(
            f"{path}: cannot be read here: {sys.executable} has no {'PyYAML' if module == 'yaml' else module} for it",
            hint=f"send the job from the machine where holdfast is installed (holdfast run --on PLACE),{other} or give "
            "all of it as options: holdfast run --help",
        ) from error


# ------------------------------------------------------------------------------------------------------------- YAML


def parse_yaml(text: str, path: str) -> Node:
    """The tree of a YAML text; an empty one is an empty mapping.

    Raises:
        JobFileError: it is not well-formed, or uses what job files do without.
        UsageError: this holdfast has no reader for it.
    """
    require_reader("yaml", path)
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _YamlReader(yaml.parse(text, Loader=loader), path).read_stream()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # What is still open at the end of the file is marked behind its last line.
        lines = text.splitlines() or [""]
        number = None if mark is None else min(mark.line, len(lines) - 1)
        place = f"{path}:{number + 1}" if number is not None else path
        problem = error.problem or error.context or "it cannot be parsed"
        tabs = number is not None and lines[number].lstrip(" ").startswith("\t")
        hint = "nothing was started" + ("; indent with spaces, not tabs" if tabs else "")
        raise JobFileError(f"{place}: not valid YAML: {problem}", hint=hint) from error
    except yaml.YAMLError as error:
        words = str(error).splitlines()[0]
        raise JobFileError(f"{path}: not valid YAML: {words}", hint="nothing was started") from error


class _YamlReader:
    """Builds the tree from parse events, iteratively bounded."""

    def __init__(self, events: Iterator[object], path: str) -> None:
        self._events = events
        self._path = path
        self._anchors: dict[str, Node | None] = {}
        self._nodes = 0
        self._aliases = 0

    def read_stream(self) -> Node:
        import yaml

        root: Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._error(event, "a second document begins here; a job file holds one job")
                root = self._read_node(next(self._events), 0)
        return root if root is not None else Node({}, self._path)

    def _read_node(self, event: object, depth: int) -> Node:
        import yaml

        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self._error(event, f"more than {MAX_NODES} values or {MAX_DEPTH} levels, which no job file has")
        if isinstance(event, yaml.AliasEvent):
            return self._follow_alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent)
        if event.tag is not None:
            raise self._error(event, f"the tag {event.tag} is not used here; write the value plainly or in quotes")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            value = resolve_plain(event.value) if event.implicit[0] else event.value
            node = self._node(event, value, text=event.value)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._node(event, self._read_items(depth))
        else:
            values, duplicates = self._read_entries(depth)
            node = self._node(event, values, duplicates=duplicates)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _read_items(self, depth: int) -> list[Node]:
        import yaml

        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._read_node(event, depth + 1))
        return items

    def _read_entries(self, depth: int) -> tuple[dict[str, Node], tuple[tuple[str, int], ...]]:
        import yaml

        entries: dict[str, Node] = {}
        duplicates: list[tuple[str, int]] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "a key must be plain text")
            if event.value == "<<" and event.implicit[0]:
                raise self._error(event, "merge keys (<<) are not used here; repeat the keys")
            line = self._line(event)
            node = self._read_node(next(self._events), depth + 1)
            if event.value in entries:
                duplicates.append((event.value, line))
                continue
            # The key's line, not the value's: that is where a person looks.
            entries[event.value] = Node(node.value, f"{self._path}:{line}", line, node.text, node.duplicates)
        return entries, tuple(duplicates)

    def _follow_alias(self, event: object) -> Node:
        anchor = getattr(event, "anchor", None)
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise self._error(event, f"more than {MAX_ALIASES} aliases, which no job file has")
        node = self._anchors.get(str(anchor))
        if node is None:
            problem = "contains itself" if anchor in self._anchors else "is not defined"
            raise self._error(event, f"the alias *{anchor} {problem}")
        return node

    def _node(
        self, event: object, value: Value, *, text: str = "", duplicates: tuple[tuple[str, int], ...] = ()
    ) -> Node:
        line = self._line(event)
        return Node(value, f"{self._path}:{line}", line, text, duplicates)

    def _line(self, event: object) -> int:
        mark = getattr(event, "start_mark", None)
        return int(mark.line) + 1 if mark is not None else 1

    def _error(self, event: object, problem: str) -> JobFileError:
        return JobFileError(f"{self._path}:{self._line(event)}: {problem}")


# ------------------------------------------------------------------------------------------------------------- TOML


def parse_toml(text: str, path: str) -> Node:
    """The tree of a TOML text.

    Raises:
        JobFileError: it is not well-formed.
        UsageError: this holdfast has no reader for it.
    """
    if sys.version_info < (3, 11):
        require_reader("tomli", path)
    try:
        return toml.parse_toml(text, path)
    except toml.NotTomlError as error:
        raise JobFileError(str(error)) from error
