"""The supervisor of one attempt: observe, decide, commit, act.

One process, one thread, no sockets. `core.run.lifecycle.decide` says what follows from an event; this module commits
the new state and has the actions carried out; what they bring about comes back as events. A supervisor that is killed
anywhere is replaced by another that begins with `Resumed`: it reads the same files and goes on. Only one at a time: the
lock of the run that `supervisor_process` holds, so that no two of its attempts are at work at once either.

It must not know how cards are chosen, how a tree is contained or what a check looks at: `Lease`, `JobControl`,
`Finalizer` and the preflight do.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING

from holdfast.agent.kept_environment import keep_environment
from holdfast.core.run.deadlines import rearm_limits
from holdfast.core.run.events import (
    Arm,
    Began,
    ChecksDone,
    Disarm,
    EmptyTree,
    EndCopy,
    LeaseFailed,
    Moment,
    ResultsChecked,
    Resumed,
    SimpleAction,
    StartFailed,
    StopWanted,
    Timer,
    TimerFired,
)
from holdfast.core.run.lifecycle import PROGRESS_STEP_S, decide
from holdfast.host.box import BoxMatch, compare_boxes, read_box
from holdfast.host.clock import boot_epoch_s, boottime_ns, monotonic_s, parse_utc, utc_now
from holdfast.host.files.filesystems import is_local
from holdfast.host.files.inotify import ATTRIB, CREATE, DELETE_SELF, MODIFY, MOVE_SELF, MOVED_TO, Inotify
from holdfast.host.process import libc
from holdfast.host.process.processes import identify_self
from holdfast.host.process.signals import STOPS, STOPS_IN_FOREGROUND, WARNINGS, hold_back
from holdfast.model import wire
from holdfast.model.errors import HoldfastError
from holdfast.model.finding import Finding, Level
from holdfast.model.record import replace
from holdfast.model.run import (
    TAKEN_FOR_GONE,
    Created,
    Ended,
    Finalizing,
    Preflight,
    Refusal,
    RequestKind,
    Running,
    RunState,
    Starting,
    State,
    StopCause,
    Stopping,
    StopRequest,
    Waiting,
)

from .checkpoint_request import CheckpointRequests
from .context import SupervisorContext
from .end.finalize import Finalizer
from .job import JobControl
from .lease.lease import Lease
from .limits_request import LimitsRequests
from .loop import Loop
from .plan import bound_grace, build_plan, measure_grace
from .start import bring_up
from .start.preflight_step import PreflightStep
from .watch.sampler import HealthSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.run.events import Action, Event
    from holdfast.model.foreground import Foreground
    from holdfast.model.job import JobSpec
    from holdfast.model.profile import Profile

    from .recorder import Recorder
    from .watch.claims import ClaimWatch

DECIDING_S = 0.25
MOST_FAULTS = 100
"""A fault of ours that comes back so often is a loop: the supervisor leaves, the keeper holds on."""
WITH_STACKS = (Timer.RUN, Timer.TOTAL)
"""Deadlines at which it is worth knowing what the job was doing."""
STACKS_WITHIN_S = 1.5
POLL_WITHOUT_INOTIFY_S = 0.5
"""How often files are looked at when the account's inotify instances are used up."""
MEND_S = 0.5
"""A damaged state is mended no more often than this, whoever damages it."""
POLL_SHARED_S = 2.0
"""How often they are looked at on a file system that other machines write to, besides."""
LEAVING_S = 2.0
"""So long before its place kills a supervisor in the foreground stops looking at results and writes the end."""
EXIT_FAULT = 70


class Supervisor:
    """Drives one attempt from whatever state it is in to `ended`."""

    def __init__(  # noqa: PLR0913 - all that one attempt begins with
        self,
        run_dir: str,
        attempt: int,
        spec: JobSpec,
        recorder: Recorder,
        state: RunState,
        *,
        reason: str,
        umask: int,
        queued: bool,
        foreground: Foreground | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Take the attempt up; nothing is done before `run`."""
        self._state = state
        self._recorder = recorder
        self._events: deque[Event] = deque()
        self._leaving = False
        self._faults = 0
        self._ignored: set[int] = set()
        self._loop = Loop(self._on_signal)
        context = SupervisorContext(run_dir, attempt, spec, recorder, self._loop, self._emit, reason, state.generation)
        context.umask, context.queued, context.profile = umask, queued, profile
        context.foreground = self._foreground = foreground
        self._loop.helpers.update(() if foreground is None else foreground.bystanders)
        self._leave_by_s: float | None = None
        context.unlocked = state.unlocked
        self._context = context
        context.created_epoch_s = parse_utc(state.created_at)
        self._plan = build_plan(context, context.created_epoch_s)
        self._preflight = PreflightStep(context)
        self._lease = _open_lease(context, self._prepare_start)
        self._job = JobControl(context, self._lease)
        self._health = HealthSampler(context, self._job, self._lease)
        self._finalizer = Finalizer(context, self._job, self._lease)
        self._saving = CheckpointRequests(context)
        self._limits = LimitsRequests(context, self._job, self._lease)
        self._claims: ClaimWatch | None = None
        self._was_gone = recorder.read_gone() is not None

    def run(self) -> int:
        """Supervise until the run has ended; its exit code.

        In the foreground signals are held back again on return, and `Foreground.heard` tells of those that came late.
        """
        libc.set_child_subreaper()
        self._watch_directory()
        me = identify_self()
        untaken = isinstance(self._state.state, Created) and self._state.supervisor is None
        # Of one that nobody has taken up a scheduler may say that its job is over.
        resumed = not untaken or self._was_gone
        self._state = replace(self._state, supervisor=me, version=self._state.version + 1)
        self._recorder.commit_state(self._state)
        if resumed:
            self._recorder.event("supervisor_resumed", pid=me.pid, state=type(self._state.state).__name__.lower())
            self._emit(self._observe())
        else:
            self._recorder.event("supervisor_started", pid=me.pid)
            self._note_foreground()
            self._emit(Began())
        self._read_desired()
        self._heed_gone()
        self._saving.look(self._state.state)
        self._change_limits()
        self._hold_claim()
        if self._foreground is not None and self._foreground.beside is not None:
            self._foreground.beside(self._context)
        while not self._leaving or self._job.is_removing:
            event: Event | None = None
            try:
                while self._events:
                    event = self._events.popleft()
                    self._dispatch(event)
                event = None
                if not self._leaving or self._job.is_removing:
                    self._loop.run_once()
            except Exception as error:  # noqa: BLE001 - the supervision barrier, see _survive
                self._survive(error, event)
        self._hear_the_rest()
        return self._state.state.exit_code if isinstance(self._state.state, Ended) else EXIT_FAULT

    def _hear_the_rest(self) -> None:
        """What came after the last look of the loop still counts for whatever would be begun next."""
        if self._foreground is not None:
            hold_back()
            self._leaving = True
            self._loop.take_signals()

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _note_foreground(self) -> None:
        foreground = self._foreground
        if foreground is not None:
            self._recorder.event(
                "foreground",
                term=foreground.term,
                grace_limit_s=foreground.grace_limit_s,
                grace_s=self._plan.grace_s,
                grace_max_s=self._plan.grace_max_s,
                own_group=foreground.own_group,
            )

    def _hold_claim(self) -> None:
        """Keep the job of this run claimed, if several boxes share it (docs/queue.md)."""
        if not os.path.exists(f"{self._context.run_dir}/{wire.CLAIM}"):
            return
        from .watch.claims import ClaimWatch  # lazy: where several boxes share a queue alone

        self._claims = ClaimWatch(self._context)
        self._claims.begin()

    def _dispatch(self, event: Event) -> None:
        """Decide, commit, act."""
        if isinstance(event, (StopWanted, TimerFired)):
            # Either may begin a stop.
            self._plan = measure_grace(self._plan, self._context)
        before = self._state
        after, actions = decide(before, event, Moment(utc_now(), self._steady_epoch_s()), self._plan)
        if after is not before:
            self._state = after
            self._recorder.commit_state(after)
            self._announce(before.state, after.state)
        for action in actions:
            self._perform(action)
        if after is not before:
            # The lease's public record follows what was done; whoever waits for this step does not wait for it.
            self._lease.on_state(after.state)

    def _steady_epoch_s(self) -> float:
        """Now in epoch seconds as the wall clock of the attempt's creation would tell it."""
        if self._state.boot_epoch_s is None:
            self._state = replace(self._state, boot_epoch_s=boot_epoch_s())
        assert self._state.boot_epoch_s is not None
        return self._state.boot_epoch_s + boottime_ns() / 1e9

    def _announce(self, before: State, after: State) -> None:
        if type(before) is not type(after):
            if isinstance(before, Preflight):
                self._preflight.abandon()
            elif isinstance(before, Running):
                self._health.stop_clocks()
            name = type(after).__name__.lower()
            grace = {"grace_s": self._plan.grace_s} if isinstance(after, Stopping) else {}
            self._recorder.state_event(name, after, **grace)
            if not isinstance(after, Ended):
                # The end is told when its records are written.
                self._context.notify(name)
        elif isinstance(after, Waiting):
            self._recorder.event("blocked", busy=after.blocked_by)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Arm):
            delay_s = action.delay_s
            if action.timer is Timer.POSTFLIGHT and self._leave_by_s is not None:
                delay_s = min(delay_s, max(0.0, self._leave_by_s - monotonic_s()))
            self._loop.timers.arm(action.timer, delay_s, lambda: self._on_timer(action.timer))
        elif isinstance(action, Disarm):
            self._loop.timers.disarm(action.timer)
        elif isinstance(action, EmptyTree):
            self._job.empty(self._state.state, action.gentle_s)
        elif isinstance(action, EndCopy):
            self._finalizer.end_copy(action.why)
        else:
            self._orders()[action]()

    def _orders(self) -> dict[SimpleAction, Callable[[], None]]:
        return {
            SimpleAction.RUN_CHECKS: self._preflight.begin,
            SimpleAction.TAKE_LEASE: self._lease.begin,
            SimpleAction.START_JOB: self._start_job,
            SimpleAction.LET_GO: self._job.let_go,
            SimpleAction.WATCH_JOB: self._watch_job,
            SimpleAction.TERM_TREE: lambda: self._job.terminate(self._state.state),
            SimpleAction.KILL_TREE: lambda: self._job.kill(self._state.state),
            SimpleAction.CHECK_RESULTS: lambda: self._finalizer.check(self._state.state),
            SimpleAction.COPY_RESULTS: self._finalizer.copy,
            SimpleAction.RELEASE_LEASE: self._release,
            SimpleAction.WRITE_EXIT: self._write_exit,
            SimpleAction.LEAVE: self._leave,
        }

    def _on_timer(self, timer: Timer) -> None:
        if timer is Timer.WAIT and self._lease.is_deciding:
            # The cards are ours but for a last look, which ends by itself.
            self._loop.timers.arm(timer, DECIDING_S, lambda: self._on_timer(timer))
            return
        self._recorder.event("timer", timer=timer.value)
        if timer in WITH_STACKS and isinstance(self._state.state, Running):
            # Whatever becomes of the stacks, the deadline holds.
            self._loop.timers.arm(timer, STACKS_WITHIN_S, lambda: self._emit(TimerFired(timer)))
            self._health.capture(f"{timer.value} limit reached", lambda _: self._on_stacks(timer))
            return
        self._emit(TimerFired(timer, progressing=timer is Timer.GRACE and self._may_save_on()))

    def _may_save_on(self) -> bool:
        """Whether the job's shutdown still writes, and the place leaves it the time."""
        until_s = self._leave_by_s
        return (until_s is None or monotonic_s() + PROGRESS_STEP_S < until_s) and self._job.is_progressing()

    def _on_stacks(self, timer: Timer) -> None:
        if self._loop.timers.is_armed(timer):
            self._loop.timers.disarm(timer)
            self._emit(TimerFired(timer))

    def _survive(self, error: Exception, event: Event | None) -> None:
        """The supervision barrier: what goes wrong inside costs a step of the run, never the supervision of its job."""
        self._faults += 1
        if self._faults > MOST_FAULTS:
            raise error
        state = self._state.state
        if isinstance(error, HoldfastError):
            refusal = Refusal(error.code, error.exit_code, str(error), error.hint)
        else:
            import traceback

            self._recorder.log("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip())
            self._recorder.event("internal_error", error=f"{type(error).__name__}: {error}")
            words = f"holdfast itself failed: {type(error).__name__}: {error}"
            refusal = Refusal("internal", 70, words, "please report it with supervisor.log")
        if isinstance(state, (Preflight, Waiting, Starting)):
            self._hear_signals()
        if isinstance(state, Preflight):
            finding = Finding("preflight.internal", Level.FAIL, "preflight", refusal.message, refusal.hint)
            self._emit(ChecksDone((finding,)))
        elif isinstance(state, Waiting):
            self._emit(LeaseFailed(refusal))
        elif isinstance(state, Starting) and state.job is None:
            self._emit(StartFailed(refusal))
        elif isinstance(state, Finalizing) and state.copying is not None:
            self._finalizer.end_copy(refusal.message)
        elif isinstance(state, Finalizing) and state.emptied:
            late = Finding("postflight.internal", Level.UNKNOWN, "postflight", refusal.message, refusal.hint)
            self._emit(ResultsChecked((late,)))
        elif isinstance(state, Ended):
            self._leaving = True
        elif isinstance(state, (Running, Stopping)):
            self._press_on(state, event)

    def _hear_signals(self) -> None:
        """A request to stop that came meanwhile goes before a refusal: what failed may have failed of that signal."""
        try:
            self._loop.take_signals()
        except Exception as error:  # noqa: BLE001 - part of the supervision barrier
            self._recorder.log(f"while signals were heard: {type(error).__name__}: {error}")

    def _press_on(self, state: Running | Stopping, event: Event | None) -> None:
        """A step of ours failed beside a living job.

        A request to end it must not be lost, nor the ladder stand still.
        """
        if isinstance(state, Running) and isinstance(event, (StopWanted, TimerFired)):
            self._emit(event)
        elif isinstance(state, Stopping) and not self._loop.timers.is_armed(Timer.GRACE):
            self._loop.timers.arm(Timer.GRACE, self._plan.grace_s, lambda: self._on_timer(Timer.GRACE))

    def _prepare_start(self) -> None:
        self._job.prepare()
        bring_up.warm_up(self._context)

    def _start_job(self) -> None:
        assert isinstance(self._state.state, Starting)
        if self._context.spec.retries.max and not self._context.queued:
            keep_environment(self._context.run_id, self._context.environ)
        self._job.start(self._state.state)

    def _watch_job(self) -> None:
        self._job.watch(self._state.state)
        self._health.begin(self._state.state)

    def _release(self) -> None:
        self._health.end()
        self._lease.release()

    def _write_exit(self) -> None:
        assert isinstance(self._state.state, Ended)
        self._finalizer.write(self._state.state)
        if self._claims is not None:
            self._claims.end(self._state.state)

    def _leave(self) -> None:
        self._leaving = True

    def _observe(self) -> Resumed:
        """What is left of a run that another supervisor began."""
        here = read_box()
        match, gone = compare_boxes(self._state.box, here), self._recorder.read_gone()
        elsewhere = match is BoxMatch.UNKNOWN or isinstance(self._state.state, Created)
        if gone is not None and elsewhere and gone.box == self._state.box:
            self._recorder.event("place_gone", by=gone.by, at=gone.at, reason=gone.reason, box=gone.box)
            # From now on the run is this box's: here it can be judged, and begun again.
            self._state = replace(self._state, box=here)
            match = BoxMatch.REBOOTED
        rebooted = match is BoxMatch.REBOOTED
        self._lease.resume(self._state.state, rebooted=rebooted)
        resumed = self._job.observe(self._state.state, rebooted=rebooted)
        state = self._state.state
        if isinstance(state, Starting) and not rebooted and self._recorder.was_abandoned():
            # Brought up, never let go: the same as not brought up.
            self._job.forget()
            self._state = replace(self._state, state=replace(state, keeper=None, job=None))
        self._context.saw_end = resumed.job_alive or isinstance(state, (Finalizing, Ended))
        if not rebooted and self._is_yet_to_start():
            self._context.saw_end = True
        return resumed

    def _is_yet_to_start(self) -> bool:
        state = self._state.state
        no_job = isinstance(state, Starting) and state.job is None
        return no_job or isinstance(state, (Created, Preflight, Waiting))

    # --- the outside world -----------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._job.on_child()
            return
        if number not in (STOPS if self._foreground is None else STOPS_IN_FOREGROUND):
            self._note_ignored(number)
            return
        name = signal.Signals(number).name
        forced = number == signal.SIGINT and self._context.note_interrupt() > 1
        cause, detail = (
            (StopCause.SIGNAL, "") if self._foreground is None else self._hear_place(number, self._foreground)
        )
        request = StopRequest(cause, f"{name} to the supervisor", forced, detail, warned=number in WARNINGS)
        if isinstance(self._state.state, Ended):
            self._job.stop_removing()
            return
        self._recorder.event("stop_requested", by=request.by, force=forced)
        self._emit(StopWanted(request))

    def _hear_place(self, number: int, foreground: Foreground) -> tuple[StopCause, str]:
        """What a stop signal of the place stands for, with what else it says; from now on the place's time runs."""
        first = not foreground.heard
        foreground.heard = foreground.heard or number
        told = None if foreground.explain is None else foreground.explain(number)
        if told is not None and (first or foreground.grace_limit_s is None):
            foreground.grace_limit_s = told.kills_in_s
        self._leave_within(foreground.grace_limit_s if told is None or first else told.kills_in_s)
        if told is not None:
            return told.cause, told.detail
        if number in WARNINGS or (number == signal.SIGTERM and foreground.heard in WARNINGS):
            # Where nobody can be asked, a TERM after a warning is the end that was warned of.
            return StopCause.PREEMPTION, ""
        return (foreground.term if number == signal.SIGTERM else StopCause.SIGNAL), ""

    def _leave_within(self, limit_s: float | None) -> None:
        """The place kills us after so long; a later signal may leave less than a warning did."""
        leave_by_s = None if limit_s is None else monotonic_s() + limit_s - LEAVING_S
        if leave_by_s is None or (self._leave_by_s is not None and self._leave_by_s <= leave_by_s):
            return
        self._leave_by_s = leave_by_s
        for timer, most_s in ((Timer.POSTFLIGHT, limit_s), (Timer.GRACE, bound_grace(limit_s))):
            left_s = self._loop.timers.left_s(timer)
            if left_s is not None and most_s is not None:
                self._perform(Arm(timer, min(left_s, most_s)))

    def _note_ignored(self, number: int) -> None:
        """A signal that asks for nothing here: it is on record once, and the run goes on."""
        if number not in self._ignored:
            self._ignored.add(number)
            self._recorder.event("signal_ignored", signal=signal.strsignal(number), number=number)

    def _watch_directory(self) -> None:
        try:
            queue = Inotify()
            queue.add(self._recorder.directory, MOVED_TO | CREATE)
            queue.add(self._context.run_dir, MOVED_TO)
        except OSError as error:
            self._recorder.log(f"no inotify ({error}); looking every {POLL_WITHOUT_INOTIFY_S} s instead")
            self._poll_directory(POLL_WITHOUT_INOTIFY_S)
            return
        if not is_local(self._context.run_dir):
            # What another machine writes there makes no event here. Source: inotify(7), "Limitations and caveats".
            self._poll_directory(POLL_SHARED_S)

        def take() -> None:
            names = [event.name for event in queue.read()]
            if wire.STATE in names or "" in names:
                self._watch_state(queue)
            for name in names:
                self._on_file(name)

        self._loop.add(queue.fileno(), take)

    def _watch_state(self, queue: Inotify) -> None:
        """Mend our state where somebody has written over it or removed it; each file of that name is watched.

        Whoever looks at the run or acts on it goes by it. Not more often than each `MEND_S`, whatever it costs.
        """
        try:
            queue.add(self._recorder.path(wire.STATE), MODIFY | ATTRIB | MOVE_SELF | DELETE_SELF)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._recorder.log(f"{wire.STATE} is not watched ({error}); looking every {POLL_SHARED_S} s instead")
            self._poll_directory(POLL_SHARED_S)
        if not self._loop.timers.is_armed("mend"):
            self._loop.timers.arm("mend", MEND_S, self._mend_state)

    def _mend_state(self) -> None:
        # Without a real lock another supervisor may have come, whose state it is.
        if not self._context.unlocked:
            self._recorder.mend_state(self._state)

    def _poll_directory(self, every_s: float) -> None:
        self._mend_state()
        for name in (wire.DESIRED, wire.STATUS, wire.CHECKPOINT_WANTED, wire.LIMITS_WANTED, wire.GONE):
            self._on_file(name)
        self._loop.timers.arm("poll", every_s, lambda: self._poll_directory(every_s))

    def _on_file(self, name: str) -> None:
        if name == wire.DESIRED:
            self._read_desired()
        elif name == wire.STATUS:
            self._job.on_status()
        elif name == wire.CHECKPOINT_WANTED:
            self._saving.look(self._state.state)
        elif name == wire.LIMITS_WANTED:
            self._change_limits()
        elif name == wire.GONE:
            self._heed_gone()

    def _heed_gone(self) -> None:
        """End the run where somebody takes our place for gone: what goes on elsewhere must not write beside it."""
        gone = None if self._was_gone else self._recorder.read_gone()
        if gone is not None:
            self._was_gone = True
            self._recorder.event("taken_for_gone", by=gone.by, reason=gone.reason)
            cause = gone.cause or StopCause.PREEMPTION
            self._emit(StopWanted(StopRequest(cause, f"{TAKEN_FOR_GONE} ({gone.by})", force=True, detail=gone.reason)))

    def _change_limits(self) -> None:
        """Do what somebody wants of the limits; deadlines that were moved are watched anew."""
        state = self._state.state
        now_s = self._steady_epoch_s()
        plan = self._limits.look(state, self._plan, now_s)
        if plan is not None and isinstance(state, Running):
            self._plan = plan
            for action in rearm_limits(state, Moment(utc_now(), now_s), plan):
                self._perform(action)

    def _read_desired(self) -> None:
        desired = self._context.read_desired()
        if desired is None or self._context.seen_before(desired):
            return
        force = desired.kind is RequestKind.STOP_NOW
        self._recorder.event("stop_requested", by=desired.by, force=force, reason=desired.reason)
        self._emit(StopWanted(StopRequest(StopCause.OPERATOR, desired.by, force=force, detail=desired.reason)))


def _open_lease(context: SupervisorContext, prepare_start: Callable[[], object]) -> Lease:
    if not context.spec.gpus.wanted:
        return Lease()
    from .lease.card_lease import CardLease  # lazy: a run without cards never holds what chooses and leases them

    return CardLease(context, prepare_start)
