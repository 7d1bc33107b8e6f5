"""What somebody changed of a job: value by value, from one resolved job to another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.origin import KeyChange
from holdfast.model.record import replace

WHOLE = frozenset({"gpus"})
"""Values of several fields that are one to people."""
PLACE_IN_SWEEP = frozenset({"HOLDFAST_JOB", "HOLDFAST_GROUP"})
PARAMETER = "HOLDFAST_PARAM_"
"""Variables that a sweep gives its jobs: which one it is, and what varies."""


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


def leave_sweep(before: JobSpec, command: Sequence[str]) -> tuple[JobSpec, tuple[str, ...]]:
    """The job without the variables of its sweep, and sentences about those that went.

    Its place in the sweep is never that of another run. Its parameters stay with its own command, which may read them;
    with another `command` they go, too.
    """
    gone = [name for name in before.env if name in PLACE_IN_SWEEP or (command and name.startswith(PARAMETER))]
    if not gone:
        return before, ()
    job = replace(before, env={name: value for name, value in before.env.items() if name not in gone})
    words = [f"left out, of the sweep that it was a job of: {', '.join(gone)}"]
    text = " ".join(command or before.command)
    if used := [name for name in gone if name in text]:
        words.append(f"the command names {', '.join(used)}: give it with --env {used[0]}=VALUE")
    return job, tuple(words)


def _flatten(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and path not in WHOLE:
            yield from _flatten(f"{path}.", value)
        else:
            yield path, value
