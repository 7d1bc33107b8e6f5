"""What somebody changed of a job: value by value, from one resolved job to another. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.origin import KeyChange

WHOLE = frozenset({"gpus"})
"""Values of several fields that are one to people."""


def list_changes(before: JobSpec, after: JobSpec) -> tuple[KeyChange, ...]:
    """Every value that differs, by its field of `JobSpec`; a variable of the environment is a value of its own."""
    old, new = dict(_flatten("", wire.encode(before))), dict(_flatten("", wire.encode(after)))
    names = [*old, *(name for name in new if name not in old)]
    return tuple(KeyChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name))


def join_changes(first: tuple[KeyChange, ...], then: tuple[KeyChange, ...]) -> tuple[KeyChange, ...]:
    """Two lists of changes in a row as one; what came back to where it was is none."""
    found = {change.key: change for change in first}
    for change in then:
        before = found[change.key].before if change.key in found else change.before
        found[change.key] = KeyChange(change.key, before, change.after)
    return tuple(change for change in found.values() if change.before != change.after)


def _flatten(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and path not in WHOLE:
            yield from _flatten(f"{path}.", value)
        else:
            yield path, value
