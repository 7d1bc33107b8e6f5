"""How much longer cells take, from what cells like them took, in words that say what an estimate rests on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.forecast import describe_estimate, estimate_rest, expect_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.queue import Cell, CellState
    from holdfast.store.queue import Queue


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds that something takes still, from how many done cells (0: from a stated time)."""

    seconds: float
    samples: int
    stated: bool = False

    @property
    def words(self) -> str:
        """``about 3h20m (from 14 done cells)``."""
        return describe_estimate(self.seconds, self.samples, stated=self.stated)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one cell is expected to take, and from how many measurements that is known."""

    seconds: float | None
    samples: int

    def left(self, cell: Cell, now: float) -> float | None:
        """How much longer a running cell takes; 0 when it is over its time, None when nothing is known."""
        if self.seconds is None:
            return None
        begun = cell.started_at if cell.started_at is not None else now
        return max(0.0, self.seconds - max(0.0, now - begun))


def find_cost(queue: Queue, cell: Cell) -> Cost:
    """The expected seconds of a cell."""
    durations = queue.durations(cell.id)
    return Cost(expect_seconds(cell.expected_s, durations), len(durations))


def estimate_cells(
    queue: Queue, counts: Mapping[CellState, int], active: Sequence[Cell], parallel: int | None = None
) -> Estimate | None:
    """How long until all cells of `counts` have ended, as many at a time as now; None where nothing is known.

    One waiting or running cell stands for all of them.
    """
    from holdfast.model.queue import WAITING_STATES

    waiting = sum(number for state, number in counts.items() if state in WAITING_STATES)
    if not active:
        # Nothing runs: when something will is what nobody can tell from durations.
        return None
    cost = find_cost(queue, active[0])
    now = time.time()
    lefts = [left for cell in active if (left := cost.left(cell, now)) is not None]
    if cost.seconds is None or len(lefts) < len(active):
        return None
    seconds = estimate_rest(waiting, lefts, cost.seconds, parallel or len(active))
    return None if seconds is None else Estimate(seconds, cost.samples, stated=not cost.samples)
