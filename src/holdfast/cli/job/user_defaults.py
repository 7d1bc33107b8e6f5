"""``config.toml``: what this user wants of every job that says nothing about it (``$XDG_CONFIG_HOME/holdfast``).

Its keys are keys of a job file, few of them: how people are told, the wait for cards, the priority. They are read by
the readers of job files and lie under them: the command line wins over the job file, and that over these. They are
read where a job is read: on the desk for one that goes to a place, in whose order they travel.
"""

from __future__ import annotations

import os

from holdfast.core.near import find_near
from holdfast.desk.places.regular_file import read_own_text
from holdfast.desk.settings import toml_edit, user_file
from holdfast.model.errors import NoSuchName, UsageError
from holdfast.model.job import Channels, Notify
from holdfast.model.record import record

from . import values
from .documents import Node, resolve_plain
from .schema import BY_PATH, KEYS, LIST_KINDS, Key, Kind

SAYS = "what every job does"
NAME = "config.toml"
DEFAULT_KEYS: dict[str, Key] = {
    key.path: key for key in KEYS if key.path in {"priority", "gpu.wait"} or key.group == "notify"
}
"""The keys that it may have, by path."""
BY_OPTION = {key.option: path for path, key in DEFAULT_KEYS.items()}
_HINT = "holdfast config ls has the keys; the file: holdfast config path"


@record
class StatedDefault:
    """A default that is stated: its key, the value as it is written, and the file and line where."""

    key: str
    text: str
    where: str


@record
class UserDefaults:
    """What is stated in the file at `path`, and what holds otherwise, each by key as text."""

    path: str
    stated: dict[str, str]
    otherwise: dict[str, str]


def defaults_path() -> str:
    """Where the file is, whether or not there is one."""
    return f"{user_file.config_home()}/{NAME}"


def read_stated() -> tuple[StatedDefault, ...]:
    """The defaults that the file states, in its order.

    Raises:
        HoldfastError: as of `read_defaults`.
    """
    path = defaults_path()
    nodes, _ = _read(path)
    return tuple(StatedDefault(key, _say(node), node.where) for key, node in nodes.items())


def list_defaults() -> UserDefaults:
    """All keys that can have a default, with what is stated of them.

    Raises:
        HoldfastError: as of `read_defaults`.
    """
    stated = {item.key: item.text for item in read_stated()}
    return UserDefaults(defaults_path(), stated, {path: key.default for path, key in DEFAULT_KEYS.items()})


def read_defaults() -> dict[str, object]:
    """The defaults by field of `JobSpec`; empty without a file.

    Raises:
        NotPermitted: others could have written the file.
        StorageError: it cannot be read.
        UsageError: it is not TOML, or says what it cannot; every problem is named with its line.
    """
    return _read(defaults_path())[1]


def read_queued_defaults() -> dict[str, object]:
    """As `read_defaults`, for a job of the queue, which waits for cards as long as it takes.

    Raises:
        HoldfastError: as of `read_defaults`.
    """
    return {field: value for field, value in read_defaults().items() if field != "gpu.wait_s"}


def read_channels() -> tuple[Notify, Channels]:
    """Whom the defaults name.

    Raises:
        HoldfastError: as of `read_defaults`.
    """
    stated = read_defaults()
    parts: dict[str, dict[str, object]] = {"notify": {}, "channels": {}}
    for field, value in stated.items():
        group, _, name = field.partition(".")
        if group in parts:
            parts[group][name] = value
    return Notify(**parts["notify"]), Channels(**parts["channels"])  # type: ignore[arg-type]  # each by its own reader


def find_key(word: str) -> Key:
    """The key of this path (``gpu.wait``) or option (``wait``).

    Raises:
        NoSuchName: there is none of that name.
        UsageError: it can have no default.
    """
    path = word if word in DEFAULT_KEYS else BY_OPTION.get(word.removeprefix("--"))
    if path is not None:
        return DEFAULT_KEYS[path]
    if word in BY_PATH:
        raise UsageError(f"{word} belongs to a job, and has no default of a user's", hint=_HINT)
    raise NoSuchName(f"there is no key {word[:60]!r}{_propose(word)}", hint=_HINT)


def set_default(key: Key, words: tuple[str, ...]) -> StatedDefault:
    """State a default; answers it, with the file. A program by a relative path is stated by its absolute one.

    Raises:
        UsageError: the key does not take this value, or a person has to change the file.
        NotPermitted, StorageError: the file cannot be trusted, read or written.
    """
    if len(words) > 1 and key.kind not in LIST_KINDS and key.kind is not Kind.COMMAND:
        raise UsageError(f"{key.path} takes one value, and there are {len(words)}", hint="quote what has spaces")
    value: object = list(words) if len(words) > 1 else words[0]
    node = Node([Node(word, key.path, text=word) for word in words], key.path)
    if len(words) == 1:
        node = Node(resolve_plain(words[0]) if key.kind is Kind.STATUS else words[0], key.path, text=words[0])
    try:
        found = values.convert_value(key, node, os.getcwd())
    except values.WrongValueError as error:
        raise UsageError(f"{key.path}: {error}", hint="nothing was changed") from None
    if key.kind is Kind.WORDS and isinstance(found, tuple):
        words = found or words
        value = list(words)
    if key.kind is Kind.COMMAND and isinstance(found, tuple) and found[0] not in words[0]:
        # In the file a relative path would count from there.
        words, value = found, list(found)
    path = _change(lambda text, path: toml_edit.set_value(text, key.path, value, path))
    return StatedDefault(key.path, " ".join(words), path)


def unset_default(key: Key) -> str:
    """State it no more; answers the file.

    Raises:
        HoldfastError: as of `set_default`.
    """
    return _change(lambda text, path: toml_edit.remove_value(text, key.path, path))


def _change(change: user_file.Change) -> str:
    return user_file.change_text(defaults_path(), SAYS, change)


def _read(path: str) -> tuple[dict[str, Node], dict[str, object]]:
    """Path to node and field to value, of the whole file."""
    text = read_own_text(path, SAYS)
    if not text:
        return {}, {}
    tree = user_file.parse_text(text, path)
    assert isinstance(tree.value, dict)
    nodes: dict[str, Node] = {}
    problems: list[str] = []
    for name, node in tree.value.items():
        inner = node.value.items() if isinstance(node.value, dict) else ()
        for key, item in [(f"{name}.{below}", item) for below, item in inner] or [(name, node)]:
            if key in DEFAULT_KEYS:
                nodes[key] = item
            elif item.value != {}:
                problems.append(f"{item.where}: {key}: unknown key{_propose(key)}")
    found: dict[str, object] = {}
    for key, node in nodes.items():
        try:
            value = values.convert_value(DEFAULT_KEYS[key], node, os.path.dirname(path))
        except values.WrongValueError as error:
            problems.append(f"{error.where or node.where}: {key}: {error}")
            continue
        if value is not values.UNSTATED:
            found[DEFAULT_KEYS[key].field] = value
    if problems:
        raise UsageError(
            "\n".join(problems), hint="mend it there; a known key with a wrong value goes by: holdfast config unset KEY"
        )
    return nodes, found


def _propose(word: str) -> str:
    near = find_near(word, [*DEFAULT_KEYS, *BY_OPTION])
    if near:
        return f"; did you mean {BY_OPTION.get(near, near)}?"
    return "; a job's other keys stand in its job file" if word in BY_PATH else ""


def _say(node: Node) -> str:
    return " ".join(item.text for item in node.value) if isinstance(node.value, list) else node.text
