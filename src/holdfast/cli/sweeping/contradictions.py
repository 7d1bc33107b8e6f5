"""What is said for all cells against what a cell, or its configuration, says itself (QUEUE-08).

A blanket value is easily written and easily forgotten: ``--set epochs=20`` over a cell whose configuration has 50
gives a finished run of the wrong length. So both values are named. What varies on purpose, a grid's parameter or a
cell's own, is no contradiction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.grid import find_placeholders, same_value
from holdfast.core.overlay import find_by_name, look_up
from holdfast.model.sweep import Contradiction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.model.sweep import Point

    from .configs import ConfigFile
    from .sweepfile import Own, SweepFile

SET = "set"
CELL = "the cell"


class Watcher:
    """Collects contradictions, cell by cell."""

    def __init__(self, sweep: SweepFile) -> None:
        """``sweep.settings`` and ``sweep.job`` are what is said for all."""
        self._sweep = sweep
        self.found: list[Contradiction] = []

    def watch(self, point: Point, own: Sequence[Own], job: Mapping[str, Any], config: ConfigFile | None) -> None:
        """Compare one cell; `job` and `config` are its own before any parameter is filled in."""
        for name, value in self._sweep.settings.items():
            stands = point.params[name]
            if not same_value(stands, value):
                self.found.append(Contradiction(point.name, name, stands, CELL, value, SET))
            elif name not in point.own and config is not None:
                self._compare_config(point.name, name, value, config)
        placed = find_placeholders([job.get("command"), job.get("env")])
        for name, value in point.params.items():
            if name not in placed:
                self._compare_command(point.name, name, value, job)
        self._compare_keys(point.name, own)

    def _compare_config(self, cell: str, name: str, value: str, config: ConfigFile) -> None:
        for place in find_by_name(config.tree, name):
            written = config.dialect.show(look_up(config.tree, place)[1])
            if written != "null" and not same_value(written, value):
                said = f"{config.path} ({place})" if place != name else config.path
                self.found.append(Contradiction(cell, name, value, SET, written, said))

    def _compare_command(self, cell: str, name: str, value: str, job: Mapping[str, Any]) -> None:
        for written in _find_argument(name, [str(word) for word in job.get("command") or ()]):
            if not same_value(written, value):
                self.found.append(Contradiction(cell, name, value, "the later argument", written, "the job's command"))
        variable = name.upper().replace(".", "_").replace("-", "_")
        environment = job.get("env") or {}
        written = str(environment.get(variable, value))
        if "{" not in written and not same_value(written, value):
            self.found.append(Contradiction(cell, name, value, "the argument", written, f"the job's env.{variable}"))

    def _compare_keys(self, cell: str, own: Sequence[Own]) -> None:
        """Job keys that the command line says for all and the cell says otherwise; the file's own are its defaults."""
        for layer in own:
            for path, node in layer.job.items():
                blanket = self._sweep.job.get(path)
                if blanket is None or not blanket.where.startswith("--") or isinstance(node.value, (dict, list)):
                    continue
                if not same_value(node.text, blanket.text):
                    self.found.append(Contradiction(cell, path, node.text, node.where, blanket.text, blanket.where))


def _find_argument(name: str, command: Sequence[str]) -> Iterator[str]:
    """The values that a command gives to an option of this name."""
    spellings = {f"--{name}", f"--{name.replace('_', '-')}", f"--{name.replace('-', '_')}"}
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if equals and (option in spellings or option == name):
            yield value
        elif word in spellings and index + 1 < len(command) and not command[index + 1].startswith("--"):
            yield command[index + 1]
