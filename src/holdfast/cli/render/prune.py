"""What pruning would remove, and what it removed, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.units import format_bytes, format_count

from . import note, table

if TYPE_CHECKING:
    from holdfast.agent.control.prune import ScratchPruning

MOST_ROWS = 40


def print_plan(found: ScratchPruning) -> None:
    """What would go as rows; what stays in notes, each with the reason."""
    plan = found.plan
    if not found.patterns:
        note("its job declares no scratch (disk.scratch), so nothing may go; --also PATTERN names some")
    rows = [
        (format_bytes(item.size_bytes), item.files, found.locate(item.root, item.path))
        for item in plan.victims[:MOST_ROWS]
    ]
    if rows:
        table(("size", "files", "path"), rows, right=(0, 1))
    if len(plan.victims) > MOST_ROWS:
        print(f"and {len(plan.victims) - MOST_ROWS} more")
    for kept in plan.kept[:MOST_ROWS]:
        note(f"stays: {found.locate(kept.item.root, kept.item.path)}: {kept.why.value}")
    for text in found.left_out:
        note(f"left out: {text}")


def print_pruning(found: ScratchPruning) -> None:
    """How it ended."""
    if found.done is None:
        note(
            f"would remove {format_count(found.files, 'file')}, {format_bytes(found.size_bytes)}; --yes removes them"
            if found.plan.victims
            else "nothing to remove"
        )
        return
    note(f"removed {format_count(found.done.files, 'file')}, {format_bytes(found.done.freed_bytes)}")
    for text in found.done.failed:
        note(f"not removed: {text}")


def word_question(found: ScratchPruning, beyond: int) -> str:
    """What a person is asked; `beyond` patterns were named that the job does not declare."""
    more = f", {format_count(beyond, 'pattern')} of them beyond what the job declares" if beyond else ""
    return f"Remove {format_count(found.files, 'file')}, {format_bytes(found.size_bytes)}{more}?"
