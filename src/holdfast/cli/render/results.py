"""Copies of results, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.results import count_files
from holdfast.model.run import CopyState
from holdfast.model.units import format_bytes, format_count

from . import clean, note, table
from .redrawn_line import RedrawnLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.control.results.copy import CopiedRun
    from holdfast.agent.queue.sweep.collect import Collected
    from holdfast.model.results import ResultsRecord

MOST_ROWS = 200
MOST_MENDED = 3


def describe_mended(paths: Sequence[str]) -> str:
    """Which files of a copy had gone bad, and came again."""
    more = f" and {len(paths) - MOST_MENDED} more" if len(paths) > MOST_MENDED else ""
    was = "was" if len(paths) == 1 else "were"
    return f"{', '.join(paths[:MOST_MENDED])}{more} {was} not any more what had been proven, and came again"


class CopyMeter:
    """How far a copy is, redrawn in place on a terminal; nothing elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        """Begin with nothing said."""
        self._line = RedrawnLine(silent=silent)
        self._silent, self._said = silent, ""

    def show(self, at: ResultsRecord) -> None:
        """Draw how far the copy of a run is."""
        self.show_run(at.run_id, at)

    def show_run(self, name: str, at: ResultsRecord) -> None:
        """Draw how far the copy of one run of many is, by its name; a try that failed is said once."""
        if at.problem and not self._silent and (name + at.problem) != self._said:
            self._said = name + at.problem
            self._line.close()
            note(f"{name}: {at.problem}")
        if at.files_total:
            size = f"{format_bytes(at.bytes_done)} of {format_bytes(at.bytes_total)}"
            self._line.draw(f"{name}: {at.files_done} of {format_count(at.files_total, 'file')}, {size}")

    def close(self) -> None:
        """End the line."""
        self._line.close()


def print_copied(done: CopiedRun) -> None:
    """How it ended; that it is there only where it was read back."""
    if done.state is not CopyState.COPIED:
        note(f"{done.run_id}: not copied to {done.to}: {done.problem}")
        note(f"its results are where the job left them; copy again: holdfast results copy {done.run_id} [--to DIR]")
        return
    extent = f"{count_files(done.files)}, {format_bytes(done.bytes)}"
    print(clean(f"{extent}, proven by size and SHA-256 in {done.to}"))
    if done.mended:
        print(f"mended: {clean(describe_mended(done.mended))}")
    for text in done.left_out:
        note(f"left out: {text}")
    if done.pruned:
        note(f"scratch: {done.pruned}")
    if done.made_good:
        note(f"{done.run_id} counts as succeeded now")


def print_collected(done: Collected) -> None:
    """Every run that is not complete first; then what it came to."""
    for text in done.notes:
        note(text)
    ordered = sorted(done.runs, key=lambda one: not one.why)
    rows = [
        (one.name, one.status, f"{one.landed} of {one.expected}", format_bytes(one.bytes), one.why)
        for one in ordered[:MOST_ROWS]
    ]
    table(("run", "status", "files", "size", "why"), rows, right=(2, 3))
    if len(ordered) > MOST_ROWS:
        print(f"and {len(ordered) - MOST_ROWS} more")
    for one in done.runs:
        if one.mended:
            print(f"mended: {clean(f'{one.name}: {describe_mended(one.mended)}')}")
    what = f"{done.complete} of {len(done.runs)} complete: {count_files(done.files)}, {format_bytes(done.bytes)}"
    print(clean(f"{what}, proven in {done.directory}") if done.files else "nothing landed")
