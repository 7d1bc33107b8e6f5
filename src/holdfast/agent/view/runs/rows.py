"""Runs as rows of a list: ended ones from the index, the others from their files.

Reads; all that it writes is the reader's own index.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.store.index import Index, IndexRow

from .of_scheduler import is_of_scheduler


def list_runs(index: Index, roots: Iterable[str]) -> list[IndexRow]:
    """Every run, newest first, with the index brought up to date."""
    rows = index.sync(roots, _read_row)
    if not any(map(is_of_scheduler, rows)):
        return rows
    from holdfast.agent.view.scheduled import hear_rows  # lazy: most have no run that a scheduler may begin

    return hear_rows(rows)


def _read_row(root: str, run_id: str) -> IndexRow:
    from .row import read_row  # lazy: the index knows all of a run that is over

    return read_row(root, run_id)
