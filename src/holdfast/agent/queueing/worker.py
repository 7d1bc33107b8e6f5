"""The queue's worker: one process for each account and box, there as long as something is to be started or watched.

It owns no job: every run has a supervisor of its own, so a worker that is killed anywhere costs nothing. The next one
finds in the queue which cells were started, looks at their runs, and goes on. All that it decides is committed before
it is done (`starting`), what became of a run is read from the run (`watching`), and what may start is decided by
`core.queueing`.

It sleeps in one poll: the journal's directory, the supervisors of its runs, their attempts' directories, the next time
that something waits for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...core.queueing import Active, Situation, Standing, choose
from ...host.clock import epoch_s, monotonic_s
from ...model.errors import HoldfastError, StorageError
from ...model.queue import CellState
from ...store.queue_moves import CellMoved
from ..acting import is_held
from .ending import Ends
from .hours import read_closed_hours
from .lean_cells import LeanCells
from .presence import WorkerLock, count_cpu_slots, ensure_worker, log_line, read_worker
from .starting import Made, Starter
from .watching import COME_UP_S, Phase, Watch, Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...model.queue import Cell
    from ...store.queue import Queue
    from .starting import Start

__all__ = ["Worker", "ensure_worker", "main", "read_worker"]

WINDOW = 100
"""How many of the best waiting cells are considered at a time."""
MOST_ACTIVE = 200
"""Runs at once: each costs a watch and a descriptor, and a supervisor closes no descriptor beyond 1024."""
CLOCK_CHECK_S = 60.0
"""How often the wall clock is asked anew when something waits for a time of day: somebody may have set it."""
REVIEW_S = 10.0
"""How often, at the least, cells that another box has are looked at: three times in an expiry."""
FIRST_REVIEW_S = 1.0
REST_S = 0.1
"""How long the end of a cell for cards is not looked into: whoever is given these cards now needs disk and CPU."""
DARK_S = 60.0
"""How long a run that was begun may be unreadable before it is left to a person."""
HELD_S = 0.2
"""When the end of a run is looked at again that somebody restarts or removes just now."""
RETRY_S = 2.0
"""When a run is looked at again of whose change the queue could not be told."""
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 300.0
MOST_FAULTS = 20
"""A fault of ours that comes back so often is left to the log; the runs go on without a worker."""
MOST_RESTARTS = 5
"""A run that loses its supervisor so often is given to a person."""


class Worker:
    """Works one queue off until nothing is left that goes on by itself."""

    def __init__(self, queue: Queue, *, prepare: Callable[[], None] | None = None) -> None:
        """Look at nothing yet. `prepare` is called once, before the first run is made: lean cells need none of it."""
        self._prepare = prepare
        self._queue = queue
        self._starter = Starter(queue)
        self._watch = Watch(f"{queue.directory}/journal")
        self._lean = LeanCells(queue, self._watch, self._starter.environ_of)
        self._blocked = ""
        self._blocked_until_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._reviewed_s = 0.0
        self._review_s = FIRST_REVIEW_S
        self._review_from = 0
        self._hours: tuple[float, str] = (0.0, "")
        self._ends = Ends(queue)
        self._behind = True
        self._stale = True
        self._due_s: float | None = None
        self._faults = 0
        self._cpus = count_cpu_slots()

    def close(self) -> None:
        """Give every descriptor back; what runs goes on."""
        self._lean.close()
        self._watch.close()

    def run(self, stay: Callable[[], bool]) -> None:
        """Work until nothing is left to do, or `stay` says no."""
        # Also when it is begun anew: what was seen left then may be told of by no event any more.
        self._behind = self._stale = True
        while stay():
            if self._behind:
                self._behind = False
                self._guard(self._take_stock)
            self._guard(self._follow_runs)
            self._guard(self._lean.collect)
            if self._is_due():
                self._stale = False
                self._guard(self._review_elsewhere)
                self._guard(self._start_cells)
                wait_s = self._find_pause()
                if wait_s is not None and wait_s < 0:
                    return
                self._due_s = None if wait_s is None else monotonic_s() + wait_s
            if self._watch.wait(None if self._due_s is None else max(0.0, self._due_s - monotonic_s())):
                self._stale = True
                self._guard(self._queue.catch_up)

    def _is_due(self) -> bool:
        """Whether something has changed that decides what may start, or its time has come; else asking is in vain."""
        lean = bool(self._lean.active) or self._lean.next_look_s is not None
        return self._stale or lean or self._behind or (self._due_s is not None and monotonic_s() >= self._due_s)

    def has_work(self) -> bool:
        """Whether anything is active or goes on by itself."""
        return bool(self._queue.active()) or self._is_waiting()

    def _guard(self, step: Callable[[], None]) -> None:
        """The queue's disk may be full or its database locked for a while: nothing is lost by trying again later."""
        try:
            step()
        except (HoldfastError, OSError) as error:
            log_line(f"{step.__name__.strip('_')}: {error}")
            self._behind = True
            self._block(str(error))
        except Exception as error:
            # The supervision barrier: what goes wrong with one cell must not keep the others for ever.
            self._faults += 1
            if self._faults > MOST_FAULTS:
                raise
            import traceback

            log_line("".join(traceback.format_exception(error)).rstrip())
            self._behind = True
            self._block(f"holdfast itself failed: {type(error).__name__}: {error}")

    def _block(self, why: str) -> None:
        self._blocked, self._blocked_until_s = why, monotonic_s() + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    # --- what was started -------------------------------------------------------------------------------------------

    def _take_stock(self) -> None:
        """Go on with what an earlier worker has left."""
        for cell in self._queue.active():
            if cell.id in self._watch.runs:
                continue
            try:
                self._take_over(cell)
            except CellMoved as error:
                # Of this one somebody else has decided; the others are still to be looked at.
                log_line(str(error))

    def _take_over(self, cell: Cell) -> None:
        if cell.lean:
            self._lean.adopt(cell)
        elif cell.state is CellState.PRODUCED:
            self._ends.judge(cell)
        elif cell.state is CellState.CLAIMED:
            self._prepare_runs()
            self._note(self._starter.take_up(cell))
        elif cell.run_dir is not None:
            self._watch.add(cell, cell.run_dir, max(1, cell.attempts))

    def _note(self, start: Start) -> None:
        """What came of a start: watch the run, or say why there is none."""
        cell = start.cell
        if start.made is Made.STARTED:
            assert cell.run_dir is not None
            self._watch.add(cell, cell.run_dir, cell.attempts)
            self._pause_s = FIRST_PAUSE_S
            return
        log_line(f"{cell.label} was not started ({start.made.value}): {start.why}")
        if start.made is Made.BLOCKED:
            self._block(start.why)

    def _follow_runs(self) -> None:
        due = self._watch.take_due()
        for run in due:
            # Until what follows is done.
            self._watch.postpone(run, RETRY_S)
        for run in due:
            if run.look.phase is not Phase.LIVE or run.moved:
                self._stale = True
            try:
                self._follow(run)
            except CellMoved as error:
                # Somebody took it out of the queue. The run goes on, with a supervisor of its own.
                log_line(str(error))
                self._watch.drop(run.cell.id)

    def _follow(self, run: Watched) -> None:
        phase = run.look.phase
        run.dark_s = (run.dark_s or monotonic_s()) if phase is Phase.UNREADABLE else 0.0
        if phase is Phase.OVER:
            self._take_end(run)
            return
        run.over_s = None
        if phase is Phase.LIVE:
            run.begun_s = 0.0
        elif run.dark_s and monotonic_s() - run.dark_s < DARK_S:
            # A file server that does not answer for a while says nothing about the run.
            return
        else:
            self._mend(run)
        run.looked_s = monotonic_s()

    def _take_end(self, run: Watched) -> None:
        run.over_s = run.over_s or monotonic_s()
        left_s = run.over_s + REST_S - monotonic_s()
        if run.cell.cards and left_s > 0:
            self._watch.postpone(run, left_s)
        elif is_held(run.run_dir):
            # Stopped in order to be started again by hand, most likely: then it goes on.
            self._watch.postpone(run, HELD_S)
        else:
            self._ends.end(run)
            self._watch.drop(run.cell.id)

    def _mend(self, run: Watched) -> None:
        """A run of ours without a supervisor gets one; what cannot be told is left to a person."""
        look, cell = run.look, run.cell
        if monotonic_s() - run.begun_s < COME_UP_S and (run.restarts or look.phase is not Phase.ORPHANED):
            # Its supervisor is still coming up.
            return
        if look.phase in (Phase.MISSING, Phase.UNREADABLE) or run.restarts >= MOST_RESTARTS:
            # Its job may be at work all the same: nobody sees it there any more.
            why = (
                look.note or f"its run directory {run.run_dir} has no attempt (any more); its job may still be running"
            )
            if run.restarts >= MOST_RESTARTS:
                why = f"its supervisor was gone {run.restarts} times; see {run.run_dir}"
            self._leave_to_person(run, why)
            return
        run.restarts += 1
        run.begun_s = monotonic_s()
        orphaned = look.phase is Phase.ORPHANED
        try:
            # After a restart of the box nothing is begun in it any more: its end is written, whatever is gone.
            self._starter.supervise(
                cell, look.attempt, "adopt" if orphaned else look.reason, without_secrets=orphaned and look.rebooted
            )
        except (HoldfastError, OSError) as error:
            self._leave_to_person(run, str(error))

    def _leave_to_person(self, run: Watched, why: str) -> None:
        """Its last attempt does not count as one that ended: whoever lets the cell go on takes that one up first."""
        settled = max(run.look.attempt, run.cell.attempts, 1) - 1
        blind = run.look.phase in (Phase.MISSING, Phase.UNREADABLE)
        # Let go by name only, never along with others: that person is to see first what is at work.
        self._queue.move_on(run.cell.id, CellState.HELD, attempts=settled, note=why, guarded=blind)
        self._watch.drop(run.cell.id)

    def _review_elsewhere(self) -> None:
        """Cells that another box has: done there, or silent there and free again."""
        if monotonic_s() - self._reviewed_s < self._review_s:
            return
        self._reviewed_s = monotonic_s()
        cells = self._queue.cells(states=(CellState.ELSEWHERE,))
        first = self._review_from if self._review_from < len(cells) else 0
        self._review_from = first + WINDOW
        for cell in cells[first : first + WINDOW]:
            answer = self._starter.shared.review(cell)
            if answer.expiry_s:
                self._review_s = min(REVIEW_S, answer.expiry_s / 3)
            if answer.state is None:
                # The directory does not answer, and each look waits for it: our own cells wait meanwhile.
                log_line(f"{cell.label}: {answer.note}")
                return
            if answer.state is not CellState.ELSEWHERE:
                self._queue.move_on(cell.id, answer.state, note=answer.note)

    # --- what is to be started --------------------------------------------------------------------------------------

    def _start_cells(self) -> None:
        """Start what there is room for, until there is none or something else must be looked at first."""
        for _ in range(WINDOW):
            situation = self._look_around()
            room = MOST_ACTIVE - len(situation.active)
            chosen = choose(self._find_candidates(situation), situation)[:room] if room > 0 else ()
            # With the ends of those before, in one transaction.
            ended = self._lean.start([cell for cell in chosen if cell.lean])
            for cell, state in ended:
                self._ends.count(cell, state)
            for cell in chosen:
                if not cell.lean and not self._blocked_now:
                    self._start(cell)
            if not (chosen or ended) or self._blocked_now:
                return

    def _prepare_runs(self) -> None:
        prepare, self._prepare = self._prepare, None
        if prepare is not None:
            prepare()

    def _start(self, cell: Cell) -> None:
        self._prepare_runs()
        try:
            self._note(self._starter.start(cell))
        except CellMoved as error:
            log_line(str(error))

    def _find_candidates(self, situation: Situation) -> list[Cell]:
        return self._queue.candidates(
            now=situation.now,
            limit=WINDOW,
            without_groups=situation.closed_groups,
            cards=situation.card_room > 0,
            slots=situation.free_slots > 0,
        )

    def _look_around(self) -> Situation:
        settings = self._queue.settings()
        runs = (Active(run.cell, run.look.standing) for run in self._watch.runs.values())
        lean = (Active(cell, Standing.AT_WORK) for cell in self._lean.active)
        return Situation(
            active=(*runs, *lean),
            groups=self._queue.groups(),
            settings=settings,
            cpu_slots=self._cpus if settings.cpu_slots is None else settings.cpu_slots,
            now=epoch_s(),
            cards_closed=self._find_closed_hours(),
            stopped=self._blocked_now,
        )

    @property
    def _blocked_now(self) -> str:
        """Why nothing can be started at the moment; empty when it is time to try."""
        return self._blocked if monotonic_s() < self._blocked_until_s else ""

    def _find_closed_hours(self) -> str:
        """Why no cell for cards may start at this time of day; read again once in a while."""
        read_s, words = self._hours
        if not read_s or monotonic_s() - read_s >= CLOCK_CHECK_S:
            words = read_closed_hours()
            self._hours = (monotonic_s(), words)
        return words

    def _is_waiting(self) -> bool:
        """Whether a cell will start by itself, now or later."""
        situation = self._look_around()
        if situation.settings.paused or situation.settings.draining:
            return False
        if self._queue.next_time(situation.now) is not None:
            return True
        closed = situation.closed_groups
        slots = situation.cpu_slots > 0
        found = self._queue.candidates(now=situation.now, limit=1, without_groups=closed, cards=True, slots=slots)
        return bool(found) or bool(self._queue.cells(states=(CellState.ELSEWHERE,), limit=1))

    def _find_pause(self) -> float | None:
        """How long to sleep at most, in seconds: None until something happens, negative when there is nothing to do."""
        left = self._blocked_until_s - monotonic_s()
        if left > 0:
            return left
        try:
            waiting = self._is_waiting()
            due = self._queue.next_time(epoch_s())
            elsewhere = waiting and bool(self._queue.cells(states=(CellState.ELSEWHERE,), limit=1))
        except HoldfastError as error:
            self._block(str(error))
            return self._pause_s
        if not waiting:
            busy = self._watch.runs or self._lean.active or self._lean.next_look_s is not None
            return self._lean.next_look_s if busy else -1.0
        times = [CLOCK_CHECK_S] if due is not None or self._hours[1] or not self._watch.runs else []
        times += [self._lean.next_look_s] if self._lean.next_look_s is not None else []
        times += [max(0.05, due - epoch_s())] if due is not None else []
        times += [self._review_s] if elsewhere else []
        return min(times, default=None)


def main(directory: str) -> int:
    """Work the queue in `directory` off, unless another worker is at it; the exit code of this process."""
    from ...store.queue import Queue
    from .recovery import find_runs

    os.umask(0o077)
    try:
        lock = WorkerLock(directory)
        if not lock.take():
            return 0
    except OSError as error:
        log_line(f"no worker for {directory}: {error}")
        return 74
    from .preload import warm_up

    try:
        with Queue(directory, find_runs=find_runs) as queue:
            if queue.notice:
                log_line(queue.notice)
            serve(Worker(queue, prepare=warm_up), lock)
    except StorageError as error:
        log_line(f"the queue cannot be used: {error}")
        return 74
    return 0


def _has_work(worker: Worker) -> bool:
    """Whether anything is left; also when that cannot be told now, because nobody else would come and look."""
    try:
        return worker.has_work()
    except HoldfastError as error:
        log_line(f"whether anything is left cannot be told: {error}")
        return True


def serve(worker: Worker, lock: WorkerLock) -> None:
    """Work, let go of the lock, look once more: what was handed in meanwhile saw the lock held and started nobody."""
    try:
        while not lock.is_stale():
            worker.run(lambda: not lock.is_stale())
            lock.release()
            if lock.is_stale() or not _has_work(worker) or not lock.take():
                return
    finally:
        worker.close()
        lock.close()
