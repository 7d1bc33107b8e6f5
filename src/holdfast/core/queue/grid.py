"""From grids to jobs: combinations, their names, and how parameters reach a command (QUEUE-02, QUEUE-08).

A parameter's value is text from beginning to end: ``1e-3`` stays ``1e-3`` and ``no`` stays ``no``. A job's name is
made from all parameters of its grid, so it does not depend on how many values an axis has today. Pure.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from holdfast.core.near import find_near
from holdfast.model.pattern import compile_later
from holdfast.model.sweep import OVERLAY

MAX_JOBS = 50_000
LONGEST_NAME = 100
LONGEST_VALUE = 48
RESERVED = frozenset({"job", "config", "group"})
"""Placeholders that are not parameters."""

_PARAMETER = compile_later(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_UNUSABLE = compile_later(r"[^A-Za-z0-9._=-]+", re.ASCII)
_PLACEHOLDER = compile_later(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}", re.ASCII)
_NOT_IN_VARIABLE = compile_later(r"[^A-Z0-9]+", re.ASCII)
_NAME = compile_later(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}", re.ASCII)
_HASH_DIGITS = 6


class GridError(ValueError):
    """A grid, a name or a placeholder is wrong; the message says how."""


def check_parameter(name: str) -> None:
    """Raise GridError unless `name` can be a parameter's."""
    if name in RESERVED:
        raise GridError(f"{name} is not free: {{{name}}} stands for something else in a command")
    if not _PARAMETER.fullmatch(name):
        raise GridError(f"{name[:60]!r} is no parameter's name: a letter first, then letters, digits and . _ -")


def check_values(name: str, values: Sequence[str]) -> None:
    """Raise GridError when an axis is empty, or says one value twice, as text or as number."""
    if not values:
        raise GridError(f"{name} has no values")
    seen: dict[object, str] = {}
    for value in values:
        if "\0" in value or "\n" in value:
            raise GridError(f"{name}: {value[:60]!r} is no value for a command line")
        number = _read_number(value)
        key = value if number is None else number
        if key in seen:
            again = f"{value} twice" if seen[key] == value else f"{seen[key]} and {value}, which are one number"
            raise GridError(f"{name} has {again}: two jobs would be the same")
        seen[key] = value


def _read_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def check_name(name: str) -> None:
    """Raise GridError unless `name` can be a job's."""
    if not _NAME.fullmatch(name):
        raise GridError(f"{name[:60]!r} is no name for a job: letters, digits and . _ = - ({LONGEST_NAME} at most)")


def same_value(first: str, second: str) -> bool:
    """Whether two texts are the same, or one number."""
    if first == second:
        return True
    number = _read_number(first)
    return number is not None and number == _read_number(second)


def expand_grid(axes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination, the last axis varying fastest.

    Raises:
        GridError: there are more than `MAX_JOBS`.
    """
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_JOBS:
        raise GridError(f"these are {count} jobs; the most at once is {MAX_JOBS}")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def matches_parameters(params: Mapping[str, str], when: Mapping[str, Sequence[str]]) -> bool:
    """Whether a job has, of each named parameter, one of these values (as numbers, where both are)."""
    for name, wanted in when.items():
        value = params.get(name)
        if value is None:
            return False
        if not any(same_value(value, text) for text in wanted):
            return False
    return True


def make_name(params: Mapping[str, str]) -> str:
    """A job's name: ``lr=1e-3_seed=0``; characters that no name has become dashes, too long ones end in a hash."""
    parts = [f"{name}={_clean_value(value)}" for name, value in params.items()]
    whole = "_".join(parts)
    return _shorten(whole, LONGEST_NAME, "\0".join(f"{name}={value}" for name, value in params.items()))


def _clean_value(value: str) -> str:
    text = _UNUSABLE.sub("-", value)
    # Of a word in another script nothing is left that tells it from the next.
    return _shorten(text, LONGEST_VALUE if value.isascii() else 0, value)


def _shorten(text: str, most: int, identity: str) -> str:
    if len(text) <= most:
        return text
    digits = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:_HASH_DIGITS]
    return f"{text[: max(0, most - _HASH_DIGITS - 1)]}-{digits}".lstrip("-")


def find_twins(named: Sequence[tuple[str, str]]) -> list[str]:
    """Sentences about (name, where) pairs that have one name."""
    seen: dict[str, str] = {}
    problems = []
    for name, where in named:
        first = seen.setdefault(name, where)
        if first is not where:
            problems.append(f"two jobs are called {name}: {first}, and {where}")
    return problems


# ---------------------------------------------------------------------------------------------------- to the command


def find_placeholders(value: object) -> frozenset[str]:
    """The names in braces in any text of a JSON value; ``${NAME}`` is not one of them."""
    if isinstance(value, str):
        return frozenset(_PLACEHOLDER.findall(value)) if "{" in value else frozenset()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return frozenset().union(*(find_placeholders(item) for item in items))


def find_misspelt(placeholders: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Placeholder to the name that is probably meant; one like nothing known stays as it is (``awk '{print}'``)."""
    found = {}
    for name in sorted(placeholders):
        if name not in known:
            near = find_near(name, known)
            if near:
                found[name] = near
    return found


def fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:  # noqa: ANN401 - a JSON value
    """A JSON value with the placeholders replaced that `values` knows."""
    if isinstance(value, str):
        if "{" not in value:
            return value
        return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), value)
    if isinstance(value, dict):
        return {key: fill_placeholders(item, values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill_placeholders(item, values) for item in value]
    return value


def check_arguments(style: Sequence[str]) -> None:
    """Raise GridError unless a style of arguments says where the value goes; an empty one means no arguments."""
    if style and not any("{value}" in word for word in style):
        raise GridError(f"{' '.join(style)!r} has no {{value}} in it, as --{{name}}={{value}} has")


def make_arguments(style: Sequence[str], params: Mapping[str, str]) -> Iterator[str]:
    """The words that hand `params` to a command."""
    for name, value in params.items():
        for word in style:
            yield word.replace("{name}", name).replace("{value}", value)


def make_variables(params: Mapping[str, str]) -> dict[str, str]:
    """``HOLDFAST_PARAM_<NAME>`` for each parameter.

    Raises:
        GridError: two names would be one variable.
    """
    variables: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, value in params.items():
        variable = f"HOLDFAST_PARAM_{_NOT_IN_VARIABLE.sub('_', name.upper())}"
        if owners.setdefault(variable, name) != name:
            raise GridError(f"{owners[variable]} and {name} would both be the variable {variable}")
        variables[variable] = value
    return variables


def to_command(params: Mapping[str, str], elsewhere: Collection[str]) -> dict[str, str]:
    """The parameters that become arguments: all but the overlay and those that went `elsewhere`."""
    return {name: value for name, value in params.items() if name != OVERLAY and name not in elsewhere}
