"""Which attempt a supervisor in the foreground takes up, and what has to be true of the one before it.

One attempt at a time for each run, wherever it stands: a further one is begun only when the one before it is over, or
provably has nobody left. That is proven on this box by its processes, else by the lock of its supervisor on a file
system that is this box's alone, or by what the place says: Slurm starts a job again only after it has ended it, and the
caller may know (`Wanted.evidence`, of the attempt that was the newest when it was given). Silence proves nothing: then
nothing is begun.

Where locks prove nothing (a file system that is not this box's alone, or takes none) files that can be made only once
decide: ``attempts/N`` itself, ``native.json`` in it, and those of `run_lock.take_unlocked` (docs/adr/0027).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.run_lock import (
    TakenUp,
    hold_run_lock,
    take_supervisor_lock,
    take_unlocked,
)
from holdfast.agent.view import observe, run_view
from holdfast.agent.view.grace import grace_of
from holdfast.agent.view.run_view import Presence, RunReach
from holdfast.core.run.outcome import EXIT_LOST
from holdfast.host.box import read_box
from holdfast.host.clock import monotonic_s, utc_now
from holdfast.host.files import files
from holdfast.host.files.filesystems import is_local
from holdfast.host.process.processes import identify_self
from holdfast.host.process.signals import STOPS_IN_FOREGROUND, WARNINGS
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, ResourceBusy, StorageError
from holdfast.model.identity import BoxIdentity, ProcessId
from holdfast.model.record import record, replace
from holdfast.model.run import Outcome, PlaceGone, StopCause

if TYPE_CHECKING:
    from holdfast.agent.view.run_view import RunView
    from holdfast.host.process.surroundings import SlurmJob

WAIT_BEYOND_GRACE_S = 30.0
"""How long the attempt before is waited for beyond its grace: what the records of its end may take."""
LOOK_EVERY_S = 0.25
LOCK_PATIENCE_S = 0.2
"""How long the supervisor's lock is tried for, which a reader may have for a moment."""
LOCK_FREE_S = 10.0
"""How long the lock of a supervisor that cannot be seen must be free: its keeper may still be ending the job."""


class Stopped(Exception):
    """A signal asked for a stop before an attempt was begun here."""

    def __init__(self, number: int, term: StopCause, words: str) -> None:
        """Say what was not done because of it."""
        super().__init__(f"{signal.Signals(number).name}: {words}")
        preempted = number in WARNINGS or (number == signal.SIGTERM and term is StopCause.PREEMPTION)
        self.cause = StopCause.PREEMPTION if preempted else StopCause.SIGNAL


@record
class Native:
    """The content of ``native.json``: who took an attempt up first, as the scheduler names it (empty: no scheduler)."""

    job: str
    restarts: int
    process: ProcessId
    box: BoxIdentity


@record
class Wanted:
    """What is asked for: a run, why another attempt is to follow one that is over, what the caller knows."""

    run_dir: str
    next_reason: str | None
    evidence: str | None
    term: StopCause
    allocation: SlurmJob | None


@record
class Done:
    """Nothing is to be begun; the run has ended with this code."""

    code: int
    words: str


@record
class Begin:
    """Supervise this attempt, for this reason. The run's lock is held as `lock`, until `release` against restarts too.

    `real`: the lock proves that nobody else supervises.
    """

    attempt: int
    reason: str
    lock: int
    real: bool
    release: Callable[[], None] = lambda: None


@record
class Settle:
    """Have the end of this attempt written, of which nobody is left, then choose again. The rest as in `Begin`."""

    attempt: int
    words: str
    lock: int
    real: bool


class _Wait(Exception):
    """Somebody may still be at it; the message says who."""


def choose(wanted: Wanted) -> Begin | Settle | Done:
    """What is to be done, once that can be said.

    Raises:
        Stopped: a stop was asked for meanwhile.
        ResourceBusy: somebody else is at it, or that cannot be excluded.
        NoSuchRun, StorageError: the run cannot be read or written.
        OSError: the system refuses what is needed.
    """
    chooser = _Chooser(wanted)
    deadline_s: float | None = None
    while True:
        try:
            return chooser.look()
        except FileNotFoundError:
            if os.path.exists(wanted.run_dir):
                raise
            raise NoSuchRun(f"{wanted.run_dir} has been removed", hint="order it anew") from None
        except (_Wait, ResourceBusy) as busy:
            if wanted.next_reason is None:
                raise _refuse(wanted, busy, "only one process at a time supervises a run") from None
            if deadline_s is None:
                deadline_s = monotonic_s() + chooser.patience_s
            if monotonic_s() >= deadline_s:
                words = f"waited {chooser.patience_s:g} s: its grace, and {WAIT_BEYOND_GRACE_S:g} s for its records"
                raise _refuse(wanted, busy, words) from None
            _rest(wanted.term, str(busy))


def _refuse(wanted: Wanted, busy: Exception, words: str) -> ResourceBusy:
    if isinstance(busy, ResourceBusy):
        return busy
    hint = "if its place is gone for good, say how you know: --evidence WORDS"
    return ResourceBusy(f"{os.path.basename(wanted.run_dir)}: {busy}; {words}", hint=hint)


def _rest(term: StopCause, words: str) -> None:
    """Sleep until it is time to look again; as process 1 what has ended meanwhile is reaped."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    # Python's sigtimedwait answers any number when STOP and CONT (Slurm's suspend) outlast its time: seen with 3.11.
    time.sleep(LOOK_EVERY_S)
    found = signal.sigtimedwait(STOPS_IN_FOREGROUND, 0)
    if found is not None:
        raise Stopped(found.si_signo, term, f"no attempt was begun; {words}")


class _Chooser:
    """Looks at the run again and again, and decides under its locks."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        # Another process with the same evidence may begin the next attempt while we wait: it says nothing of that one.
        self._newest = max(observe.list_attempts(wanted.run_dir), default=0)
        self._free_since_s: float | None = None
        self.patience_s = WAIT_BEYOND_GRACE_S

    def look(self) -> Begin | Settle | Done:
        """What is to be done now.

        Raises:
            _Wait: nothing yet.
            ResourceBusy: somebody else decides about the run just now.
        """
        run_dir = self._wanted.run_dir
        with ExitStack() as held:
            held.enter_context(hold_run_lock(run_dir, what="stand"))
            lock, real = take_supervisor_lock(run_dir, LOCK_PATIENCE_S)
            try:
                step = self._choose(lock, real=real and is_local(run_dir))
            except BaseException:
                if lock is not None:
                    os.close(lock)
                raise
            if isinstance(step, Begin):
                return replace(step, release=held.pop_all().close)
            if isinstance(step, Done) and lock is not None:
                os.close(lock)
            return step

    def _choose(self, lock: int | None, *, real: bool) -> Begin | Settle | Done:
        view = observe.observe_run(self._wanted.run_dir)
        if view.attempt == 0:
            raise NoSuchRun(f"{view.run_id} has no attempt", hint="order it anew")
        self.patience_s = grace_of(view) + WAIT_BEYOND_GRACE_S
        if lock is None:
            self._free_since_s = None
            raise _Wait(f"attempt {view.attempt} is supervised by somebody else ({_describe(view)})")
        return self._decide(view, lock, real=real)

    def _decide(self, view: RunView, lock: int, *, real: bool) -> Begin | Settle | Done:
        if view.over:
            return self._follow(view, lock, real=real)
        if view.state is None:
            raise StorageError(f"{view.run_id}: {view.note}", hint=f"holdfast show {view.run_id}")
        if run_view.is_never_taken(view):
            self._fence(view, real=real)
            return Begin(view.attempt, _read_reason(view), lock, real)
        if view.reach is not RunReach.HERE:
            words = self._prove_gone(view, real=real)
            gone = wire.to_bytes(PlaceGone(describe_caller(), utc_now(), words, view.state.box))
            try:
                files.commit(f"{view.attempt_dir}/{wire.GONE}", gone)
            except OSError as error:
                raise StorageError(f"{view.attempt_dir}/{wire.GONE}: {error.strerror}", hint="see df") from error
            self._take(view, real=real)
            return Settle(view.attempt, words, lock, real)
        if view.supervised:
            raise _Wait(f"attempt {view.attempt} is supervised by somebody else ({_describe(view)})")
        if view.job_lives and self._wanted.next_reason is not None:
            raise _Wait(f"attempt {view.attempt} has no supervisor, and its job still lives")
        self._take(view, real=real)
        if view.job_lives or (run_view.is_unstarted(view) and not view.rebooted):
            return Begin(view.attempt, "adopt", lock, real)
        return Settle(view.attempt, view.note or "nobody is left of it", lock, real)

    def _follow(self, view: RunView, lock: int, *, real: bool) -> Begin | Done:
        """After an attempt that is over: another one, where that is wanted and makes sense."""
        code = EXIT_LOST if view.exit_code is None else view.exit_code
        end, reason = view.end, self._wanted.next_reason
        words = f"{view.run_id} has ended: attempt {view.attempt} {view.condition}, exit code {code}"
        if reason is None:
            return Done(code, words)
        if end is not None and end.outcome is Outcome.SUCCEEDED:
            return Done(code, f"{words}; nothing is left to do")
        asked = end is not None and end.request is not None and end.request.cause is StopCause.OPERATOR
        if asked or view.desired is not None:
            return Done(code, f"{words}; somebody wants it stopped, so no other attempt is begun")
        generation = None if view.state is None else view.state.generation
        attempt = next_attempt(view.run_dir, reason, generation=generation, only=view.attempt + 1)
        self._fence(observe.observe_run(view.run_dir, attempt=attempt), real=real)
        return Begin(attempt, reason, lock, real)

    def _prove_gone(self, view: RunView, *, real: bool) -> str:
        """What proves that nobody is left of an attempt that was begun elsewhere.

        Raises:
            _Wait: nothing does, so far.
        """
        assert view.state is not None
        if self._wanted.evidence and view.attempt == self._newest:
            return self._wanted.evidence
        if os.path.exists(f"{view.attempt_dir}/{wire.GONE}"):
            return "its place was said to be gone"
        before, job = _read_native(view.attempt_dir), self._wanted.allocation
        if before is not None and job is not None and before.job == _name(job) and before.restarts < job.restarts:
            return f"Slurm has ended job {job.job_id} and started it again (restart {job.restarts})"
        here = read_box()
        if real and here.boot_id and view.state.box.boot_id == here.boot_id and not view.state.unlocked:
            self._free_since_s = self._free_since_s or monotonic_s()
            if monotonic_s() - self._free_since_s >= LOCK_FREE_S:
                return f"its supervisor's lock on this box's own file system has been free for {LOCK_FREE_S:g} s"
        else:
            self._free_since_s = None
        raise _Wait(f"attempt {view.attempt} was begun elsewhere, and nothing proves its end ({_describe(view)})")

    def _fence(self, view: RunView, *, real: bool) -> None:
        """Be the one who begins an attempt, also where no lock can tell.

        Raises:
            _Wait: somebody else is.
        """
        job = self._wanted.allocation
        me = Native("" if job is None else _name(job), 0 if job is None else job.restarts, identify_self(), read_box())
        try:
            first = files.make_once(f"{view.attempt_dir}/{wire.NATIVE}", wire.to_bytes(me))
        except OSError:
            # A full disk costs a record; where locks prove nothing the next file that cannot be made stops us.
            first = False
        before = None if first else _read_native(view.attempt_dir)
        if real or (before is not None and before.job and before.job == me.job):
            return
        self._take(view, real=real)

    def _take(self, view: RunView, *, real: bool) -> None:
        if real:
            return
        assert view.state is not None
        try:
            if take_unlocked(view.attempt_dir, view.state, TakenUp(identify_self(), read_box())):
                return
        except (OSError, wire.WireError) as error:
            raise StorageError(f"{view.attempt_dir}: who takes it up cannot be told: {error}", hint="see df") from error
        raise _Wait(f"somebody else takes attempt {view.attempt} up, and no lock can tell more ({_describe(view)})")


def _name(job: SlurmJob) -> str:
    return f"slurm:{job.job_id}"


def _read_native(attempt_dir: str) -> Native | None:
    path = f"{attempt_dir}/{wire.NATIVE}"
    try:
        return wire.from_bytes(Native, files.read_bytes(path), path)
    except (OSError, wire.WireError):
        return None


def _read_reason(view: RunView) -> str:
    """Why an attempt was made that nobody has taken up yet."""
    path = f"{view.attempt_dir}/{wire.STATE}"
    try:
        found = wire.parse_object(files.read_bytes(path), path).get("reason")
    except (OSError, wire.WireError):
        found = None
    return found if isinstance(found, str) and found else "start"


def _describe(view: RunView) -> str:
    process = None if view.state is None else view.state.supervisor
    pid = "" if process is None else f"pid {process.pid} on "
    seen = "" if view.state is None else f", last heard of at {view.state.updated_at or view.state.created_at}"
    known = "" if view.supervisor is not Presence.UNKNOWN else ", which cannot be seen from here"
    return f"{pid}{view.host}{seen}{known}"
