"""The worker's lean cells: claimed and ended in batches, each watched by the pidfd of its light supervisor.

One transaction of the queue holds many ends and many claims, since each waits for the disk. That loses nothing: a claim
is committed before its cell is begun, and an end that is not committed yet is still in the cell's record, where the
next worker finds it (`lean.look`). While a group's cells are short, some more of it are claimed ahead and begun as
others end, several of them in one fork (`lanes`), without a commit in between; they are given back when nothing may
start or the cells turn out long.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...host.clock import epoch_s, monotonic_s
from ...host.processes import open_pidfd
from ...model import wire
from ...model.errors import HoldfastError
from ...model.queue import CellState
from ...store.queue_moves import CellMoved
from . import lanes, lean
from .presence import log_line
from .starting import PASSING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...model.queue import Cell
    from ...store.queue import Queue
    from .watching import Watch

PAUSE_S = 5.0
MOST_AHEAD = 32
"""So many cells are claimed ahead of their start."""
SHORT_S = 0.25
LONG_S = 3600.0
"""Of a group of which nothing is known."""
LANE_S, START_S = 0.15, 0.003
"""How long a lane is to be at work at most, by what the last cell took and what beginning one takes."""
"""Cells that took no longer are worth claiming ahead."""
BURST_S, BURST_WAIT_MS = 0.05, 5
"""So long at most the worker stays with short cells alone, and only while one ends every few milliseconds."""
PATIENCE_S = 0.5
"""When none of the cells that were claimed ahead has been begun for so long, they are given back."""
MOST_VAIN = 3
"""A cell whose light supervisor ended so often before the command is left to a person."""
LOOK_AGAIN_S = 0.2
"""When a cell is looked at again of whose light supervisor there is no descriptor (it has not said yet who it is)."""


Move = tuple[int, CellState, dict[str, object]]


@dataclass(slots=True)
class _Live:
    """A lean cell under way: the pidfd of its light supervisor (None: not known yet), and whether it is our child.

    Of a lane: its first cell, the others in `rest`, and the pipe to take them back from. Together they take one place.
    """

    cell: Cell
    pidfd: int | None
    ours: bool
    looked_s: float = 0.0
    rest: tuple[Cell, ...] = ()
    tokens: int | None = None
    begun_s: float = 0.0

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell, *self.rest)


class LeanCells:
    """The lean cells of one worker."""

    def __init__(self, queue: Queue, watch: Watch, environ_of: Callable[[Cell], tuple[dict[str, str], int]]) -> None:
        """Nothing is under way; `environ_of` answers a cell's environment and umask."""
        self._queue, self._watch, self._environ_of = queue, watch, environ_of
        self._id = queue.settings().queue_id
        self._live: dict[int, _Live] = {}
        self._poller = select.poll()
        self._ahead: deque[Cell] = deque()
        self._ahead_since_s = 0.0
        self._fence = lanes.Fence(queue.directory)
        self._no_lanes_until_s = 0.0
        self._took_s: dict[str, float] = {}
        self._vain: dict[int, int] = {}
        self._ended: list[tuple[Cell, CellState, dict[str, Any]]] = []
        self._environs: dict[str, tuple[dict[str, str], int]] = {}

    @property
    def active(self) -> tuple[Cell, ...]:
        """What takes a slot now."""
        return tuple(live.cell for live in self._live.values())

    @property
    def next_look_s(self) -> float | None:
        """In how many seconds the worker must come back though nothing may wake it; None: it will be woken."""
        if any(live.pidfd is None for live in self._live.values()):
            return LOOK_AGAIN_S
        planned = self._ahead or any(live.rest for live in self._live.values())
        return PATIENCE_S if planned else 0.0 if self._ended else None

    def close(self) -> None:
        """Give the descriptors back; the cells go on."""
        for live in list(self._live.values()):
            self._drop(live)

    # --- what is under way ------------------------------------------------------------------------------------------

    def adopt(self, cell: Cell) -> None:
        """Take up a CLAIMED or RUNNING lean cell that an earlier worker has left."""
        if self._is_under_way(cell) or self._is_ahead(cell) or any(cell.id == ended.id for ended, _, _ in self._ended):
            return
        found = lean.look(cell)
        if found.phase is lean.Phase.UNBEGUN:
            # There may be more of them than slots; those that find no room are given back.
            self._ahead.append(cell)
        elif found.phase is lean.Phase.LIVE:
            self._keep(self._follow(cell, found))
        else:
            self._note_end(cell, found)

    def _is_under_way(self, cell: Cell) -> bool:
        return any(cell.id == one.id for live in self._live.values() for one in live.cells)

    def _is_ahead(self, cell: Cell) -> bool:
        return any(cell.id == one.id for one in self._ahead)

    def _follow(self, cell: Cell, found: lean.LeanLook) -> _Live:
        pidfd = None
        # Without a descriptor it is looked at again and again, until there is one to be had.
        with contextlib.suppress(OSError):
            pidfd = None if found.supervisor is None else open_pidfd(found.supervisor)
        return _Live(cell, pidfd, ours=False, looked_s=monotonic_s())

    def collect(self) -> None:
        """Take the ends of those that have ended; while short ones end and begin by themselves, go on for a moment."""
        end_s = monotonic_s() + BURST_S
        while self._collect_once() and self._ahead and monotonic_s() < end_s:
            if not self._poller.poll(BURST_WAIT_MS):
                break
        if not self._live:
            self._environs.clear()

    def _collect_once(self) -> int:
        """Take the ends that there are; how many live on."""
        for live in list(self._live.values()):
            if not self._has_ended(live):
                continue
            if live.tokens is not None:
                self._end_lane(live)
                continue
            found = lean.look(live.cell)
            self._drop(live)
            if found.phase is lean.Phase.LIVE:
                # Another look opens its descriptor, or finds the end.
                self._keep(self._follow(live.cell, found))
            elif found.phase is lean.Phase.UNBEGUN:
                # Its fork went before it got to the command: nothing has happened.
                self._begin_anew(live.cell)
            else:
                self._note_end(live.cell, found)
                self._begin_next(live.cell)
        return len(self._live)

    def _end_lane(self, live: _Live) -> None:
        """Take the ends of a lane's cells. What it has not begun is begun one by one: something may be in its way."""
        self._drop(live)
        unbegun = []
        for cell in live.cells:
            found = lean.look(cell)
            if found.phase is lean.Phase.UNBEGUN:
                unbegun.append(cell)
            elif found.phase is lean.Phase.LIVE:
                self._keep(self._follow(cell, found))
            else:
                self._note_end(cell, found)
        if unbegun:
            self._no_lanes_until_s = monotonic_s() + PAUSE_S
            self._begin_anew(unbegun[0])
            self._ahead.extendleft(reversed(unbegun[1:]))
        else:
            self._begin_next(live.cell)

    def _thin(self, live: _Live) -> None:
        """Take back what a lane has not begun, and the ends that there are: it is at a long cell, or is to stop."""
        assert live.tokens is not None
        number = dict(enumerate(live.cells))
        back = [number.pop(index) for index in lanes.take_back(live.tokens)]
        self._ahead.extendleft(reversed(back))
        found = {cell.id: lean.look(cell) for cell in number.values()}
        closed = (lean.Phase.ENDED, lean.Phase.LOST)
        left = [cell for cell in number.values() if found[cell.id].phase not in closed]
        # One stands for the lane until its process has ended.
        left = left or [*number.values()][-1:] or [live.cell]
        for cell in number.values():
            if cell not in left:
                self._note_end(cell, found[cell.id])
        del self._live[live.cell.id]
        live.cell, live.rest = left[0], tuple(left[1:])
        self._live[live.cell.id] = live

    def _begin_anew(self, cell: Cell) -> None:
        """Once more, a few times: what is in the way of its supervisor may be there for good."""
        tries = self._vain[cell.id] = self._vain.get(cell.id, 0) + 1
        if tries < MOST_VAIN:
            self._begin(cell)
            return
        why = f"its light supervisor ended {tries} times before the command began; see worker.log of the queue"
        del self._vain[cell.id]
        self._ended.append((cell, CellState.HELD, {"note": why}))

    def _keep(self, live: _Live) -> None:
        self._live[live.cell.id] = live
        if live.pidfd is not None:
            self._watch.add_descriptor(live.pidfd)
            self._poller.register(live.pidfd, select.POLLIN)

    def _drop(self, live: _Live) -> None:
        del self._live[live.cell.id]
        if live.tokens is not None:
            os.close(live.tokens)
        if live.pidfd is not None:
            self._watch.remove_descriptor(live.pidfd)
            self._poller.unregister(live.pidfd)
            os.close(live.pidfd)

    def _has_ended(self, live: _Live) -> bool:
        """Whether its light supervisor is gone; ours is reaped."""
        if live.pidfd is None:
            return monotonic_s() - live.looked_s >= LOOK_AGAIN_S
        if live.ours:
            return os.waitid(os.P_PIDFD, live.pidfd, os.WEXITED | os.WNOHANG) is not None
        # Somebody else's child cannot be waited for; what it left can be read.
        return lean.look(live.cell).phase is not lean.Phase.LIVE

    def _note_end(self, cell: Cell, found: lean.LeanLook) -> None:
        state, facts = lean.judge(found)
        self._vain.pop(cell.id, None)
        self._ended.append((cell, state, {**facts, "ended_at": epoch_s()}))
        took = (found.record or {}).get("duration_s")
        self._took_s[cell.group] = float(took) if isinstance(took, (int, float)) else LONG_S

    # --- what is to begin -------------------------------------------------------------------------------------------

    def start(self, cells: Sequence[Cell]) -> list[tuple[Cell, CellState]]:
        """Claim and begin these queued cells, commit what has ended; call at every turn of the worker.

        Answers the cells (as they were) whose end was committed, with the state that each has now.

        Raises:
            StorageError: the queue cannot be written: nothing was claimed, and no end is lost.
        """
        ahead = self._plan_ahead(cells)
        begun_at, ended = epoch_s(), list(self._ended)
        moves: list[Move] = [(cell.id, state, facts) for cell, state, facts in ended]
        for cell in (*cells, *ahead):
            facts = {"run_id": lean.new_claim(), "attempts": cell.attempts + 1, "started_at": begun_at}
            moves.append((cell.id, CellState.CLAIMED, {**facts, "ended_at": None, "note": ""}))
        moved = self._move(moves)
        del self._ended[: len(ended)]
        self._keep_ahead([moved[cell.id] for cell in ahead if cell.id in moved])
        for cell in cells:
            if cell.id in moved:
                self._begin(moved[cell.id])
        return [(cell, state) for cell, state, _ in ended if cell.id in moved]

    def _move(self, moves: list[Move]) -> dict[int, Cell]:
        """Commit these moves together; where somebody has changed one of the cells meanwhile, those that still fit."""
        if not moves:
            return {}
        try:
            return {cell.id: cell for cell in self._queue.move_many(moves)}
        except CellMoved:
            done = {}
        for cell_id, state, facts in moves:
            try:
                done[cell_id] = self._queue.move_on(cell_id, state, **facts)
            except CellMoved as error:
                log_line(str(error))
        return done

    def _plan_ahead(self, cells: Sequence[Cell]) -> list[Cell]:
        """Which cells to claim ahead: the next best ones, as long as they are short and like those that run."""
        stopped = self._is_stopped()
        for live in list(self._live.values()):
            if live.rest and (stopped or monotonic_s() - live.begun_s > PATIENCE_S):
                self._thin(live)
        if self._ahead and (stopped or not self._live or monotonic_s() - self._ahead_since_s > PATIENCE_S):
            self._give_back()
        alike = {(cell.group, cell.slots) for cell in (*self.active, *cells) if self._is_short(cell.group)}
        if stopped or not alike or len(self._ahead) > MOST_AHEAD // 4:
            return []
        known = {cell.id for cell in cells}
        closed = [name for name, group in self._queue.groups().items() if group.paused or group.held]
        best = self._queue.candidates(
            now=epoch_s(), limit=MOST_AHEAD + len(cells), without_groups=closed, cards=False, slots=True
        )
        rest = [cell for cell in best if cell.id not in known]
        return list(itertools.takewhile(lambda cell: cell.lean and (cell.group, cell.slots) in alike, rest))[
            :MOST_AHEAD
        ]

    def _is_stopped(self) -> bool:
        if not self._live and not self._ahead:
            return True
        settings, groups = self._queue.settings(), self._queue.groups()
        shut = {name for name, group in groups.items() if group.paused or group.held}
        return (
            settings.paused
            or settings.draining
            or any(
                cell.group in shut for cell in (*self._ahead, *(live.cell for live in self._live.values() if live.rest))
            )
        )

    def _is_short(self, group: str) -> bool:
        return self._took_s.get(group, LONG_S) <= SHORT_S

    def _keep_ahead(self, cells: Sequence[Cell]) -> None:
        if cells:
            self._ahead_since_s = monotonic_s()
        self._ahead.extend(cells)

    def _begin_next(self, ended: Cell) -> None:
        """In the place of one that ended, the next of the same group that takes as much: no limit is passed."""
        if self._ahead and (self._ahead[0].group, self._ahead[0].slots) == (ended.group, ended.slots):
            self._ahead_since_s = monotonic_s()
            self._begin(self._ahead.popleft())

    def _give_back(self) -> None:
        """Queue again what was claimed ahead and not begun: nothing may start now, or it has waited too long."""
        moves: list[Move] = []
        for cell in self._ahead:
            found = lean.look(cell)
            if found.phase is lean.Phase.UNBEGUN:
                moves.append((cell.id, CellState.QUEUED, {"attempts": cell.attempts - 1, "started_at": None}))
            else:
                # Somebody has cancelled it meanwhile.
                self._note_end(cell, found)
        self._move(moves)
        self._ahead.clear()

    def _begin_lane(self, cell: Cell) -> bool:
        """Begin short cells one after the other in one fork: this one and some of those ahead; False when not."""
        took_s = self._took_s.get(cell.group, LONG_S)
        alike = itertools.takewhile(lambda one: (one.group, one.slots) == (cell.group, cell.slots), self._ahead)
        # Half of what there is: the other places shall have something to do, too.
        most = min(lanes.MOST_CELLS, int(LANE_S / (took_s + START_S)), (len(self._ahead) + 2) // 2)
        cells = [cell, *itertools.islice(alike, max(0, most - 1))]
        if len(cells) == 1 or monotonic_s() < self._no_lanes_until_s:
            return False
        try:
            submissions = [self._queue.submission_of(one.id) for one in cells]
            plans = [
                (one, came, *self._find_environ(one, came.environment))
                for one, came in zip(cells, submissions, strict=True)
            ]
            light, tokens = lean.start_lane(plans, self._fence, queue=self._id)
        except (HoldfastError, wire.WireError, ValueError):
            # Which of them it is shows when each is begun by itself.
            self._no_lanes_until_s = monotonic_s() + PAUSE_S
            return False
        for _ in cells[1:]:
            self._ahead.popleft()
        live = _Live(cell, light.pidfd, ours=True, rest=tuple(cells[1:]), tokens=tokens, begun_s=monotonic_s())
        self._keep(live)
        return True

    def _begin(self, cell: Cell) -> None:
        """Begin a claimed cell. It stays CLAIMED while it runs: the marker says more, and a commit less is made."""
        if self._begin_lane(cell):
            return
        try:
            submission = self._queue.submission_of(cell.id)
        except HoldfastError as error:
            # The queue cannot be read just now, which says nothing about the cell: it is begun or given back later.
            log_line(f"{cell.label} was not started: {error}")
            self._ahead.append(cell)
            return
        try:
            environ, umask = self._find_environ(cell, submission.environment)
            light = lean.start(cell, submission, environ, umask=umask, queue=self._id)
        except (HoldfastError, wire.WireError, ValueError) as error:
            hint = f"; {error.hint}" if isinstance(error, HoldfastError) and error.hint else ""
            log_line(f"{cell.label} was not started: {error}")
            self._ended.append(_retreat(cell, error, f"{error}{hint}"))
            return
        if light is None:
            found = lean.look(cell)
            if found.phase is lean.Phase.LIVE:
                self._keep(self._follow(cell, found))
            else:
                self._note_end(cell, found)
            return
        self._keep(_Live(cell, light.pidfd, ours=True))

    def _find_environ(self, cell: Cell, name: str) -> tuple[dict[str, str], int]:
        """The environment of that id; read once for many cells, and forgotten when none is under way."""
        if name not in self._environs:
            self._environs[name] = self._environ_of(cell)
        return self._environs[name]


def _retreat(cell: Cell, error: Exception, words: str) -> tuple[Cell, CellState, dict[str, Any]]:
    """Where a cell of which nothing was begun goes: a full disk passes, anything else is for a person.

    The claim does not count: attempts are what the records of a rebuild are held against.
    """
    cause, facts = error.__cause__, {"note": words, "attempts": max(0, cell.attempts - 1)}
    if isinstance(cause, OSError) and cause.errno in PASSING:
        return cell, CellState.QUEUED, {**facts, "not_before": epoch_s() + PAUSE_S}
    return cell, CellState.HELD, facts
