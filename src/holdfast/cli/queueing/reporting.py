"""What `holdfast submit` says: what was taken, or would be, and what comes next."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from holdfast.cli.render import clean, note, print_json, table
from holdfast.core.redact import redact_argv
from holdfast.model.queue import WAITING_STATES, CellState

from .changing import count_cells
from .opening import look_for_worker
from .times import format_moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.job import JobSpec
    from holdfast.model.queue import Cell, Submission
    from holdfast.store.queue import Queue

    from .submitting import HandedIn, Wishes

SHOWN_CELLS = 20
LONGEST_COMMAND = 100


def report(queue: Queue, taken: HandedIn, notes: Sequence[str], *, as_json: bool) -> None:
    """Say what was taken: the cell's name on standard output, the rest beside it."""
    worker, problem = look_for_worker(queue)
    if as_json:
        cells = [
            {"id": cell.id, "cell": cell.label, "state": cell.state, "sha256": cell.sha256} for cell in taken.cells
        ]
        facts = {"group": taken.group, "cells": cells, "known": taken.known, "notes": notes}
        print_json({**facts, "worker": taken.started or worker is not None})
        return
    for text in [*notes, *([problem] if problem else [])]:
        note(text)
    if len(taken.cells) == 1:
        _report_one(queue, taken, taken.cells[0])
        return
    print(f"{count_cells(len(taken.cells))} in group {taken.group}" + _say_known(taken.known))
    note(f"look: holdfast queue ls {taken.group}    wait: holdfast wait {taken.group}/")
    _say_stopped(queue, taken.group)


def _report_one(queue: Queue, taken: HandedIn, cell: Cell) -> None:
    print(cell.label, flush=True)
    if taken.known:
        note(f"{cell.label} was handed in before, with the same configuration: it is {cell.state.value}")
    elif cell.state in WAITING_STATES:
        from .reasons import explain_briefly

        note(f"{cell.state.value}: {explain_briefly(queue, cell)}")
        _say_stopped(queue, cell.group)
    else:
        word = "claimed: it is being started" if cell.state is CellState.CLAIMED else cell.state.value
        note(f"{cell.state.value}: {cell.note}" if cell.note else word)
    note(f"look: holdfast queue show {cell.label}    wait: holdfast wait {cell.label}")


def _say_known(known: int) -> str:
    return f" ({known} of them handed in before)" if known else ""


def _say_stopped(queue: Queue, group: str) -> None:
    """A pause that was forgotten must not look like a queue that works."""
    settings, known = queue.settings(), queue.groups().get(group)
    if settings.paused or settings.draining:
        note(f"nothing starts: the queue is {'paused' if settings.paused else 'being drained'}; holdfast queue resume")
    if known is not None and (known.paused or known.held):
        why = "is paused" if known.paused else f"stopped by itself: {known.held}"
        note(f"nothing of it starts: group {group} {why}; holdfast queue resume {group}")


def preview(spec: JobSpec, submission: Submission, wishes: Wishes, *, environ: Mapping[str, str], as_json: bool) -> int:
    """Show what would be handed in, and whether anything but room would keep it from starting; take nothing."""
    from .refusing import check_cells

    notes = check_cells(spec, submission.cells, environ, lean=submission.lean)
    rows = [
        {"cell": cell.name, "command": _command_of(spec, cell.change), "cards": spec.gpus.wanted, "sha256": cell.sha256}
        for cell in submission.cells
    ]
    waits = _list_obstacles(submission, wishes)
    if as_json:
        print_json({"group": submission.group, "cells": rows, "waits_for": waits, "notes": notes, "job": spec})
        return 0
    print(f"{count_cells(len(rows))} for group {submission.group}")
    shown = rows[:SHOWN_CELLS]
    table(
        ("cell", "cards", "hash", "command"),
        [(row["cell"], row["cards"] or None, str(row["sha256"])[:12], _shorten(str(row["command"]))) for row in shown],
        right=(1,),
    )
    if len(rows) > len(shown):
        print(f"and {len(rows) - len(shown)} more; --json shows them all")
    for text in notes:
        note(text)
    print("would wait: " + "; ".join(waits) if waits else "would start as soon as there is room")
    print("nothing was handed in (dry run)")
    return 0


def _command_of(spec: JobSpec, change: Mapping[str, object]) -> str:
    command = change.get("command")
    words = tuple(str(word) for word in command) if isinstance(command, (list, tuple)) else spec.command
    return shlex.join(redact_argv(words)[0])


def _shorten(text: str) -> str:
    return clean(text if len(text) <= LONGEST_COMMAND else f"{text[:LONGEST_COMMAND]}...")


def _list_obstacles(submission: Submission, wishes: Wishes) -> list[str]:
    """What would keep the cells waiting, as the queue is now; a queue that does not exist keeps nothing.

    Raises:
        UsageError: they need a cell that is not there, so that they would be refused.
    """
    import os

    from holdfast.store.queue import queue_directory

    from .opening import open_queue

    now = time.time()
    found = []
    if wishes.not_before is not None and wishes.not_before > now:
        found.append(f"not before {format_moment(wishes.not_before, now)}")
    if wishes.paused:
        found.append(f"group {submission.group} would be paused")
    if not os.path.isdir(queue_directory()):
        return [*(f"needs {need}" for need in wishes.needs), *found]
    with open_queue() as queue:
        found = [*_list_needs(queue, submission, wishes), *found]
        settings, group = queue.settings(), queue.groups().get(submission.group)
        if settings.paused or settings.draining:
            found.append("the queue is paused" if settings.paused else "the queue is being drained")
        if group is not None and (group.paused or group.held):
            found.append(f"group {group.name} " + ("is paused" if group.paused else f"stopped by itself: {group.held}"))
        queued = sum(
            cell.not_before is None or cell.not_before <= now for cell in queue.cells(states=[CellState.QUEUED])
        )
        if queued:
            found.append(f"{count_cells(queued)} queued before")
    return found


def _list_needs(queue: Queue, submission: Submission, wishes: Wishes) -> list[str]:
    """What the cells would have to wait for: of what they need, what is not done yet."""
    own = {cell.name for cell in submission.cells}
    found = []
    for need in wishes.needs:
        word = need if "/" in need else f"{submission.group}/{need}"
        if need in own or any(cell.state is not CellState.DONE for cell in queue.find([word])):
            found.append(f"needs {need}")
    return found
