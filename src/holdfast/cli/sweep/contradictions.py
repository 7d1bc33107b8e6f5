"""What is said for all jobs against what a job, or its configuration, says itself (QUEUE-08).

A blanket value is easily written and easily forgotten: ``--set epochs=20`` over a job whose configuration has 50
gives a finished run of the wrong length. So both values are named. What varies on purpose, a grid's parameter or a
job's own, is no contradiction; a grid of one value varies nothing and is said for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.queue.grid import find_placeholders, same_value
from holdfast.core.queue.overlay import find_by_name, find_value
from holdfast.model.sweep import Contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.model.sweep import Point

    from .configs import ConfigFile
    from .sweep_file import JobOverride, SweepFile

SET = "set"
GRID = "grid"
JOB = "the job"
COMMAND = "the job's command"


class ContradictionFinder:
    """Collects contradictions, job by job."""

    def __init__(self, sweep: SweepFile, *, all_jobs: bool = True) -> None:
        """``sweep.settings``, ``sweep.job`` and, with `all_jobs`, grids of one value are what is said for all."""
        self._sweep = sweep
        self._grid = {name: axis[0] for name, axis in sweep.axes.items() if len(axis) == 1} if all_jobs else {}
        self.found: list[Contradiction] = []

    def watch(
        self, point: Point, own: Sequence[JobOverride], spec: Mapping[str, Any], config: ConfigFile | None
    ) -> None:
        """Compare one job; `spec` and `config` are its own before any parameter is filled in."""
        for name, value in self._sweep.settings.items():
            stands = point.params[name]
            if not same_value(stands, value):
                self.found.append(Contradiction(point.name, name, stands, JOB, value, SET))
            elif name not in point.own and config is not None:
                self._compare_config(point.name, name, value, SET, config)
        placed = find_placeholders([spec.get("command"), spec.get("env")])
        for name, value in point.params.items():
            if name not in placed:
                self._compare_command(point.name, name, value, spec)
        if config is not None:
            for name, value in self._grid.items():
                if point.params.get(name) == value:
                    self._compare_config(point.name, name, value, GRID, config)
            self._compare_arguments(point, [str(word) for word in spec.get("command") or ()], config)
        self._compare_keys(point.name, own)

    def _compare_config(self, job: str, name: str, value: str, said_by: str, config: ConfigFile) -> None:
        for place in find_by_name(config.tree, name):
            written = config.dialect.show(find_value(config.tree, place)[1])
            if written != "null" and not same_value(written, value):
                said = f"{config.path} ({place})" if place != name else config.path
                self.found.append(Contradiction(job, name, value, said_by, written, said))

    def _compare_arguments(self, point: Point, command: Sequence[str], config: ConfigFile) -> None:
        """What the command itself says beside the configuration, which it says of all jobs; by the whole name only."""
        for name, value in _list_arguments(command):
            for place in dict.fromkeys((name, name.replace("-", "_"))):
                found, leaf = find_value(config.tree, place)
                if not found or leaf is None or isinstance(leaf, dict) or place in point.params or "{" in value:
                    continue
                written = config.dialect.show(leaf)
                if not same_value(written, value):
                    self.found.append(Contradiction(point.name, place, value, COMMAND, written, config.path))

    def _compare_command(self, job: str, name: str, value: str, spec: Mapping[str, Any]) -> None:
        for written in _find_argument(name, [str(word) for word in spec.get("command") or ()]):
            if not same_value(written, value):
                self.found.append(Contradiction(job, name, value, "the later argument", written, COMMAND))
        variable = name.upper().replace(".", "_").replace("-", "_")
        environment = spec.get("env") or {}
        written = str(environment.get(variable, value))
        if "{" not in written and not same_value(written, value):
            self.found.append(Contradiction(job, name, value, "the argument", written, f"the job's env.{variable}"))

    def _compare_keys(self, job: str, own: Sequence[JobOverride]) -> None:
        """Job keys that the command line says for all and the job says otherwise; the file's own are its defaults."""
        for layer in own:
            for path, node in layer.job.items():
                blanket = self._sweep.job.get(path)
                if blanket is None or not blanket.where.startswith("--") or isinstance(node.value, (dict, list)):
                    continue
                if not same_value(node.text, blanket.text):
                    self.found.append(Contradiction(job, path, node.text, node.where, blanket.text, blanket.where))


def _find_argument(name: str, command: Sequence[str]) -> Iterator[str]:
    """The values that a command gives to an option of this name."""
    spellings = {name, name.replace("_", "-"), name.replace("-", "_")}
    return (value for option, value in _list_arguments(command) if option in spellings)


def _list_arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with their values: ``--name value``, ``--name=value`` and ``name=value``."""
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if equals:
            yield option.removeprefix("--"), value
        elif word.startswith("--") and index + 1 < len(command) and not command[index + 1].startswith("--"):
            yield word[2:], command[index + 1]
