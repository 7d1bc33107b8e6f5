"""One value at a time: what was written, as the type that `JobSpec` wants, or a sentence about what is wrong with it.

Pure but for the user's home directory in ``~``. Every message says what was expected and what was found.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Final

from holdfast.core.cards import parse_request
from holdfast.core.redact import is_secret_value
from holdfast.core.scratch import find_pattern_problem
from holdfast.model import job
from holdfast.model.ids import is_name
from holdfast.model.units import parse_bytes, parse_duration

from .schema import Key, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum

    from holdfast.model.gpu import GpuRequest

    from .documents import Node


class Unstated(str):
    """The type of `UNSTATED`."""

    __slots__ = ()


UNSTATED: Final = Unstated("unstated")
"""The value of a key that says "not stated": its default holds."""

_ENUMS: dict[str, type[Enum]] = {
    "priority": job.Priority,
    "containment": job.Rung,
    "on_supervisor_death": job.Orphan,
    "limits.unenforced": job.Unenforced,
    "stall.action": job.StallAction,
    "retries.out_of_memory": job.OutOfMemory,
    "ptrace": job.Ptrace,
    "tracker": job.Tracker,
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class WrongValueError(ValueError):
    """The value is not what the key takes; `where` is the place inside a list, else empty."""

    def __init__(self, message: str, where: str = "") -> None:
        """Say what was expected and what was found."""
        super().__init__(message)
        self.where = where


def convert(key: Key, node: Node, base: str) -> object:
    """The value of `key` in `node`; relative paths count from `base`.

    Raises:
        WrongValueError: it is something else than the key takes.
    """
    if node.value is None or (key.absent and node.value == key.absent):
        if key.absent:
            return UNSTATED
        raise WrongValueError("has no value; remove the key to take its default")
    if key.off and (node.value == key.off or node.value is False):
        # YAML takes a bare `off` for a truth value.
        return 0.0
    return _READERS[key.kind](key, node, base)


def describe(node: Node) -> str:
    """What was found, in a few words."""
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    written = node.text if len(node.text) <= 60 else node.text[:57] + "..."
    if isinstance(value, bool):
        return f"{written or str(value).lower()} (a truth value)"
    if isinstance(value, (int, float)):
        return f"the number {written or value}"
    return f"the text {written!r}"


def read_variable(name: str, node: Node) -> str:
    """The text of an environment variable: text, or a number exactly as written.

    Raises:
        WrongValueError: the name or the value cannot stand in an environment.
    """
    if not _VARIABLE.fullmatch(name):
        raise WrongValueError("is not a variable's name (letters, digits, underscores)")
    value = node.value
    if isinstance(value, bool):
        raise WrongValueError(f'{node.text} is a truth value, not text; write it in quotes: "{node.text}"')
    if value is None:
        raise WrongValueError('has no value; write "" for an empty one')
    if not isinstance(value, (str, int, float)):
        raise WrongValueError(f"expected text, found {describe(node)}")
    text = node.text if node.text or isinstance(value, str) else str(value)
    if "\0" in text:
        raise WrongValueError("contains a zero byte")
    return text


def _read_text(key: Key, node: Node, base: str) -> str:
    del base
    if not isinstance(node.value, str):
        raise WrongValueError(f"expected text, found {describe(node)}; put quotes around it")
    if not node.value.strip():
        raise WrongValueError(f"is empty; expected text for {key.path}")
    if "\0" in node.value:
        raise WrongValueError("contains a zero byte")
    return node.value


def _read_name(key: Key, node: Node, base: str) -> str:
    text = _read_text(key, node, base)
    if not is_name(text):
        raise WrongValueError(
            f"{text[:60]!r} is not a name: 1 to 48 letters, digits, dots, dashes and underscores, "
            "a letter or digit first"
        )
    return text


def _read_path(key: Key, node: Node, base: str) -> str:
    return _absolute(_read_text(key, node, base), base)


def _absolute(text: str, base: str) -> str:
    return os.path.normpath(os.path.join(base, os.path.expanduser(text)))


def _read_image(key: Key, node: Node, base: str) -> str:
    """A reference such as ``pytorch:2.4`` stays as it is; a file's path is resolved."""
    text = _read_text(key, node, base)
    is_file = text.startswith(("/", "./", "../", "~")) or text.endswith((".sif", ".img", ".tar"))
    return _absolute(text, base) if is_file else text


def _texts(key: Key, node: Node) -> list[tuple[str, str]]:
    """The texts of a list, or of a single text, with their places."""
    items = node.value if isinstance(node.value, list) else [node]
    texts = []
    for item in items:
        if not isinstance(item.value, str) or not item.value or "\0" in item.value:
            one = "a list of texts" if isinstance(node.value, list) else "a list"
            raise WrongValueError(f"expected {one}, found {describe(item)} for {key.path}", item.where)
        texts.append((item.value, item.where))
    return texts


def _read_paths(key: Key, node: Node, base: str) -> tuple[str, ...]:
    return tuple(_absolute(text, base) for text, _ in _texts(key, node))


def _read_artifacts(key: Key, node: Node, base: str) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        if os.path.isabs(text) or ".." in text.split("/"):
            raise WrongValueError(
                f"{text!r} leaves the run directory; write it relative to that, like artifacts/result.json", where
            )
    return tuple(os.path.normpath(text) for text, _ in _texts(key, node))


def _read_patterns(key: Key, node: Node, base: str) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        problem = find_pattern_problem(text)
        if problem:
            raise WrongValueError(f"{text!r} {problem}", where)
    return tuple(os.path.normpath(text) for text, _ in _texts(key, node))


def _read_words(key: Key, node: Node, base: str) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        if text not in key.choices:
            raise WrongValueError(_not_one_of(text, key.choices), where)
    return tuple(text for text, _ in _texts(key, node))


def _read_command(key: Key, node: Node, base: str) -> tuple[str, ...]:
    if isinstance(node.value, list):
        words = []
        for item in node.value:
            if isinstance(item.value, bool) or item.value is None or isinstance(item.value, (list, dict)):
                raise WrongValueError(f"expected a word, found {describe(item)}; put quotes around it", item.where)
            words.append(item.value if isinstance(item.value, str) else item.text)
    else:
        try:
            words = shlex.split(_read_text(key, node, base))
        except ValueError as error:
            raise WrongValueError(f"cannot be split into words: {error}; write it as a list") from error
    if not words or not words[0]:
        raise WrongValueError("has no command")
    if any("\0" in word for word in words):
        raise WrongValueError("contains a zero byte")
    return tuple(words)


def _read_int(key: Key, node: Node, base: str) -> int:
    del base
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        quotes = "; remove the quotes" if isinstance(node.value, str) and node.value.strip().isdecimal() else ""
        raise WrongValueError(f"expected a whole number, found {describe(node)}{quotes}")
    _check_bounds(key, node.value)
    return node.value


def _read_number(key: Key, node: Node, base: str) -> float:
    del base
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise WrongValueError(f"expected a number, found {describe(node)}")
    # Written so that NaN and infinity (TOML has them) do not pass.
    if not -1e15 < node.value < 1e15:
        raise WrongValueError(f"expected a number, found {describe(node)}")
    _check_bounds(key, node.value)
    return float(node.value)


def _check_bounds(key: Key, value: float) -> None:
    if key.least is not None and value < key.least:
        raise WrongValueError(f"{value} is too small; the least is {key.least:g}")
    if key.most is not None and value > key.most:
        raise WrongValueError(f"{value} is too large; the most is {key.most:g}")


def _read_bool(key: Key, node: Node, base: str) -> bool:
    del base
    if not isinstance(node.value, bool):
        raise WrongValueError(f"expected true or false, found {describe(node)} for {key.path}")
    return node.value


def _read_choice(key: Key, node: Node, base: str) -> Enum:
    text = _read_text(key, node, base)
    if text not in key.choices:
        raise WrongValueError(_not_one_of(text, key.choices))
    return _ENUMS[key.path](text)


def _not_one_of(text: str, choices: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(text, choices, n=1, cutoff=0.5)
    end = f"; did you mean {near[0]}?" if near else ""
    return f"{text[:60]!r} is not one of {', '.join(choices)}{end}"


def _read_duration(key: Key, node: Node, base: str) -> float:
    del base
    if isinstance(node.value, (list, dict)):
        raise WrongValueError(f"expected a duration like 90s, 15m, 4h or 1h30m, found {describe(node)}")
    assert node.value is not None
    try:
        seconds = parse_duration(node.value)
    except ValueError as error:
        raise WrongValueError(str(error)) from error
    if key.least is not None and seconds < key.least:
        raise WrongValueError(f"{node.text or seconds} is too short; the least is {key.least:g} s")
    return seconds


def _read_every(key: Key, node: Node, base: str) -> str:
    """``auto``, seconds or steps, in the form that the training library reads: ``auto``, ``600s``, ``500 steps``."""
    del key, base
    expected = "auto, a duration with its unit like 10m, or a number of steps like 500"
    if isinstance(node.value, bool) or not isinstance(node.value, (int, str)):
        raise WrongValueError(f"expected {expected}, found {describe(node)}")
    text = str(node.value).strip().lower()
    if text == "auto":
        return text
    steps = re.fullmatch(r"(\d{1,18})(?:\s*steps?)?", text, re.ASCII)
    if steps is not None:
        if int(steps[1]) == 0:
            raise WrongValueError("every 0 steps is no rhythm; the least is 1")
        return f"{int(steps[1])} steps"
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise WrongValueError(f"expected {expected}, found {describe(node)}") from error
    if seconds < 1:
        raise WrongValueError(f"{text} is too often; the least is 1s")
    return f"{seconds:.10g}s"


def _read_size(key: Key, node: Node, base: str) -> int:
    del base
    if not isinstance(node.value, (int, str)) or isinstance(node.value, bool):
        raise WrongValueError(f"expected a size like 512MB, 10GB or 8GiB, found {describe(node)}")
    try:
        size = parse_bytes(node.value)
    except ValueError as error:
        raise WrongValueError(str(error)) from error
    if key.least is not None and size < key.least:
        raise WrongValueError(f"{node.text or size} is too small; the least is {key.least:g} bytes")
    return size


def _read_gpus(key: Key, node: Node, base: str) -> GpuRequest:
    del key, base
    for item in node.value if isinstance(node.value, list) else [node]:
        if isinstance(item.value, bool) or not isinstance(item.value, (int, str)):
            message = f"expected a count, any:N, indexes or UUIDs of cards, found {describe(item)}"
            raise WrongValueError(message, item.where)
    written = [item.value for item in node.value] if isinstance(node.value, list) else node.value
    try:
        return parse_request(written)  # type: ignore[arg-type]  # numbers and texts only, seen above
    except ValueError as error:
        raise WrongValueError(str(error).removeprefix("gpus: ")) from error


def _read_cpus(key: Key, node: Node, base: str) -> tuple[int, ...]:
    del base
    items = node.value if isinstance(node.value, list) else [node]
    cpus: set[int] = set()
    for item in items:
        if isinstance(item.value, bool) or not isinstance(item.value, (int, str)):
            raise WrongValueError(f"expected CPU numbers like 0-3,6, found {describe(item)} for {key.path}", item.where)
        for part in str(item.value).split(","):
            found = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
            if found is None or int(found[2] or found[1]) < int(found[1]):
                raise WrongValueError(f"{part.strip()!r} is not a CPU number or a range like 0-3", item.where)
            cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cpus))


def _read_url(key: Key, node: Node, base: str) -> str:
    text = _read_text(key, node, base)
    if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", text):
        raise WrongValueError("expected a URL that begins with https:// or http://, without a user or password in it")
    if is_secret_value(text):
        raise WrongValueError("holds a secret, which would be stored")
    return text


_READERS: dict[Kind, Callable[[Key, Node, str], object]] = {
    Kind.TEXT: _read_text,
    Kind.NAME: _read_name,
    Kind.COMMAND: _read_command,
    Kind.PATH: _read_path,
    Kind.PATHS: _read_paths,
    Kind.IMAGE: _read_image,
    Kind.ARTIFACTS: _read_artifacts,
    Kind.PATTERNS: _read_patterns,
    Kind.WORDS: _read_words,
    Kind.INT: _read_int,
    Kind.NUMBER: _read_number,
    Kind.BOOL: _read_bool,
    Kind.CHOICE: _read_choice,
    Kind.DURATION: _read_duration,
    Kind.SIZE: _read_size,
    Kind.GPUS: _read_gpus,
    Kind.CPUS: _read_cpus,
    Kind.URL: _read_url,
    Kind.EVERY: _read_every,
}
