"""Does a configuration file parse? YAML and TOML are read at the desk: what stands beside a job has no parser (PRE-02).

Only the syntax counts: tags, several documents and templates' own ideas of meaning are the program's.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from holdfast.model.errors import PreflightFailed
from holdfast.model.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 8 * 1024**2
MAX_SLOW_BYTES = 256 * 1024
"""Without libyaml, parsing is a hundred times slower."""
REMEDY = "correct that line"


def find_config_problem(path: str) -> str | None:
    """What is wrong with a YAML or TOML file, with its line; None when nothing is, or nobody here can tell.

    A file that is missing, unreadable or too large is left to the checks on the box, which say so.
    """
    yaml = path.lower().endswith((".yaml", ".yml"))
    if not yaml and not path.lower().endswith(".toml"):
        return None
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    if len(text) > MAX_BYTES:
        return None
    return _find_yaml_problem(text) if yaml else _find_toml_problem(text)


def check_config(path: str | None) -> tuple[Finding, ...]:
    """A failed finding of the check `config` when the file does not parse."""
    problem = None if path is None else find_config_problem(path)
    return () if path is None or problem is None else (Finding("config", Level.FAIL, path, problem, REMEDY),)


def refuse_bad_configs(paths: Iterable[object]) -> None:
    """Nothing is started or handed in with a configuration that does not parse.

    Raises:
        PreflightFailed: one does not; file and line are named.
    """
    texts = sorted({path for path in paths if isinstance(path, str)})
    found = [finding for path in texts for finding in check_config(path)]
    if found:
        raise PreflightFailed("\n".join(f"config {item.subject}: {item.evidence}" for item in found), hint=REMEDY)


def _find_yaml_problem(text: str) -> str | None:
    try:
        import yaml
    except ModuleNotFoundError:
        return None  # in a bundle: whoever uses the file will see

    fast = getattr(yaml, "CSafeLoader", None)
    if fast is None and len(text) > MAX_SLOW_BYTES:
        return None
    anchors: set[str] = set()
    try:
        # Events only: nothing is built, so neither depth nor aliases cost anything.
        for event in yaml.parse(text, Loader=fast or yaml.SafeLoader):
            if isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
            name = getattr(event, "anchor", None)
            if isinstance(event, yaml.AliasEvent) and name not in anchors:
                line = getattr(event.start_mark, "line", 0) + 1
                return f"line {line}: not valid YAML: the alias *{name} is not defined"
            if name is not None:
                anchors.add(name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = max(1, len(text.splitlines()))
        place = f"line {min(mark.line + 1, last)}: " if mark is not None else ""
        return f"{place}not valid YAML: {error.problem or error.context or 'it cannot be parsed'}"
    except (yaml.YAMLError, RecursionError) as error:
        return f"not valid YAML: {str(error).splitlines()[0]}"
    return None


def _find_toml_problem(text: str) -> str | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            return None  # as above
    try:
        tomllib.loads(text)
    except RecursionError:
        return "is nested too deeply"
    except ValueError as error:
        return f"not valid TOML: {error}"
    return None
