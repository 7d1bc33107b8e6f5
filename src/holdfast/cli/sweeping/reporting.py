"""What `sweep` says of a sweep that is handed in, or would be: its cells, contradictions, and what comes next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.cli.queueing.changing import count_cells
from holdfast.cli.render import note, print_json, table
from holdfast.core.redact import redact_argv
from holdfast.model.errors import UsageError
from holdfast.model.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.queueing.submitting import HandedIn
    from holdfast.model.queue import NewCell
    from holdfast.model.sweep import Contradiction
    from holdfast.store.queue import Queue

    from .building import Built
    from .handing import Plan

MOST_SAID = 10
HASH_DIGITS = 12


def report_contradictions(built: Built, *, strict: bool) -> None:
    """Say what was said twice with two values, and which one stands.

    Raises:
        UsageError: with `strict`, when there is any; nothing was handed in.
    """
    texts = describe_contradictions(built.contradictions)
    shown = texts[:MOST_SAID] + ([f"and {len(texts) - MOST_SAID} more"] if len(texts) > MOST_SAID else [])
    if strict and (texts or built.notes):
        said = [*shown, *built.notes[:MOST_SAID]]
        raise UsageError("\n".join(said), hint="nothing was handed in (--strict); make both say the same")
    for text in shown:
        note(f"two values: {text}")
    for text in built.notes[:MOST_SAID]:
        note(text)


def describe_contradictions(found: Sequence[Contradiction]) -> list[str]:
    """One sentence for the same two values, with the first cell and how many more there are."""
    cells: dict[Contradiction, list[str]] = {}
    for item in found:
        cells.setdefault(replace(item, cell=""), []).append(item.cell)
    texts = []
    for item, names in cells.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        texts.append(str(replace(item, cell=f"{names[0]}{more}")))
    return texts


def preview(made: Plan, *, environ: Mapping[str, str], as_json: bool) -> int:
    """Show every cell, checked as if it were handed in."""
    from holdfast.cli.queueing.refusing import check_cells

    notes = check_cells(made.spec, made.built.cells, environ, shared=made.wishes.shared)
    if as_json:
        cells = [_encode(cell) for cell in made.built.cells]
        said = describe_contradictions(made.built.contradictions)
        print_json({"group": made.group, "cells": cells, "contradictions": said, "notes": [*made.built.notes, *notes]})
        return 0
    print(f"{count_cells(len(made.built.cells))} for group {made.group}")
    rows = [
        (
            cell.name,
            cell.sha256[:HASH_DIGITS],
            None if cell.expected_s is None else format_duration(cell.expected_s),
            shlex.join(redact_argv(_words(cell))[0]),
        )
        for cell in made.built.cells
    ]
    table(("cell", "hash", "expected", "command"), rows, right=(2,))
    total = [cell.expected_s for cell in made.built.cells]
    if total and None not in total:
        print(f"expected in all: {format_duration(sum(seconds for seconds in total if seconds is not None))}")
    for text in notes:
        note(text)
    print("nothing was handed in (dry run)")
    return 0


def _words(cell: NewCell) -> tuple[str, ...]:
    command = cell.change["command"]
    assert isinstance(command, list)
    return tuple(str(word) for word in command)


def _encode(cell: NewCell) -> dict[str, object]:
    facts = {"cell": cell.name, "params": cell.params, "sha256": cell.sha256, "expected_s": cell.expected_s}
    return {**facts, "command": redact_argv(_words(cell))[0], "config": cell.change.get("config"), "needs": cell.needs}


def report(queue: Queue, made: Plan, taken: HandedIn, notes: Sequence[str], *, as_json: bool) -> None:
    """Say how many cells were taken, and how to go on."""
    if as_json:
        cells = [
            {"id": cell.id, "cell": cell.name, "state": cell.state, "params": cell.params, "sha256": cell.sha256}
            for cell in taken.cells
        ]
        said = describe_contradictions(made.built.contradictions)
        facts = {"group": taken.group, "cells": cells, "known": taken.known, "contradictions": said}
        print_json({**facts, "notes": [*made.built.notes, *notes]})
        return
    known = f" ({taken.known} of them handed in before)" if taken.known else ""
    every = sum(queue.counts().get(taken.group, {}).values())
    total = f", which has {every} now" if every > len(taken.cells) else ""
    print(f"{count_cells(len(taken.cells))} in sweep {taken.group}{known}{total}")
    for text in notes:
        note(text)
    group = queue.groups().get(taken.group)
    if group is not None and (group.paused or group.held):
        why = "is paused" if group.paused else group.held
        note(f"nothing of it starts: it {why}; holdfast queue resume {group.name}")
    note(f"look: holdfast sweep show {taken.group}    wait: holdfast wait {taken.group}/")
