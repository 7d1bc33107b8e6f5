"""The queue's worker: one process for each account and box, there as long as something is to be started or watched.

It owns no job: every run has a supervisor of its own, so a worker that is killed anywhere costs nothing. The next one
finds in the queue which jobs were started, looks at their runs, and goes on. All that it decides is committed before
it is done (`start`), what became of a run is read from the run (`watch`), and what may start is decided by
`core.queue.choose`.

It sleeps in one poll: the journal's directory, the supervisors of its runs, their attempts' directories, the next time
that something waits for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.run_lock import can_lock, is_held
from holdfast.agent.messages.deliver import LIMIT_S
from holdfast.agent.messages.group_end import GroupMessages
from holdfast.agent.view.runs.of_queue import find_runs
from holdfast.core.queue.choose import ActiveJob, QueueState, choose_jobs
from holdfast.host.clock import epoch_s, monotonic_s
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.queue import JobState
from holdfast.store.queue.journal import NewerQueue
from holdfast.store.queue.moves import JobMoved
from holdfast.store.queue.queue import Queue

from .cpu_slots import count_cpu_slots
from .end import JobEndings
from .hours import read_closed_hours
from .preload import preload_modules
from .presence import WorkerLock, log_line
from .start import JobStarter, StartOutcome
from .watch import COME_UP_S, RunPhase, RunWatch, WatchedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.launch import StartSupervisor
    from holdfast.model.queue import QueuedJob

    from .start import StartReport


WINDOW = 100
"""How many of the best waiting jobs are considered at a time."""
MOST_ACTIVE = 200
"""Runs at once: each costs a watch and a descriptor, and a supervisor closes no descriptor beyond 1024."""
CLOCK_CHECK_S = 60.0
"""How often the wall clock is asked anew when something waits for a time of day: somebody may have set it."""
REVIEW_S = 10.0
"""How often, at the least, jobs that another box has are looked at: three times in an expiry."""
FIRST_REVIEW_S = 1.0
REST_S = 0.1
"""How long the end of a job for cards is not looked into: whoever is given these cards now needs disk and CPU."""
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


class QueueWorker:
    """Works one queue off until nothing is left that goes on by itself."""

    def __init__(self, queue: Queue, start_supervisor: StartSupervisor) -> None:
        """Look at nothing yet."""
        self._queue = queue
        self._starter = JobStarter(queue, start_supervisor)
        self._watch = RunWatch(f"{queue.directory}/journal")
        self._blocked = ""
        self._blocked_until_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._reviewed_s = 0.0
        self._review_s = FIRST_REVIEW_S
        self._review_from = 0
        self._hours: tuple[float, str] = (0.0, "")
        self._messages = GroupMessages(queue, log_line, listen=self._watch.listen, ignore=self._watch.ignore)
        self._ends = JobEndings(queue, self._messages)
        self._behind = True
        self._stale = True
        self._due_s: float | None = None
        self._faults = 0
        self._cpus = count_cpu_slots()

    def close(self) -> None:
        """Give every descriptor back; what runs goes on."""
        self._messages.close()
        self._watch.close()

    def run(self, stay: Callable[[], bool]) -> None:
        """Work until nothing is left to do, or `stay` says no."""
        # Also when it is begun anew: what was seen left then may be told of by no event any more.
        self._behind = self._stale = True
        self._guard(self._messages.begin)
        while stay():
            self._guard(self._take_messages)
            if self._behind:
                self._behind = False
                self._guard(self._take_stock)
            self._guard(self._follow_runs)
            if self._is_due():
                self._stale = False
                self._guard(self._review_elsewhere)
                looked_at, looked_s = epoch_s(), monotonic_s()
                self._guard(self._start_jobs)
                wait_s = self._find_pause(looked_at, looked_s)
                if wait_s is not None and wait_s < 0:
                    self._guard(self._messages.look)
                    if not self._messages.under_way:
                        return
                    wait_s = LIMIT_S
                self._due_s = None if wait_s is None else monotonic_s() + wait_s
            waits = [] if self._due_s is None else [max(0.0, self._due_s - monotonic_s())]
            left_s = self._messages.find_wait_s()
            if self._watch.wait(min([*waits, *([] if left_s is None else [left_s])], default=None)):
                self._stale = True
                self._guard(self._queue.catch_up)

    def _take_messages(self) -> None:
        """Note which messages are through: the worker may have stayed for nothing else."""
        if self._messages.take_through():
            self._stale = True

    def _is_due(self) -> bool:
        """Whether something has changed that decides what may start, or its time has come; else asking is in vain."""
        return self._stale or self._behind or (self._due_s is not None and monotonic_s() >= self._due_s)

    def has_work(self) -> bool:
        """Whether anything is active or goes on by itself."""
        return bool(self._queue.active()) or self._is_waiting()

    def _guard(self, step: Callable[[], None]) -> None:
        """The queue's disk may be full or its database locked for a while: nothing is lost by trying again later."""
        try:
            step()
        except NewerQueue:
            # The lock is for a worker that knows what was handed in.
            raise
        except (HoldfastError, OSError) as error:
            log_line(f"{step.__name__.strip('_')}: {error}")
            self._behind = True
            self._block(str(error))
        except Exception as error:
            # The supervision barrier: what goes wrong with one job must not keep the others for ever.
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
        for job in self._queue.active():
            if job.id in self._watch.runs:
                continue
            try:
                self._take_over(job)
            except JobMoved as error:
                # Of this one somebody else has decided; the others are still to be looked at.
                log_line(str(error))

    def _take_over(self, job: QueuedJob) -> None:
        if job.state is JobState.PRODUCED:
            self._ends.judge(job)
        elif job.state is JobState.CLAIMED:
            self._note(self._starter.resume_start(job))
        elif job.run_dir is not None:
            self._watch.add(job, job.run_dir, max(1, job.attempts))

    def _note(self, start: StartReport) -> None:
        """What came of a start: watch the run, or say why there is none."""
        job = start.job
        if start.made is StartOutcome.STARTED:
            assert job.run_dir is not None
            self._watch.add(job, job.run_dir, job.attempts)
            self._pause_s = FIRST_PAUSE_S
            return
        log_line(f"{job.label} was not started ({start.made.value}): {start.why}")
        if start.made is StartOutcome.BLOCKED:
            self._block(start.why)

    def _follow_runs(self) -> None:
        due = self._watch.take_due()
        for run in due:
            # Until what follows is done.
            self._watch.postpone(run, RETRY_S)
        for run in due:
            if run.look.phase is not RunPhase.LIVE or run.moved:
                self._stale = True
            try:
                self._follow(run)
            except JobMoved as error:
                # Somebody took it out of the queue. The run goes on, with a supervisor of its own.
                log_line(str(error))
                self._watch.drop(run.job.id)

    def _follow(self, run: WatchedRun) -> None:
        phase = run.look.phase
        run.dark_s = (run.dark_s or monotonic_s()) if phase is RunPhase.UNREADABLE else 0.0
        if phase is RunPhase.OVER:
            self._take_end(run)
            return
        run.over_s = None
        if phase is RunPhase.LIVE:
            run.begun_s = 0.0
        elif run.dark_s and monotonic_s() - run.dark_s < DARK_S:
            # A file server that does not answer for a while says nothing about the run.
            return
        else:
            self._mend(run)
        run.looked_s = monotonic_s()

    def _take_end(self, run: WatchedRun) -> None:
        run.over_s = run.over_s or monotonic_s()
        left_s = run.over_s + REST_S - monotonic_s()
        if run.job.cards and left_s > 0:
            self._watch.postpone(run, left_s)
        elif is_held(run.run_dir):
            # Stopped in order to be started again by hand, most likely: then it goes on.
            self._watch.postpone(run, HELD_S)
        else:
            self._ends.end(run)
            self._watch.drop(run.job.id)

    def _mend(self, run: WatchedRun) -> None:
        """A run of ours without a supervisor gets one; what cannot be told is left to a person."""
        look, job = run.look, run.job
        if monotonic_s() - run.begun_s < COME_UP_S and (run.restarts or look.phase is not RunPhase.ORPHANED):
            # Its supervisor is still coming up.
            return
        if look.phase in (RunPhase.MISSING, RunPhase.UNREADABLE) or run.restarts >= MOST_RESTARTS:
            # Its job may be at work all the same: nobody sees it there any more.
            why = (
                look.note or f"its run directory {run.run_dir} has no attempt (any more); its job may still be running"
            )
            if run.restarts >= MOST_RESTARTS:
                why = f"its supervisor was gone {run.restarts} times; see {run.run_dir}"
            self._leave_to_person(run, why)
            return
        orphaned = look.phase is RunPhase.ORPHANED
        if orphaned and not can_lock(run.run_dir):
            self._leave_to_person(run, f"its supervisor is gone and {run.run_dir} takes no locks; holdfast adopt it")
            return
        run.restarts += 1
        run.begun_s = monotonic_s()
        try:
            # After a restart of the box nothing is begun in it any more: its end is written, whatever is gone.
            self._starter.supervise(
                job, look.attempt, "adopt" if orphaned else look.reason, without_secrets=orphaned and look.rebooted
            )
        except (HoldfastError, OSError) as error:
            self._leave_to_person(run, str(error))

    def _leave_to_person(self, run: WatchedRun, why: str) -> None:
        """Its last attempt does not count as one that ended: whoever lets the job go on takes that one up first."""
        settled = max(run.look.attempt, run.job.attempts, 1) - 1
        blind = run.look.phase in (RunPhase.MISSING, RunPhase.UNREADABLE)
        # Let go by name only, never along with others: that person is to see first what is at work.
        self._queue.move_on(run.job.id, JobState.HELD, attempts=settled, note=why, guarded=blind)
        self._watch.drop(run.job.id)

    def _review_elsewhere(self) -> None:
        """Jobs that another box has: done there, or silent there and free again."""
        if monotonic_s() - self._reviewed_s < self._review_s:
            return
        self._reviewed_s = monotonic_s()
        jobs = self._queue.jobs(states=(JobState.ELSEWHERE,))
        first = self._review_from if self._review_from < len(jobs) else 0
        self._review_from = first + WINDOW
        for job in jobs[first : first + WINDOW]:
            answer = self._starter.shared.review(job)
            if answer.expiry_s:
                self._review_s = min(REVIEW_S, answer.expiry_s / 3)
            if answer.state is None:
                # The directory does not answer, and each look waits for it: our own jobs wait meanwhile.
                log_line(f"{job.label}: {answer.note}")
                return
            if answer.state is not JobState.ELSEWHERE:
                self._queue.move_on(job.id, answer.state, note=answer.note)

    # --- what is to be started --------------------------------------------------------------------------------------

    def _start_jobs(self) -> None:
        """Start what there is room for, until there is none or something else must be looked at first."""
        for _ in range(WINDOW):
            situation = self._look_around()
            room = MOST_ACTIVE - len(situation.active)
            chosen = choose_jobs(self._find_candidates(situation), situation)[:room] if room > 0 else ()
            for job in chosen:
                if not self._blocked_now:
                    self._start(job)
            if not chosen or self._blocked_now:
                return

    def _start(self, job: QueuedJob) -> None:
        try:
            self._note(self._starter.start(job))
        except JobMoved as error:
            log_line(str(error))

    def _find_candidates(self, situation: QueueState) -> list[QueuedJob]:
        return self._queue.candidates(
            now=situation.now,
            limit=WINDOW,
            without_groups=situation.closed_groups,
            cards=situation.card_room > 0,
            slots=situation.free_slots > 0,
        )

    def _look_around(self) -> QueueState:
        settings = self._queue.settings()
        return QueueState(
            active=tuple(ActiveJob(run.job, run.look.standing) for run in self._watch.runs.values()),
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
        """Why no job for cards may start at this time of day; read again once in a while."""
        read_s, words = self._hours
        if not read_s or monotonic_s() - read_s >= CLOCK_CHECK_S:
            words = read_closed_hours()
            self._hours = (monotonic_s(), words)
        return words

    def _is_waiting(self) -> bool:
        """Whether a job will start by itself, now or later."""
        situation = self._look_around()
        if situation.settings.paused or situation.settings.draining:
            return False
        if self._queue.next_time(situation.now) is not None:
            return True
        closed = situation.closed_groups
        slots = situation.cpu_slots > 0
        found = self._queue.candidates(now=situation.now, limit=1, without_groups=closed, cards=True, slots=slots)
        return bool(found) or bool(self._queue.jobs(states=(JobState.ELSEWHERE,), limit=1))

    def _find_pause(self, looked_at: float, looked_s: float) -> float | None:
        """How long to sleep at most, in seconds: None until something happens, negative when there is nothing to do.

        `looked_at` and `looked_s` (epoch and monotonic): when it was last looked what may start. What came due since
        then is looked at again.
        """
        if self._blocked_until_s > looked_s:
            return max(0.0, self._blocked_until_s - monotonic_s())
        try:
            waiting = self._is_waiting()
            due = self._queue.next_time(looked_at)
            elsewhere = waiting and bool(self._queue.jobs(states=(JobState.ELSEWHERE,), limit=1))
        except HoldfastError as error:
            self._block(str(error))
            return self._pause_s
        if not waiting:
            return None if self._watch.runs else -1.0
        times = [CLOCK_CHECK_S] if due is not None or self._hours[1] or not self._watch.runs else []
        times += [max(0.05, due - epoch_s())] if due is not None else []
        times += [self._review_s] if elsewhere else []
        return min(times, default=None)


def main(directory: str, *, start_supervisor: StartSupervisor) -> int:
    """Work the queue in `directory` off, unless another worker is at it; the exit code of this process."""
    os.umask(0o077)
    try:
        lock = WorkerLock(directory)
        if not lock.take():
            return 0
    except OSError as error:
        log_line(f"no worker for {directory}: {error}")
        return 74

    try:
        with Queue(directory, find_runs=find_runs) as queue:
            if queue.notice:
                log_line(queue.notice)
            preload_modules()
            work_queue(QueueWorker(queue, start_supervisor), lock)
    except StorageError as error:
        log_line(f"the queue cannot be used: {error}")
        return 74
    return 0


def _has_work(worker: QueueWorker) -> bool:
    """Whether anything is left; also when that cannot be told now, because nobody else would come and look."""
    try:
        return worker.has_work()
    except HoldfastError as error:
        log_line(f"whether anything is left cannot be told: {error}")
        return True


def work_queue(worker: QueueWorker, lock: WorkerLock) -> None:
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
