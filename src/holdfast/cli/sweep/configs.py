"""Configuration files of the user's program: read, laid over each other, written with values as they stood (QUEUE-17).

YAML is kept as PyYAML's own nodes: a scalar that nobody touches is written with the same text, quotes and tag, so a
date, ``1_000`` or ``!custom`` means afterwards what it meant before. JSON numbers keep their text, too. TOML is read
and written as JSON, because nothing here writes TOML.

What is laid over a value takes its kind where the text alone would change it: ``1e-4`` over ``0.001`` is written
``1.0e-4``, since YAML 1.1, which PyYAML reads, takes ``1e-4`` for text; ``no`` over text is put in quotes.
Source: yaml.org/type/float.html (a YAML 1.1 float has a point and a signed exponent), yaml.org/type/bool.html.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.cli.job.documents import parse_toml, require_reader, resolve_plain
from holdfast.model.errors import JobFileError
from holdfast.model.pattern import compile_later
from holdfast.model.record import record

from .read import read_text

if TYPE_CHECKING:
    from holdfast.cli.job.documents import Node
    from holdfast.core.queue.overlay import Tree

MAX_NODES = 100_000
MAX_DEPTH = 64
_TAG = "tag:yaml.org,2002:"
_NUMBER = compile_later(r"([-+]?)(\d+)(?:\.(\d*))?(?:[eE]([-+]?)(\d+))?", re.ASCII)
_JSON_NUMBER = compile_later(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_NOT_TEXT = frozenset({"bool", "null"})


class Dialect(Protocol):
    """How one kind of file is read and written."""

    ending: str

    def load(self, text: str, path: str) -> Tree:
        """The tree of a file."""

    def dump(self, tree: Tree) -> bytes:
        """The file of a tree."""

    def leaf(self, text: str, *, quoted: bool, below: object) -> object:
        """A value that was written as `text`, laid over `below`."""

    def show(self, leaf: object) -> str:
        """A leaf as text, to be compared and shown."""


@record
class ConfigFile:
    """A configuration as read: its path, tree and dialect."""

    path: str
    tree: Tree
    dialect: Dialect


def load_config(path: str) -> ConfigFile:
    """The configuration in a file; by its ending JSON, TOML, else YAML.

    Raises:
        JobFileError: it cannot be read, is not well-formed, or is no mapping.
    """
    text = read_text(path, "configuration")
    lower = path.lower()
    dialect: Dialect = (
        TomlDialect() if lower.endswith(".toml") else JsonDialect() if lower.endswith(".json") else YamlDialect()
    )
    try:
        return ConfigFile(path, dialect.load(text, path), dialect)
    except RecursionError as error:
        raise JobFileError(f"{path}: nested deeper than any configuration") from error


def convert_node(node: Node, dialect: Dialect) -> object:
    """A value of the sweep file as a value of the configuration's dialect."""
    value = node.value
    if isinstance(value, dict):
        return {key: convert_node(item, dialect) for key, item in value.items()}
    if isinstance(value, list):
        return [convert_node(item, dialect) for item in value]
    if value is None:
        return None
    if isinstance(value, bool) and dialect.ending == JsonDialect.ending:
        return value
    quoted = isinstance(value, str) and not isinstance(resolve_plain(value), str)
    return dialect.leaf(value if isinstance(value, str) else node.text, quoted=quoted, below=None)


# -------------------------------------------------------------------------------------------------------------- YAML


class _Key(str):
    """A mapping's key that is written again as it was read (``0`` stays a number, ``"0"`` text)."""

    __slots__ = ("node",)
    node: Any


class YamlDialect:
    """YAML by PyYAML's nodes, which the safe loader makes without building any object."""

    ending = ".yaml"

    def load(self, text: str, path: str) -> Tree:
        """The tree of a YAML text; merge keys (``<<``) are followed.

        Raises:
            JobFileError: it is not well-formed, or no mapping.
            UsageError: this holdfast has no reader for it.
        """
        require_reader("yaml", path)
        import yaml

        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            self._left = MAX_NODES
            tree = {} if root is None else self._convert(root, loader, path, 0)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{path}:{min(mark.line + 1, max(1, len(text.splitlines())))}" if mark is not None else path
            raise JobFileError(f"{place}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
        finally:
            loader.dispose()
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            raise JobFileError(f"{path}: a configuration is a mapping of keys, this is something else")
        return tree

    def _convert(self, node: Any, loader: Any, path: str, depth: int) -> object:  # noqa: ANN401 - yaml has no types
        import yaml

        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise JobFileError(f"{path}: more than {MAX_NODES} values or {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)
            tree: Tree = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise JobFileError(f"{path}:{key_node.start_mark.line + 1}: a key must be plain text")
                key = _Key(key_node.value)
                key.node = key_node
                # A merge puts the mapping's own keys last, and the last one stands.
                tree.pop(key, None)
                tree[key] = self._convert(value_node, loader, path, depth + 1)
            return tree
        if isinstance(node, yaml.SequenceNode):
            return [self._convert(item, loader, path, depth + 1) for item in node.value]
        return None if node.tag == f"{_TAG}null" else node

    def dump(self, tree: Tree) -> bytes:
        """The YAML of a tree, in block style."""
        import yaml

        text = yaml.serialize(self._node(tree), Dumper=yaml.SafeDumper, allow_unicode=True, width=4096)
        assert isinstance(text, str)
        return text.encode()

    def _node(self, value: object) -> Any:  # noqa: ANN401
        import yaml

        if isinstance(value, dict):
            pairs = [(self._key(key), self._node(item)) for key, item in value.items()]
            return yaml.MappingNode(f"{_TAG}map", pairs, flow_style=not value)
        if isinstance(value, list):
            return yaml.SequenceNode(f"{_TAG}seq", [self._node(item) for item in value], flow_style=True)
        return yaml.ScalarNode(f"{_TAG}null", "null") if value is None else _copy(value)

    def _key(self, key: str) -> Any:  # noqa: ANN401
        node = getattr(key, "node", None)
        return self._scalar(key, quoted=False) if node is None else _copy(node)

    def leaf(self, text: str, *, quoted: bool, below: object) -> object:
        """A scalar node; see the module's text about kinds."""
        tag = getattr(below, "tag", "").removeprefix(_TAG)
        new = self._scalar(text, quoted=quoted)
        kind = new.tag.removeprefix(_TAG)
        if tag == "str" and kind in _NOT_TEXT:
            return self._scalar(text, quoted=True)
        if kind == "str" and not quoted and tag != "str" and (match := _NUMBER.fullmatch(text)):
            return self._scalar(_write_float(match), quoted=False)
        return new

    def _scalar(self, text: str, *, quoted: bool) -> Any:  # noqa: ANN401
        import yaml

        if quoted:
            return yaml.ScalarNode(f"{_TAG}str", text, style='"')
        tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, text)

    def show(self, leaf: object) -> str:
        """A scalar as written; a list in its flow form."""
        if leaf is None:
            return "null"
        if isinstance(leaf, list):
            return f"[{', '.join(self.show(item) for item in leaf)}]"
        return "a mapping" if isinstance(leaf, dict) else str(getattr(leaf, "value", leaf))


def _copy(node: Any) -> Any:  # noqa: ANN401
    """The same scalar as a node of its own: one that stood under an alias is written out each time."""
    import yaml

    return yaml.ScalarNode(node.tag, node.value, style=node.style)


def _write_float(match: re.Match[str]) -> str:
    """A number with a point and a signed exponent."""
    sign, whole, fraction, exponent_sign, exponent = match.groups()
    return f"{sign}{whole}.{fraction or '0'}" + (f"e{exponent_sign or '+'}{exponent}" if exponent else "")


# -------------------------------------------------------------------------------------------------------------- JSON


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


class JsonDialect:
    """JSON, with numbers kept as text."""

    ending = ".json"

    def load(self, text: str, path: str) -> Tree:
        """The tree of a JSON text.

        Raises:
            JobFileError: it is not well-formed, or no object.
        """
        try:
            tree = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        except ValueError as error:
            line = getattr(error, "lineno", None)
            raise JobFileError(f"{path}{f':{line}' if line else ''}: not valid JSON: {error}") from error
        if not isinstance(tree, dict):
            raise JobFileError(f"{path}: a configuration is an object, this is something else")
        return tree

    def dump(self, tree: Tree) -> bytes:
        """The JSON of a tree, indented."""
        return (_write_json(tree, "\n") + "\n").encode()

    def leaf(self, text: str, *, quoted: bool, below: object) -> object:
        """A number, a truth value or null where the text is one (and text did not stand there), else text."""
        is_text = isinstance(below, str) and not isinstance(below, _Number)
        if quoted or is_text:
            return text
        if text in {"true", "false"}:
            return text == "true"
        if text == "null":
            return None
        return _Number(text) if _JSON_NUMBER.fullmatch(text) else text

    def show(self, leaf: object) -> str:
        """A value as JSON writes it; text without quotes."""
        return leaf if isinstance(leaf, str) else "a mapping" if isinstance(leaf, dict) else _write_json(leaf, "")


def _write_json(value: object, newline: str) -> str:
    if isinstance(value, _Number):
        return str(value)
    inner = f"{newline}  " if newline else ""
    between = f",{inner}" if newline else ", "
    if isinstance(value, dict) and value:
        entries = (
            f"{json.dumps(str(key), ensure_ascii=False)}: {_write_json(item, inner)}" for key, item in value.items()
        )
        return "{" + inner + between.join(entries) + newline + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_write_json(item, "") for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


class TomlDialect(JsonDialect):
    """TOML is read; what comes out is JSON."""

    def load(self, text: str, path: str) -> Tree:
        """The tree of a TOML text.

        Raises:
            JobFileError: it is not well-formed.
        """
        tree = convert_node(parse_toml(text, path), JsonDialect())
        assert isinstance(tree, dict)
        return tree
