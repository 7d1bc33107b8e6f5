"""What follows when a run of the queue is over: proven done, begun again, or left to a person."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...host import files
from ...host.clock import epoch_s
from ...model import wire
from ...model.queue import CellState
from ...model.run import Outcome

if TYPE_CHECKING:
    from ...model.queue import Cell
    from ...model.run import Ended
    from ...store.queue import Queue
    from .watching import Watched

BY_CLAIM = "the claim of its cell"
"""Who ends a run of which another box has taken the cell over (`agent.claim_watch`)."""
HOURS_FINDINGS = frozenset({"rules.allowed_hours", "rules.quiet_times"})
"""Checks that fail for nothing but the time of day."""


class Ends:
    """The ends of one queue's cells, and how many of a group's have failed in a row."""

    def __init__(self, queue: Queue) -> None:
        """None has been seen."""
        self._queue = queue
        self._failed_in_row: dict[str, int] = {}

    def end(self, run: Watched) -> None:
        """A run is over: prove it, begin it again, or leave it to a person."""
        from .completion import judge
        from .requeue import decide_requeue

        ended, cell = run.look.ended, run.cell
        assert ended is not None
        facts = _facts_of(run, ended)
        if ended.outcome is Outcome.SUCCEEDED:
            state, note = judge(cell, run.run_dir, cell.sha256)
            # Two steps, each with its evidence, and one commit.
            self._queue.move_many([(cell.id, CellState.PRODUCED, facts), (cell.id, state, {"note": note})])
            self.count(cell, state)
            return
        if ended.request is not None and ended.request.by.startswith(BY_CLAIM):
            self._queue.move_on(cell.id, CellState.ELSEWHERE, **{**facts, "note": ended.evidence})
        elif _was_closed(ended):
            self._queue.move_on(cell.id, CellState.QUEUED, **{**facts, "note": ended.evidence})
        else:
            again = decide_requeue(replace(cell, attempts=run.look.attempt), run.run_dir)
            if again.again:
                when = {"not_before": epoch_s() + again.wait_s, "requeued": cell.requeued + 1, "note": again.why}
                self._queue.move_on(cell.id, CellState.QUEUED, **{**facts, **when})
            else:
                state = CellState.CANCELLED if ended.outcome is Outcome.STOPPED else CellState.FAILED
                self._close(cell, state, {**facts, "note": f"{ended.evidence}; {again.why}"})

    def judge(self, cell: Cell) -> None:
        """Hold a run that succeeded against the roster (QUEUE-16): only proven is done."""
        from .completion import judge

        assert cell.run_dir is not None
        state, note = judge(cell, cell.run_dir, cell.sha256)
        self._close(cell, state, {"note": note})

    def _close(self, cell: Cell, state: CellState, facts: dict[str, object]) -> None:
        self._queue.move_on(cell.id, state, **facts)
        self.count(cell, state)

    def count(self, cell: Cell, state: CellState) -> None:
        """Count an end: a proven cell ends a row of failures."""
        if state is CellState.DONE:
            self._failed_in_row[cell.group] = 0
        elif state is CellState.FAILED:
            self._count_failure(cell)

    def _count_failure(self, cell: Cell) -> None:
        """So many failures in a row hold the group, where somebody asked for that."""
        group = self._queue.groups().get(cell.group)
        row = self._failed_in_row[cell.group] = self._failed_in_row.get(cell.group, 0) + 1
        if group is not None and 0 < group.hold_after <= row and not group.held:
            self._failed_in_row[cell.group] = 0
            self._queue.hold_group(cell.group, f"{row} cells in a row failed, the last was {cell.label}")


def _facts_of(run: Watched, ended: Ended) -> dict[str, object]:
    """What the queue keeps of an attempt's end."""
    path = f"{wire.attempt_dir(run.run_dir, run.look.attempt)}/{wire.EXIT}"
    try:
        failure = wire.parse_object(files.read_bytes(path), path).get("failure_class")
    except (OSError, wire.WireError):
        failure = None
    return {
        "outcome": ended.outcome.value,
        "exit_code": ended.exit_code,
        "failure": failure if isinstance(failure, str) else "",
        "attempts": run.look.attempt,
        "ended_at": epoch_s(),
    }


def _was_closed(ended: Ended) -> bool:
    """Whether the run was refused for nothing but the time of day, which had come between the choice and its checks."""
    refusal = ended.refusal
    return refusal is not None and bool(refusal.findings) and all(f.id in HOURS_FINDINGS for f in refusal.findings)
