"""The configurations of a sweep's jobs: base, overlays and parameters made into one file for each (QUEUE-17).

A configuration is resolved where the sweep asks for it: it has ``config:`` or ``overlays:``, or a parameter has a
dotted name and the job has a configuration. The result is named by its hash and never changes afterwards, so every
attempt of a job reads the same bytes, whatever happens to the base meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from holdfast.core.near import find_near
from holdfast.core.queue.grid import GridError, find_placeholders
from holdfast.core.queue.overlay import OverlayError, find_value, list_paths, merge_layers, set_value
from holdfast.model.errors import HoldfastError
from holdfast.model.sweep import OVERLAY, ResolvedConfig

from .configs import ConfigFile, convert_node, load_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from holdfast.core.queue.overlay import Tree
    from holdfast.model.sweep import Point

    from .elsewhere import Elsewhere
    from .sweep_file import SweepFile

HASH_DIGITS = 32


class Layers:
    """Resolves configurations; what jobs share is read and merged once."""

    def __init__(self, sweep: SweepFile, base: Mapping[str, Any], elsewhere: Elsewhere | None = None) -> None:
        """Decide whether there is anything to resolve."""
        self._sweep, self._elsewhere = sweep, elsewhere
        names = {name for own in (*sweep.jobs, *sweep.overrides) for name in own.params}
        names |= {*sweep.axes, *sweep.settings}
        dotted = any("." in name for name in names)
        stated = base.get("config")
        self.base_path: str | None = sweep.config or (str(stated) if stated else None)
        self.active = bool(sweep.config or sweep.overlays or (dotted and self.base_path and "{" not in self.base_path))
        self._files: dict[str, ConfigFile] = {}
        self._merged: dict[tuple[str, ...], Tree] = {}
        self._unreadable: set[str] = set()

    @property
    def base(self) -> ConfigFile:
        """The base configuration.

        Raises:
            GridError: overlays have nothing to lie on.
            JobFileError: it cannot be read.
        """
        if self.base_path is None:
            raise GridError("overlays need a base: write `config: PATH` into the sweep, or into the job")
        return self.load(self.base_path if self._sweep.config else self._find(self.base_path))

    def _find(self, path: str) -> str:
        """Where a job's configuration is read."""
        return path if self._elsewhere is None else self._elsewhere.find_here(path)

    def load(self, path: str) -> ConfigFile:
        """A configuration, read once."""
        if path not in self._files:
            self._files[path] = load_config(path)
        return self._files[path]

    def list_files(self) -> list[str]:
        """The files that were read, to be remembered with their hashes."""
        return sorted(self._files)

    def read_for(self, overlays: Sequence[str], job: Mapping[str, Any]) -> ConfigFile | None:
        """The configuration that a job has before its parameters: base and overlays, or just its job's.

        None when it has none, or one of a form that is not known here and that is not to be resolved.

        Raises:
            GridError: an overlay is not known, or does not fit.
            JobFileError: a file that is to be resolved cannot be read.
        """
        if self.active:
            label = f"{self.base.path} with {' and '.join(overlays)}" if overlays else self.base.path
            return ConfigFile(label, self._merge(overlays), self.base.dialect)
        if overlays:
            raise GridError(f"the overlay {overlays[0]} is not among the sweep's `overlays:`")
        path = job.get("config")
        if not path or "{" in str(path) or str(path) in self._unreadable:
            return None
        try:
            return self.load(self._find(str(path)))
        except (HoldfastError, GridError):
            self._unreadable.add(str(path))
            return None

    def resolve(self, point: Point, config: ConfigFile, placed: Collection[str]) -> tuple[ResolvedConfig, list[str]]:
        """A job's configuration with its parameters, and sentences about those that it did not have before.

        Raises:
            GridError: a parameter does not fit.
        """
        tree = dict(config.tree)
        notes = []
        for name, value in point.params.items():
            if not _is_taken(name, placed, self.base.tree):
                continue
            if not find_value(tree, name)[0]:
                near = find_near(name, list_paths(tree), cutoff=0.75)
                meant = f"; did you mean {near}?" if near else ""
                notes.append(f"{name} is not in {config.path}, it is added there{meant}")
            self._put(tree, name, value, quoted=(name, value) in self._sweep.quoted)
        data = config.dialect.dump(tree)
        return ResolvedConfig(hashlib.sha256(data).hexdigest()[:HASH_DIGITS], config.dialect.ending, data), notes

    def _put(self, tree: Tree, name: str, value: str, *, quoted: bool) -> None:
        dialect = self.base.dialect
        try:
            set_value(tree, name, lambda below: dialect.leaf(value, quoted=quoted, below=below))
        except OverlayError as error:
            raise GridError(f"{self.base.path}: {error}") from error

    def _merge(self, overlays: Sequence[str]) -> Tree:
        key = tuple(overlays)
        if key not in self._merged:
            tree = self.base.tree
            for name in overlays:
                try:
                    tree = merge_layers(tree, self._load_overlay(name))
                except OverlayError as error:
                    raise GridError(f"overlay {name}: {error}") from error
            self._merged[key] = tree
        return self._merged[key]

    def _load_overlay(self, name: str) -> Tree:
        source = self._sweep.overlays.get(name)
        if source is None:
            near = find_near(name, self._sweep.overlays)
            known = f"did you mean {near}?" if near else f"there are {', '.join(self._sweep.overlays) or 'none'}"
            raise GridError(f"there is no overlay {name}; {known}")
        if not isinstance(source, str):
            tree = convert_node(source, self.base.dialect)
            assert isinstance(tree, dict)
            return tree
        found = self.load(source)
        if found.dialect.ending != self.base.dialect.ending:
            raise GridError(f"overlay {name}: {source} and {self.base.path} are of different kinds; write both alike")
        return found.tree

    def list_taken(self, point: Point, placed: Collection[str]) -> frozenset[str]:
        """The parameters that a resolved configuration took."""
        return frozenset(name for name in point.params if _is_taken(name, placed, self.base.tree))

    def takes_config(self, job: Mapping[str, Any]) -> bool:
        """Whether the job hands its configuration's path on: by a placeholder, or by the base's own path."""
        if "config" in find_placeholders([job.get("command"), job.get("env")]):
            return True
        workdir = str(job.get("workdir"))
        return self.replace_path(job["command"], "\0", workdir) != list(job["command"])

    def replace_path(self, command: Sequence[str], path: str, workdir: str) -> list[str]:
        """The command with `path` where it names the base configuration, as a word or behind ``--option=``."""
        return [self._replace_in(str(word), path, workdir) for word in command]

    def _replace_in(self, word: str, path: str, workdir: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if not value or self.base_path is None:
            return word
        if self._elsewhere is not None:
            workdir = self._elsewhere.workdir
        is_base = os.path.normpath(os.path.join(workdir, value)) == os.path.normpath(
            os.path.join(workdir, self.base_path)
        )
        return f"{option}{equals}{path}" if is_base else word


def _is_taken(name: str, placed: Collection[str], tree: Tree) -> bool:
    """Whether a parameter goes into the configuration: it has no place in the job, and its name is one there."""
    return name != OVERLAY and name not in placed and ("." in name or name in tree)
