"""What became of the runs that the worker has started: where each stands now, and being woken when that changes.

Correctness never rests on an event: a look reads the run's own files and asks for its supervisor by identity. Events
(inotify on the attempt's directory, the end of its supervisor) only say when a look is due.
"""

from __future__ import annotations

import contextlib
import os
import select
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.agent.view.observe import observe_run, read_attempts
from holdfast.agent.view.run_view import recorded_processes
from holdfast.core.queue.choose import JobPhase
from holdfast.host.box import BoxMatch, find_box
from holdfast.host.clock import monotonic_s
from holdfast.host.files import fallback, inotify
from holdfast.host.process import pidfd, processes
from holdfast.model import wire
from holdfast.model.errors import NotCopied
from holdfast.model.record import record
from holdfast.model.run import Created, Ended, Preflight, RunState, Starting, Waiting

if TYPE_CHECKING:
    from holdfast.model.identity import ProcessId
    from holdfast.model.queue import QueuedJob

COME_UP_S = 15.0
"""A supervisor that has not taken its run up by then will not."""
LOOK_AGAIN_S = 30.0
"""How often a run is looked at when nothing tells of a change."""
BLIND_POLL_S = 0.5
"""The same where no events are to be had (the account's inotify instances are used up)."""
ENDING = frozenset({wire.EXIT, wire.RETRY})
TELLING = ENDING | {wire.STATE}
"""The files of an attempt whose change is worth a look."""


class RunPhase(Enum):
    """Where a started run stands."""

    MISSING = "missing"
    """No attempt of it has been begun."""
    UNTAKEN = "untaken"
    """It has an attempt that no supervisor has taken up."""
    LIVE = "live"
    """A supervisor is at work on it."""
    ORPHANED = "orphaned"
    """Its supervisor is gone and its end is not on record."""
    OVER = "over"
    """Its last attempt is over, and none follows by itself."""
    UNREADABLE = "unreadable"
    """Its state cannot be read now."""


@record
class RunProgress:
    """One run at one moment. `ended` is set when it is OVER, `reason` is that of an UNTAKEN attempt.

    `note` says what could not be read.
    """

    phase: RunPhase
    attempt: int = 0
    standing: JobPhase = JobPhase.COMING
    supervisor: ProcessId | None = None
    ended: Ended | None = None
    rebooted: bool = False
    reason: str = "start"
    note: str = ""


def look_at_run(run_dir: str, *, first_attempt: int = 1) -> RunProgress:
    """Look at the newest attempt of a run; `first_attempt` is the one that the worker itself has begun."""
    try:
        attempt = _find_newest(run_dir)
    except OSError as error:
        # Not the same as empty: what is taken for empty is made anew, over what is there.
        return RunProgress(RunPhase.UNREADABLE, note=f"{error.filename or run_dir}: {error.strerror}")
    if attempt < max(1, first_attempt):
        return RunProgress(RunPhase.MISSING, attempt)
    path = f"{wire.attempt_dir(run_dir, attempt)}/{wire.STATE}"
    try:
        content = wire.parse_object(fallback.read(os.path.basename(run_dir), attempt, path), path)
        state = wire.decode(RunState, content, path)
    except (OSError, wire.WireError) as error:
        return RunProgress(RunPhase.UNREADABLE, attempt, note=f"{path}: {error}")
    match = find_box(state.box, (state.supervisor, *recorded_processes(state.state)))
    supervisor, current = state.supervisor, state.state
    alive = supervisor is not None and processes.is_alive(supervisor)
    if isinstance(current, Ended):
        return _judge_end(run_dir, attempt, current, supervisor if alive else None)
    if match is BoxMatch.UNKNOWN:
        return RunProgress(
            RunPhase.UNREADABLE, attempt, note=f"{run_dir}: begun on another box or boot, of host {state.box.host}"
        )
    if alive:
        return RunProgress(RunPhase.LIVE, attempt, _find_standing(state, followed=attempt > first_attempt), supervisor)
    if supervisor is None and isinstance(current, Created):
        return RunProgress(RunPhase.UNTAKEN, attempt, reason=str(content.get("reason", "start")))
    return RunProgress(RunPhase.ORPHANED, attempt, rebooted=match is BoxMatch.REBOOTED)


def _find_newest(run_dir: str) -> int:
    """The newest attempt that has a state; a directory without one was never begun.

    Raises:
        OSError: that cannot be told.
    """
    for attempt in reversed(read_attempts(run_dir)):
        if _is_there(f"{wire.attempt_dir(run_dir, attempt)}/{wire.STATE}"):
            return attempt
        aside = fallback.directory(os.path.basename(run_dir), attempt)
        if aside is not None and os.path.exists(f"{aside}/{wire.STATE}"):
            return attempt
    return 0


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _judge_end(run_dir: str, attempt: int, ended: Ended, living: ProcessId | None) -> RunProgress:
    """An end counts when all about it is written; the exit record comes last, after the next attempt's beginning."""
    if os.path.exists(f"{wire.attempt_dir(run_dir, attempt)}/{wire.EXIT}"):
        if ended.exit_code == NotCopied.exit_code:
            # Somebody may have copied its results since.
            ended = observe_run(run_dir, attempt=attempt).end or ended
        return RunProgress(RunPhase.OVER, attempt, JobPhase.AT_WORK, ended=ended)
    phase = RunPhase.ORPHANED if living is None else RunPhase.LIVE
    return RunProgress(phase, attempt, JobPhase.AT_WORK, living)


def _find_standing(state: RunState, *, followed: bool) -> JobPhase:
    """`followed`: an attempt that its own run began, which may pause before it comes to the cards."""
    current = state.state
    if isinstance(current, Waiting):
        return JobPhase.IN_LINE if current.blocked_by else JobPhase.COMING
    if isinstance(current, (Created, Preflight)):
        return JobPhase.AT_WORK if followed else JobPhase.COMING
    return JobPhase.IN_LINE if isinstance(current, Starting) else JobPhase.AT_WORK


@record(frozen=False)
class WatchedRun:
    """A run that the worker looks after. Times are monotonic.

    `moved` says that its last look was the first to see it at work: another may get in line for cards.
    `begun_s` is when it was given a supervisor or first seen, 0 once that is at work; `over_s` when its end was seen,
    `dark_s` since when it cannot be read (0: it can).
    """

    job: QueuedJob
    run_dir: str
    first_attempt: int
    look: RunProgress
    begun_s: float
    looked_s: float
    restarts: int = 0
    over_s: float | None = None
    dark_s: float = 0.0
    moved: bool = False
    watch: int | None = None
    watched_attempt: int = 0
    held: pidfd.HeldProcess | None = None
    held_as: ProcessId | None = None


class RunWatch:
    """The runs, and one poll set for everything that may happen to them."""

    def __init__(self, directory: str) -> None:
        """Watch `directory` (the journal) too."""
        self.runs: dict[int, WatchedRun] = {}
        self._poller = select.poll()
        self._by_watch: dict[int, int] = {}
        self._by_descriptor: dict[int, int] = {}
        self._dirty: set[int] = set()
        self._journal: int | None = None
        self._queue: inotify.Inotify | None = None
        try:
            self._queue = inotify.Inotify()
            self._journal = self._queue.add(directory, inotify.MOVED_TO | inotify.CREATE)
        except OSError:
            # Looking again and again is all that is left.
            self._close_queue()
        else:
            self._poller.register(self._queue.fileno(), select.POLLIN)

    def close(self) -> None:
        """Give every descriptor back; the runs go on."""
        for run in list(self.runs.values()):
            self.drop(run.job.id)
        self._close_queue()

    def _close_queue(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def add(self, job: QueuedJob, run_dir: str, first_attempt: int) -> WatchedRun:
        """Look after a run from now on; its first look is due at once."""
        now = monotonic_s()
        run = WatchedRun(job, run_dir, first_attempt, RunProgress(RunPhase.UNTAKEN), now, now)
        self.runs[job.id] = run
        self._dirty.add(job.id)
        return run

    def drop(self, job_id: int) -> None:
        """Forget a run."""
        run = self.runs.pop(job_id)
        self._dirty.discard(job_id)
        self._unwatch(run)
        self._let_go(run)

    def listen(self, descriptor: int) -> None:
        """Wake up when this can be read, too."""
        self._poller.register(descriptor, select.POLLIN)

    def ignore(self, descriptor: int) -> None:
        """Wake up no more when this can be read."""
        self._poller.unregister(descriptor)

    def postpone(self, run: WatchedRun, delay_s: float) -> None:
        """Look at a run again that much later, because what followed from the last look could not be done."""
        run.looked_s = monotonic_s() - LOOK_AGAIN_S + delay_s

    def take_due(self) -> list[WatchedRun]:
        """Look at every run of which something was heard, or nothing for long; answers those, with their new look."""
        now = monotonic_s()
        patience = LOOK_AGAIN_S if self._queue is not None else BLIND_POLL_S
        due = [run for run in self.runs.values() if run.job.id in self._dirty or now - run.looked_s >= patience]
        self._dirty.clear()
        for run in due:
            self._look(run)
        return due

    def _look(self, run: WatchedRun) -> None:
        run.looked_s = monotonic_s()
        attempt = run.watched_attempt
        with contextlib.suppress(OSError):
            attempt = _find_newest(run.run_dir)
        if attempt >= run.first_attempt and attempt != run.watched_attempt:
            # Begun by its own supervisor: what comes now is as new as a start.
            run.begun_s, run.restarts = monotonic_s(), 0
            # Before the look, so that nothing is missed in between.
            self._unwatch(run)
            self._watch_attempt(run, attempt)
        before, run.look = run.look, look_at_run(run.run_dir, first_attempt=run.first_attempt)
        run.moved = before.standing is not run.look.standing is JobPhase.AT_WORK
        if run.look.supervisor != run.held_as:
            self._let_go(run)
            self._hold_supervisor(run)

    def _watch_attempt(self, run: WatchedRun, attempt: int) -> None:
        run.watched_attempt = attempt
        if self._queue is None:
            return
        try:
            run.watch = self._queue.add(wire.attempt_dir(run.run_dir, attempt), inotify.MOVED_TO)
        except OSError:
            return
        self._by_watch[run.watch] = run.job.id

    def _unwatch(self, run: WatchedRun) -> None:
        if run.watch is not None and self._queue is not None:
            self._by_watch.pop(run.watch, None)
            self._queue.remove(run.watch)
        run.watch = None

    def _hold_supervisor(self, run: WatchedRun) -> None:
        supervisor = run.look.supervisor
        if supervisor is None:
            return
        try:
            held = pidfd.hold_process(supervisor)
        except OSError:
            return
        if held is None:
            # It went between the look and now.
            self._dirty.add(run.job.id)
            return
        run.held, run.held_as = held, supervisor
        if held.descriptor is not None:
            self._by_descriptor[held.descriptor] = run.job.id
            self._poller.register(held.descriptor, select.POLLIN)

    def _let_go(self, run: WatchedRun) -> None:
        if run.held is not None:
            if run.held.descriptor is not None:
                self._by_descriptor.pop(run.held.descriptor)
                self._poller.unregister(run.held.descriptor)
            run.held.close()
        run.held = run.held_as = None

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until something happens or the time has passed; whether the journal may have changed."""
        if self._dirty:
            timeout_s = 0.0
        elif self.runs or self._queue is None:
            timeout_s = min(self._next_look_s(), BLIND_POLL_S * 1e9 if timeout_s is None else timeout_s)
        ready = self._poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000) + (timeout_s > 0)))
        for descriptor, _ in ready:
            if descriptor in self._by_descriptor:
                self._dirty.add(self._by_descriptor[descriptor])
        self._dirty.update(run.job.id for run in self._list_unheard() if run.held is not None and run.held.has_ended())
        return self._read_events()

    def _list_unheard(self) -> list[WatchedRun]:
        """Those of whose supervisor's end the kernel does not tell."""
        return [run for run in self.runs.values() if run.held is not None and run.held.descriptor is None]

    def _next_look_s(self) -> float:
        if self._queue is None or self._list_unheard():
            return BLIND_POLL_S
        return max(0.0, min(run.looked_s for run in self.runs.values()) + LOOK_AGAIN_S - monotonic_s())

    def _read_events(self) -> bool:
        if self._queue is None:
            return True
        told = False
        for event in self._queue.read():
            if event.mask & inotify.OVERFLOW:
                self._dirty.update(self.runs)
                told = True
            elif event.watch == self._journal:
                told = True
            elif event.watch in self._by_watch:
                run = self.runs[self._by_watch[event.watch]]
                # On its way to cards each step counts. Without, it is at work from the moment that it is supervised.
                steps = run.job.cards or run.held is None
                if event.name in (TELLING if steps else ENDING):
                    self._dirty.add(run.job.id)
        return told
