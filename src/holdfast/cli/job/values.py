"""One value at a time: what was written, as the type that `JobSpec` wants, or a sentence about what is wrong with it.

Pure but for the user's home directory in ``~``. Every message says what was expected and what was found.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.core.cards.choose import parse_request
from holdfast.core.container.references import looks_like_file, read_bind, read_reference
from holdfast.core.job.job_paths import UnknownVariableError, is_own, resolve_path
from holdfast.core.job.redact import holds_secret
from holdfast.core.job.scratch import find_pattern_problem
from holdfast.core.job.secret_names import read_use
from holdfast.core.messages import channels
from holdfast.core.near import find_near
from holdfast.core.slurm.options import check_options
from holdfast.model import container, job
from holdfast.model.errors import UsageError
from holdfast.model.gpu import GpuRequest
from holdfast.model.ids import is_name
from holdfast.model.pattern import compile_later
from holdfast.model.record import replace
from holdfast.model.units import format_bytes, parse_bytes, parse_duration

from .schema import Key, Kind
from .shell_words import find_shell_word, locate_program

if TYPE_CHECKING:
    from enum import Enum

    from holdfast.desk.orders.paths import OrderBase

    from .documents import Node

    Base = str | OrderBase
    """From where relative paths count; of a job that goes elsewhere they are kept apart (`OrderBase`)."""


class Unstated(str):
    """The type of `UNSTATED`."""

    __slots__ = ()


UNSTATED: Final = Unstated("unstated")
"""The value of a key that says "not stated": its default holds."""

_ENUMS: dict[str, type[Enum]] = {
    "priority": job.Priority,
    "containment": job.IsolationLevel,
    "on_supervisor_death": job.OrphanPolicy,
    "limits.unenforced": job.UnenforcedPolicy,
    "stall.action": job.StallAction,
    "retries.out_of_memory": job.OutOfMemory,
    "ptrace": job.PtraceScope,
    "tracker": job.TrackerMode,
    "notify.smtp_tls": job.SmtpTls,
    "container.runtime": container.RuntimeName,
    "container.user": container.ContainerUser,
    "container.entrypoint": container.EntryPoint,
}
_LIST_MARKS = compile_later(r"[\[\],]")
_VARIABLE = compile_later(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class WrongValueError(ValueError):
    """The value is not what the key takes; `where` is the place inside a list, else empty."""

    def __init__(self, message: str, where: str = "") -> None:
        """Say what was expected and what was found."""
        super().__init__(message)
        self.where = where


def convert_value(key: Key, node: Node, base: Base) -> object:
    """The value of `key` in `node`; relative paths count from `base`.

    Raises:
        WrongValueError: it is something else than the key takes.
    """
    if (key.word and node.value == key.word) or (key.absent and node.value is None):
        return UNSTATED
    if node.value is None:
        raise WrongValueError("has no value; remove the key to take its default")
    if key.off and (node.value == key.off or node.value is False):
        # YAML takes a bare `off` for a truth value.
        return 0.0
    return _READERS[key.kind](key, node, base)


def describe_node(node: Node) -> str:
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
        raise WrongValueError(f"expected text, found {describe_node(node)}")
    text = node.text if node.text or isinstance(value, str) else str(value)
    if "\0" in text:
        raise WrongValueError("contains a zero byte")
    return text


def _read_text(key: Key, node: Node, base: Base) -> str:
    del base
    if not isinstance(node.value, str):
        raise WrongValueError(f"expected text, found {describe_node(node)}; put quotes around it")
    if not node.value.strip():
        raise WrongValueError(f"is empty; expected text for {key.path}")
    if "\0" in node.value:
        raise WrongValueError("contains a zero byte")
    return node.value


def _read_name(key: Key, node: Node, base: Base) -> str:
    text = _read_text(key, node, base)
    if not is_name(text):
        raise WrongValueError(
            f"{text[:60]!r} is not a name: 1 to 48 letters, digits, dots, dashes and underscores, "
            "a letter or digit first"
        )
    return text


def _read_path(key: Key, node: Node, base: Base) -> str:
    return _absolute(_read_text(key, node, base), base, key, node.where)


def _absolute(text: str, base: Base, key: Key, where: str) -> str:
    if not isinstance(base, str):
        return base.read(text, key.path, where)
    if text.startswith("$"):
        try:
            return resolve_path(text, base, os.environ, os.path.expanduser)
        except UnknownVariableError as error:
            raise WrongValueError(f"{text}: {str(error).removesuffix(' there')}", where) from None
    return os.path.normpath(os.path.join(base, os.path.expanduser(text)))


def _read_image(key: Key, node: Node, base: Base) -> str:
    text = _read_text(key, node, base)
    if looks_like_file(text):
        return _absolute(text, base, key, node.where)
    try:
        return read_reference(text).text
    except ValueError as error:
        raise WrongValueError(str(error)) from None


def _read_binds(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    found = []
    for text, where in _texts(key, node):
        try:
            bind = read_bind(text)
        except ValueError as error:
            raise WrongValueError(str(error), where) from None
        if not isinstance(base, str) and not is_own(bind.source):
            raise WrongValueError(f"{bind.source} is on this machine; name a path of the box", where)
        found.append(str(replace(bind, source=_absolute(bind.source, base, key, where))))
    return tuple(found)


def _read_variables(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        if not _VARIABLE.fullmatch(text):
            raise WrongValueError(f"{text[:60]!r} is not a variable's name (letters, digits, underscores)", where)
    return tuple(text for text, _ in _texts(key, node))


def _texts(key: Key, node: Node) -> list[tuple[str, str]]:
    """The texts of a list, or of a single text, with their places."""
    items = node.value if isinstance(node.value, list) else [node]
    texts = []
    for item in items:
        if not isinstance(item.value, str) or not item.value or "\0" in item.value:
            one = "a list of texts" if isinstance(node.value, list) else "a list"
            raise WrongValueError(f"expected {one}, found {describe_node(item)} for {key.path}", item.where)
        texts.append((item.value, item.where))
    return texts


def _read_paths(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    return tuple(_absolute(text, base, key, where) for text, where in _texts(key, node))


def _read_artifacts(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        if os.path.isabs(text) or ".." in text.split("/"):
            raise WrongValueError(
                f"{text!r} leaves the run directory; write it relative to that, like artifacts/result.json", where
            )
    return tuple(os.path.normpath(text) for text, _ in _texts(key, node))


def _read_patterns(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    for text, where in _texts(key, node):
        if problem := find_pattern_problem(text):
            raise WrongValueError(f"{text!r} {problem}", where)
    return tuple(os.path.normpath(text) for text, _ in _texts(key, node))


def _read_words(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    found: list[str] = []
    for text, where in _texts(key, node):
        # As on a command line, and as `config ls` prints a list.
        words = _LIST_MARKS.sub(" ", text).split()
        for word in words or [text]:
            if word not in key.choices:
                moments = tuple(choice for choice in key.choices if choice != "none")
                raise WrongValueError(_not_one_of(word, key.choices, near_to=moments), where)
        found += words
    if "none" in found and len(found) > 1:
        raise WrongValueError("none stands alone: nothing is told then")
    return () if found == ["none"] else tuple(found)


def _read_secrets(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    uses: dict[str, str] = {}
    for text, where in _texts(key, node):
        try:
            name = read_use(text).name
        except ValueError as error:
            raise WrongValueError(str(error), where) from None
        if uses.setdefault(name, text) != text:
            raise WrongValueError(f"{name} is named twice, as a variable and as a file", where)
    return tuple(uses.values())


def _read_lines(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    del base
    lines = tuple(line for text, _ in _texts(key, node) for line in text.splitlines() if line.strip())
    for line in lines:
        if holds_secret("", line):
            raise WrongValueError("holds what looks like a secret, which would be stored; see `secrets`")
    return lines


def _read_command(key: Key, node: Node, base: Base) -> tuple[str, ...]:
    if isinstance(node.value, list):
        words = []
        for item in node.value:
            if isinstance(item.value, bool) or item.value is None or isinstance(item.value, (list, dict)):
                raise WrongValueError(f"expected a word, found {describe_node(item)}; put quotes around it", item.where)
            words.append(item.value if isinstance(item.value, str) else item.text)
    else:
        try:
            words = shlex.split(_read_text(key, node, base))
        except ValueError as error:
            raise WrongValueError(f"cannot be split into words: {error}; write it as a list") from error
        if wrong := find_shell_word(_read_text(key, node, base)):
            raise WrongValueError(wrong)
    if not words or not words[0]:
        raise WrongValueError("has no command")
    if any("\0" in word for word in words):
        raise WrongValueError("contains a zero byte")
    if key.path == "notify.command":
        try:
            words[0] = locate_program(words[0], base if isinstance(base, str) else None)
        except ValueError as error:
            raise WrongValueError(str(error)) from None
    return tuple(words)


def _read_int(key: Key, node: Node, base: Base) -> int:
    del base
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        quotes = "; remove the quotes" if isinstance(node.value, str) and node.value.strip().isdecimal() else ""
        raise WrongValueError(f"expected a whole number, found {describe_node(node)}{quotes}")
    _check_bounds(key, node.value)
    return node.value


def _read_number(key: Key, node: Node, base: Base) -> float:
    del base
    if isinstance(node.value, bool) or not isinstance(node.value, (int, float)):
        raise WrongValueError(f"expected a number, found {describe_node(node)}")
    # Written so that NaN and infinity (TOML has them) do not pass.
    if not -1e15 < node.value < 1e15:
        raise WrongValueError(f"expected a number, found {describe_node(node)}")
    _check_bounds(key, node.value)
    return float(node.value)


def _check_bounds(key: Key, value: float) -> None:
    if key.least is not None and value < key.least:
        raise WrongValueError(f"{value} is too small; the least is {key.least}")
    if key.most is not None and value > key.most:
        raise WrongValueError(f"{value} is too large; the most is {key.most}")


def _read_bool(key: Key, node: Node, base: Base) -> bool:
    del base
    if not isinstance(node.value, bool):
        raise WrongValueError(f"expected true or false, found {describe_node(node)} for {key.path}")
    return node.value


def _read_choice(key: Key, node: Node, base: Base) -> Enum:
    text = _read_text(key, node, base)
    if text not in key.choices:
        raise WrongValueError(_not_one_of(text, key.choices))
    return _ENUMS[key.path](text)


def _not_one_of(text: str, choices: tuple[str, ...], near_to: tuple[str, ...] = ()) -> str:
    near = find_near(text, near_to or choices)
    end = f"; did you mean {near}?" if near else ""
    return f"{text[:60]!r} is not one of {', '.join(choices)}{end}"


def _read_duration(key: Key, node: Node, base: Base) -> float:
    del base
    if isinstance(node.value, (list, dict)):
        raise WrongValueError(f"expected a duration like 90s, 15m, 1h30m or 7d, found {describe_node(node)}")
    assert node.value is not None
    try:
        seconds = parse_duration(node.value)
    except ValueError as error:
        raise WrongValueError(str(error)) from error
    if key.least is not None and seconds < key.least:
        raise WrongValueError(f"{node.text or seconds} is too short; the least is {key.least:g} s")
    return seconds


def _read_every(key: Key, node: Node, base: Base) -> str:
    """``600s``, ``500 steps``; of checkpoints, which the training library reads, ``auto`` too, of messages epochs."""
    del base
    told = key.kind is Kind.STATUS
    units, other = ("steps or epochs like 500 steps", "") if told else ("steps like 500", "auto, ")
    wrong = f"expected {other}a duration with its unit like 10m, or a number of {units}, found {describe_node(node)}"
    if isinstance(node.value, bool) or not isinstance(node.value, (int, str)):
        raise WrongValueError(wrong)
    text = str(node.value).strip().lower()
    if text == "auto" and not told:
        return text
    try:
        rhythm = channels.read_rhythm(text)
    except ValueError as error:
        raise WrongValueError(str(error) or wrong) from None
    if rhythm.endswith("epochs") and not told:
        raise WrongValueError(wrong)
    return rhythm


def _read_size(key: Key, node: Node, base: Base) -> int:
    del base
    if not isinstance(node.value, (int, str)) or isinstance(node.value, bool):
        raise WrongValueError(f"expected a size like 512MB, 10GB or 8GiB, found {describe_node(node)}")
    try:
        size = parse_bytes(node.value)
    except ValueError as error:
        raise WrongValueError(str(error)) from error
    if key.least is not None and size < key.least:
        raise WrongValueError(f"{node.text or size} is too small; the least is {format_bytes(int(key.least))}")
    return size


def _read_gpus(key: Key, node: Node, base: Base) -> GpuRequest:
    del key, base
    for item in node.value if isinstance(node.value, list) else [node]:
        if isinstance(item.value, bool) or not isinstance(item.value, (int, str)):
            message = f"expected a count, any:N, indexes or UUIDs of cards, found {describe_node(item)}"
            raise WrongValueError(message, item.where)
    written = [item.value for item in node.value] if isinstance(node.value, list) else node.value
    try:
        return parse_request(written)  # type: ignore[arg-type]  # numbers and texts only, seen above
    except ValueError as error:
        raise WrongValueError(str(error).removeprefix("gpus: ")) from error


def _read_cpus(key: Key, node: Node, base: Base) -> tuple[int, ...]:
    del base
    items = node.value if isinstance(node.value, list) else [node]
    cpus: set[int] = set()
    for item in items:
        if isinstance(item.value, bool) or not isinstance(item.value, (int, str)):
            raise WrongValueError(
                f"expected CPU numbers like 0-3,6, found {describe_node(item)} for {key.path}", item.where
            )
        for part in str(item.value).split(","):
            found = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part, re.ASCII)
            if found is None or int(found[2] or found[1]) < int(found[1]):
                raise WrongValueError(f"{part.strip()!r} is not a CPU number or a range like 0-3", item.where)
            cpus.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cpus))


def _read_with(read: Callable[[str], object]) -> Callable[[Key, Node, Base], object]:
    """A reader of text in a form of its own; it stays as it was written."""

    def reader(key: Key, node: Node, base: Base) -> object:
        text = _read_text(key, node, base)
        try:
            read(text)
        except ValueError as error:
            raise WrongValueError(str(error)) from None
        return text

    return reader


def _read_all_with(read: Callable[[str], object]) -> Callable[[Key, Node, Base], object]:
    """As `_read_with`, of a list or of one."""

    def reader(key: Key, node: Node, base: Base) -> object:
        del base
        found = []
        for text, where in _texts(key, node):
            try:
                read(text)
            except ValueError as error:
                raise WrongValueError(str(error), where) from None
            found.append(text)
        # One webhook counts in the job's hash as it always did.
        return found[0] if key.absent and len(found) == 1 else tuple(dict.fromkeys(found))

    return reader


def _read_sbatch(key: Key, node: Node, base: Base) -> dict[str, str]:
    """Options of sbatch by their long names; `true` is one without a value."""
    del base
    if not isinstance(node.value, dict):
        raise WrongValueError(f"expected a mapping of sbatch's options, found {describe_node(node)} for {key.path}")
    found: dict[str, str] = {}
    for name, line in node.duplicates:
        raise WrongValueError(f"{name} is written twice", f"{node.where.rpartition(':')[0]}:{line}")
    for name, item in node.value.items():
        if isinstance(item.value, (list, dict)) or item.value is None or item.value is False:
            raise WrongValueError(f"{name}: expected text, a number or true, found {describe_node(item)}", item.where)
        text = "" if item.value is True else item.text or str(item.value)
        if holds_secret(name, text):
            raise WrongValueError(f"{name} holds what looks like a secret, which would be stored", item.where)
        try:
            found.update(check_options({name: text}))
        except UsageError as error:
            words = str(error).removeprefix("slurm: ")
            raise WrongValueError(f"{words}; {error.hint}" if error.hint else words, item.where) from None
    try:
        return check_options(found)
    except UsageError as error:
        raise WrongValueError(f"{str(error).removeprefix('slurm: ')}; {error.hint}", node.where) from None


_READERS: dict[Kind, Callable[[Key, Node, Base], object]] = {
    Kind.TEXT: _read_text,
    Kind.NAME: _read_name,
    Kind.COMMAND: _read_command,
    Kind.PATH: _read_path,
    Kind.PATHS: _read_paths,
    Kind.IMAGE: _read_image,
    Kind.BINDS: _read_binds,
    Kind.VARIABLES: _read_variables,
    Kind.ARTIFACTS: _read_artifacts,
    Kind.PATTERNS: _read_patterns,
    Kind.WORDS: _read_words,
    Kind.SECRETS: _read_secrets,
    Kind.LINES: _read_lines,
    Kind.INT: _read_int,
    Kind.NUMBER: _read_number,
    Kind.BOOL: _read_bool,
    Kind.CHOICE: _read_choice,
    Kind.DURATION: _read_duration,
    Kind.SIZE: _read_size,
    Kind.GPUS: _read_gpus,
    Kind.CPUS: _read_cpus,
    Kind.ADDRESSES: _read_all_with(channels.read_address),
    Kind.MAIL: _read_with(channels.read_mail),
    Kind.MAILS: _read_all_with(channels.read_mail),
    Kind.SERVER: _read_with(channels.read_server),
    Kind.KEPT: _read_with(channels.read_secret),
    Kind.STATUS: _read_every,
    Kind.EVERY: _read_every,
    Kind.SBATCH: _read_sbatch,
}
