"""The sweep file: read strictly, every mistake named at once and in its place (docs/sweeps.md).

It is read as a job file is (`cli.job.documents`), so an unquoted ``no`` or ``1e-3`` is still known as it was written: a
parameter's value is that text. What the values mean together is `building`'s part.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.cli.job import jobfile, values
from holdfast.cli.job.documents import Node, parse_toml, parse_yaml, resolve_plain
from holdfast.cli.job.schema import BY_PATH, GROUPS
from holdfast.core.near import find_near
from holdfast.core.queue.grid import GridError, check_arguments, check_parameter, check_values
from holdfast.model.record import field, record
from holdfast.model.sweep import DEFAULT_ARGUMENTS, OVERLAY
from holdfast.model.units import parse_duration

from .read import FileProblems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HINT = "nothing was handed in; holdfast's docs/sweeps.md describes every key"
JOB_FILE = "file"
"""The key inside of ``job:`` that names a job file, below the keys written beside it."""


@record
class JobOverride:
    """What holds for some jobs only. `when` chooses them; empty for an entry of ``jobs``, which is one itself.

    `job` are job file keys by path, `params` further parameters, `overlays` names, `cost_s` expected seconds.
    """

    where: str
    when: dict[str, tuple[str, ...]] = field(default_factory=dict)
    job: dict[str, Node] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    overlays: tuple[str, ...] = ()
    cost_s: float | None = None
    name: str = ""


@record(frozen=False)
class SweepFile:
    """A sweep as written; paths are absolute. `quoted` are (parameter, value) pairs that stood in quotes."""

    path: str
    directory: str
    name: str = ""
    job_file: str | None = None
    job: dict[str, Node] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    jobs: list[JobOverride] = field(default_factory=list)
    exclude: list[tuple[str, dict[str, tuple[str, ...]]]] = field(default_factory=list)
    overrides: list[JobOverride] = field(default_factory=list)
    overlays: dict[str, str | Node] = field(default_factory=dict)
    config: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = DEFAULT_ARGUMENTS
    cost_s: float | None = None
    max_parallel: int | None = None
    hold_after: int = 0
    priority: int = 0
    after: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    shared_said: tuple[str, ...] = ()
    quoted: set[tuple[str, str]] = field(default_factory=set)
    text: str = ""


def parse_sweep(text: str, path: str) -> SweepFile:
    """The sweep in a text that was written at `path`.

    Raises:
        JobFileError: it has mistakes; up to ten are named with their lines.
    """
    tree = parse_toml(text, path) if path.lower().endswith(".toml") else parse_yaml(text, path)
    return _Reader(path, text).read(tree)


def read_scalar(node: Node) -> str:
    """A parameter's value as it was written.

    Raises:
        ValueError: it is a list, a mapping, or nothing.
    """
    if isinstance(node.value, (list, dict)) or (node.value is None and not node.text):
        raise ValueError(f"expected one value, found {values.describe_node(node)}")
    if isinstance(node.value, str):
        return node.value
    return node.text.lower() if isinstance(node.value, bool) and node.text in {"True", "False"} else node.text


def read_cost(text: str | float) -> float:
    """Expected seconds: a duration (50m), or a plain number.

    Raises:
        ValueError: it is neither, or not above 0.
    """
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("a cost is more than 0")
    return seconds


class _Reader:
    """Reads one file, collecting what is wrong."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._problems = FileProblems()
        self._sweep = SweepFile(path, os.path.dirname(os.path.abspath(path)), text=text)
        self._keys: dict[str, Callable[[Node], None]] = {
            "name": self._read_name,
            "job": self._read_job,
            "grid": self._read_grid,
            "jobs": self._read_jobs,
            "exclude": self._read_exclude,
            "overrides": self._read_overrides,
            "overlays": self._read_overlays,
            "config": self._read_config,
            "set": self._read_settings,
            "arguments": self._read_arguments,
            "cost": self._read_cost,
            "max_parallel": self._read_max_parallel,
            "hold_after": self._read_hold_after,
            "priority": self._read_priority,
            "after": self._read_after,
            "shared": self._read_shared,
        }

    def read(self, tree: Node) -> SweepFile:
        if not isinstance(tree.value, dict) or not tree.value:
            self._problems.add(self._path, "is no mapping of keys; a sweep needs at least `job:` and `grid:`")
            self._problems.raise_any(HINT)
        for name, node in self._entries(tree, "").items():
            reader = self._keys.get(name)
            if reader is None:
                self._unknown(name, node, self._keys)
                continue
            try:
                reader(node)
            except (ValueError, GridError) as error:
                self._say(node, name, str(error))
        if not self._sweep.axes and not self._sweep.jobs and not self._problems:
            self._problems.add(self._path, "has neither `grid:` nor `jobs:`, so there is nothing to vary")
        self._problems.raise_any(HINT)
        return self._sweep

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _say(self, node: Node, key: str, message: str) -> None:
        self._problems.add(node.where, f"{key}: {message}" if key else message, node.line)

    def _unknown(self, name: str, node: Node, known: Mapping[str, object]) -> None:
        near = find_near(name, known)
        if near:
            hint = f"did you mean {near}?"
        elif name in BY_PATH or name in GROUPS:
            hint = "a key of job files stands under `job:`"
        else:
            hint = f"there are {', '.join(known)}"
        self._say(node, name, f"unknown key; {hint}")

    def _entries(self, node: Node, key: str) -> dict[str, Node]:
        """The entries of a mapping; keys that were written twice are said."""
        if node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self._say(node, key, f"expected a mapping, found {values.describe_node(node)}")
            return {}
        for name, line in node.duplicates:
            first = node.value[name].line
            where = f"{self._path}:{line}"
            self._problems.add(where, f"{key + '.' if key else ''}{name}: written twice; first in line {first}", line)
        return node.value

    def _items(self, node: Node) -> list[Node]:
        return node.value if isinstance(node.value, list) else [node]

    def _path_of(self, text: str) -> str:
        return os.path.normpath(os.path.join(self._sweep.directory, os.path.expanduser(text)))

    def _value(self, name: str, node: Node) -> str:
        text = read_scalar(node)
        if isinstance(node.value, str) and not isinstance(resolve_plain(text), str):
            self._sweep.quoted.add((name, text))
        return text

    def _params(self, node: Node, key: str) -> dict[str, str]:
        """Parameters with one value each."""
        found = {}
        for name, inner in self._entries(node, key).items():
            try:
                check_parameter(name)
                found[name] = self._value(name, inner)
                check_values(name, [found[name]])
            except ValueError as error:
                self._say(inner, f"{key}.{name}", str(error))
        return found

    def _condition(self, node: Node, key: str) -> dict[str, tuple[str, ...]]:
        """Parameters with the values that are meant."""
        found = {}
        for name, inner in self._entries(node, key).items():
            try:
                found[name] = tuple(read_scalar(item) for item in self._items(inner))
            except ValueError as error:
                self._say(inner, f"{key}.{name}", str(error))
        return found

    def _whole(self, node: Node, least: int) -> int:
        if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < least:
            raise ValueError(f"expected a whole number from {least}, found {values.describe_node(node)}")
        return node.value

    # --- keys -------------------------------------------------------------------------------------------------------

    def _read_name(self, node: Node) -> None:
        key = BY_PATH["name"]
        self._sweep.name = str(values.convert_value(key, node, self._sweep.directory))

    def _read_job(self, node: Node) -> None:
        if isinstance(node.value, str):
            self._sweep.job_file = self._path_of(node.value)
            return
        self._sweep.job = self._job_keys(node, "job")
        file = self._sweep.job.pop(JOB_FILE, None)
        if file is not None:
            self._sweep.job_file = self._path_of(read_scalar(file))

    def _job_keys(self, node: Node, key: str) -> dict[str, Node]:
        """Keys of a job file, by their path; at the top also the job file's own."""
        entries = dict(self._entries(node, key))
        file = entries.pop(JOB_FILE, None) if key == "job" else None
        problems: list[jobfile.Problem] = []
        rest = Node(entries, node.where, node.line)
        found = jobfile.flatten_keys(rest, self._path, problems) if entries else {}
        for problem in problems:
            self._problems.add(problem.where, f"{key}.{problem.key}: {problem.message}", problem.line)
        return {**found, JOB_FILE: file} if file is not None else found

    def _read_grid(self, node: Node) -> None:
        for name, inner in self._entries(node, "grid").items():
            try:
                check_parameter(name)
                axis = tuple(self._value(name, item) for item in self._items(inner))
                check_values(name, axis)
                self._sweep.axes[name] = axis
            except ValueError as error:
                self._say(inner, f"grid.{name}", str(error))

    def _read_jobs(self, node: Node) -> None:
        for item in self._items(node):
            entry = self._own(item, "jobs", ("name", "params", "overlay", "job", "cost"))
            if entry is not None:
                if not entry.name and not entry.params and not entry.overlays:
                    self._say(item, "jobs", "needs `params:` or a `name:`, to be told from the others")
                self._sweep.jobs.append(entry)

    def _read_overrides(self, node: Node) -> None:
        for item in self._items(node):
            entry = self._own(item, "overrides", ("when", "params", "overlay", "job", "cost"))
            if entry is not None:
                self._sweep.overrides.append(entry)

    def _own(self, node: Node, key: str, known: tuple[str, ...]) -> JobOverride | None:
        if not isinstance(node.value, dict):
            self._say(node, key, f"expected mappings with {', '.join(known)}, found {values.describe_node(node)}")
            return None
        entries = self._entries(node, key)
        for word, inner in entries.items():
            if word not in known:
                self._unknown(word, inner, dict.fromkeys(known))
        empty = Node({}, node.where, node.line)
        name, cost = entries.get("name"), entries.get("cost")
        try:
            return JobOverride(
                node.where,
                self._condition(entries.get("when", empty), f"{key}.when") if "when" in known else {},
                self._job_keys(entries.get("job", empty), f"{key}.job"),
                self._params(entries.get("params", empty), f"{key}.params"),
                tuple(read_scalar(item) for item in self._items(entries["overlay"])) if "overlay" in entries else (),
                None if cost is None else read_cost(read_scalar(cost)),
                "" if name is None else read_scalar(name),
            )
        except ValueError as error:
            self._say(node, key, str(error))
            return None

    def _read_exclude(self, node: Node) -> None:
        for item in self._items(node):
            condition = self._condition(item, "exclude")
            if condition:
                self._sweep.exclude.append((item.where, condition))

    def _read_overlays(self, node: Node) -> None:
        for name, inner in self._entries(node, "overlays").items():
            if isinstance(inner.value, str):
                self._sweep.overlays[name] = self._path_of(inner.value)
            elif isinstance(inner.value, dict):
                self._sweep.overlays[name] = inner
            else:
                message = f"expected a file or a mapping, found {values.describe_node(inner)}"
                self._say(inner, f"overlays.{name}", message)

    def _read_config(self, node: Node) -> None:
        self._sweep.config = self._path_of(read_scalar(node))

    def _read_settings(self, node: Node) -> None:
        self._sweep.settings = self._params(node, "set")
        if OVERLAY in self._sweep.settings:
            self._say(node, f"set.{OVERLAY}", "cannot be set for all; write it into the base configuration")

    def _read_arguments(self, node: Node) -> None:
        self._sweep.arguments = read_style([read_scalar(item) for item in self._items(node)])

    def _read_cost(self, node: Node) -> None:
        self._sweep.cost_s = read_cost(read_scalar(node))

    def _read_max_parallel(self, node: Node) -> None:
        self._sweep.max_parallel = self._whole(node, 1)

    def _read_hold_after(self, node: Node) -> None:
        self._sweep.hold_after = self._whole(node, 0)

    def _read_priority(self, node: Node) -> None:
        self._sweep.priority = self._whole(node, -1000)

    def _read_after(self, node: Node) -> None:
        self._sweep.after = tuple(read_scalar(item) for item in self._items(node))

    def _read_shared(self, node: Node) -> None:
        self._sweep.shared_said = tuple(read_scalar(item) for item in self._items(node))
        self._sweep.shared = tuple(map(self._path_of, self._sweep.shared_said))


def read_style(words: list[str]) -> tuple[str, ...]:
    """How parameters become arguments: words with {name} and {value}, split at blanks; ``none``: not at all.

    Raises:
        GridError: the value has no place in it.
    """
    if words == ["none"]:
        return ()
    style = tuple(part for word in words for part in word.split())
    check_arguments(style)
    return style
