"""Compares two runs step by step: which values differ, and which differ without any interruption too. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.model.record import record

Values = Mapping[str, Any]
Rows = Mapping[int, Values]


@record
class Difference:
    """Where two runs first differ: the step, the name, the reference's value and the other's, in which attempt."""

    step: int
    name: str
    expected: object
    seen: object
    attempt: int


@record
class Comparison:
    """The steps compared after the first resume, what differs there, and what differed before any interruption."""

    steps: int = 0
    differences: tuple[Difference, ...] = ()
    noisy: tuple[Difference, ...] = ()


def compare_runs(found: Iterable[tuple[int, Rows]], expected: Rows) -> Comparison:
    """Values of all attempts against the reference's; the first attempt is the control.

    A step counts as compared when a value of it could be judged: one that does not differ in the control too.
    """
    rest = list(found)
    control = _find_differences(rest[:1], expected)
    seen = _find_differences(rest[1:], expected)
    steps = sum(
        any(name not in control for name in rows[step].keys() | expected[step].keys())
        for _, rows in rest[1:]
        for step in rows.keys() & expected.keys()
    )
    real = sorted((one for name, one in seen.items() if name not in control), key=_order)
    return Comparison(steps, tuple(real), tuple(sorted(control.values(), key=_order)))


def _find_differences(found: Iterable[tuple[int, Rows]], expected: Rows) -> dict[str, Difference]:
    """For each name the first step at which an attempt has another value than the reference."""
    first: dict[str, Difference] = {}
    for attempt, rows in found:
        for step in sorted(rows.keys() & expected.keys()):
            for name in rows[step].keys() | expected[step].keys():
                ours, theirs = expected[step].get(name), rows[step].get(name)
                if not _same(ours, theirs) and (name not in first or step < first[name].step):
                    first[name] = Difference(step, name, ours, theirs, attempt)
    return first


def _order(difference: Difference) -> tuple[int, bool, str]:
    return difference.step, difference.name != "loss", difference.name


def _same(one: object, other: object) -> bool:
    """Equal bit for bit as far as JSON tells: 1 and 1.0 differ, NaN is NaN."""
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def describe_difference(found: Difference) -> str:
    """A difference in words."""
    return (
        f"{found.name} differs first at step {found.step}: {found.expected!r} without an interruption, "
        f"{found.seen!r} in attempt {found.attempt}"
    )
