"""The supervisor of one attempt: observe, decide, commit, act.

One process, one thread, no sockets. `core.lifecycle.decide` says what follows from an event; this module commits the
new state and has the actions carried out; what they bring about comes back as events. A supervisor that is killed
anywhere is replaced by another that begins with `Resumed`: it reads the same files and goes on. Only one at a time:
the attempt's supervisor lock.

It must not know how cards are chosen, how a tree is contained or what a check looks at: `CardLease`, `JobControl`,
`Closing` and the preflight do.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.events import (
    Arm,
    Began,
    ChecksDone,
    Disarm,
    Do,
    EmptyTree,
    LeaseFailed,
    Now,
    ResultsChecked,
    Resumed,
    StartFailed,
    StopWanted,
    Timer,
    TimerFired,
)
from ..core.lifecycle import decide
from ..host import files, libc
from ..host.clock import boot_id, parse_utc, utc_now
from ..host.inotify import MOVED_TO, Inotify
from ..host.keeper import wait_briefly
from ..host.processes import identify_self
from ..model import wire
from ..model.errors import HoldfastError
from ..model.finding import Finding, Level
from ..model.job import JobSpec
from ..model.run import (
    Created,
    Ended,
    Finalizing,
    Outcome,
    Preflight,
    Refusal,
    Running,
    RunState,
    Starting,
    State,
    StopCause,
    Stopping,
    StopRequest,
    Waiting,
    Wish,
)
from .closing import Closing
from .context import Context
from .health import HealthSampler
from .job_control import JobControl
from .launch import build_supervisor_command
from .leasing import CardLease
from .loop import LISTENED, Loop
from .plan import build_plan, measure_grace
from .preflight_step import PreflightStep
from .record import LOCK_NAME, Recorder
from .saving import SaveRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.events import Action, Event
    from .claim_watch import ClaimWatch

DECIDING_S = 0.25
MOST_FAULTS = 100
"""A fault of ours that comes back so often is a loop: the supervisor leaves, the keeper holds on."""
SLIM_AFTER_S = 1.0
"""A job that lives this long gets a supervisor that has only loaded what watching needs."""
LOCK_PATIENCE_S = 0.05
WITH_STACKS = (Timer.RUN, Timer.TOTAL)
"""Deadlines at which it is worth knowing what the job was doing."""
STACKS_WITHIN_S = 1.5
IN_QUEUE_WAIT_S = 365 * 86400.0
POLL_WITHOUT_INOTIFY_S = 0.5
"""How often files are looked at when the account's inotify instances are used up."""


class Supervisor:
    """Drives one attempt from whatever state it is in to `ended`."""

    def __init__(
        self,
        run_dir: str,
        attempt: int,
        spec: JobSpec,
        recorder: Recorder,
        state: RunState,
        *,
        reason: str,
        kept: dict[str, int],
        umask: int,
    ) -> None:
        """Take the attempt up; nothing is done before `run`.

        `kept` names open descriptors: ``lock``, and more after a change of image.
        """
        self._state = state
        self._recorder = recorder
        self._events: deque[Event] = deque()
        self._leaving = False
        self._faults = 0
        self._kept = kept
        self._loop = Loop(self._on_signal)
        context = Context(run_dir, attempt, spec, recorder, self._loop, self._emit, reason)
        context.umask = umask
        self._context = context
        context.created_epoch_s = parse_utc(state.created_at)
        self._plan = build_plan(context, context.created_epoch_s)
        self._preflight = PreflightStep(context)
        self._lease = CardLease(context, self._prepare_start)
        self._job = JobControl(context, self._lease, kept_output=kept.get("output"))
        self._health = HealthSampler(context, self._job, self._lease)
        self._closing = Closing(context, self._job, self._lease)
        self._saving = SaveRequests(context)
        self._claims: ClaimWatch | None = None

    def run(self) -> int:
        """Supervise until the run has ended; the exit code of this process is always 0."""
        if "inotify" not in self._kept:
            # Kept across a change of image, like the watched directory; prctl(2).
            libc.set_child_subreaper()
        self._watch_directory()
        me = identify_self()
        resumed = not isinstance(self._state.state, Created) or self._state.supervisor is not None
        self._state = replace(self._state, supervisor=me, boot_id=self._state.boot_id, version=self._state.version + 1)
        self._recorder.commit_state(self._state)
        if resumed:
            self._recorder.event("supervisor_resumed", pid=me.pid, state=type(self._state.state).__name__.lower())
            self._emit(self._observe())
        else:
            self._recorder.event("supervisor_started", pid=me.pid)
            self._emit(Began())
        self._read_desired()
        self._saving.look(self._state.state)
        self._hold_claim()
        while not self._leaving:
            event: Event | None = None
            try:
                while self._events:
                    event = self._events.popleft()
                    self._dispatch(event)
                event = None
                if not self._leaving:
                    self._loop.run_once()
            except Exception as error:  # noqa: BLE001 - the supervision barrier, see _survive
                self._survive(error, event)
        return 0

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _hold_claim(self) -> None:
        """Keep the cell of this run claimed, if several boxes share it (docs/queue.md)."""
        if not os.path.exists(f"{self._context.run_dir}/{wire.CLAIM}"):
            return
        from .claim_watch import ClaimWatch

        self._claims = ClaimWatch(self._context)
        self._claims.begin()

    def _dispatch(self, event: Event) -> None:
        """Decide, commit, act."""
        if isinstance(event, (StopWanted, TimerFired)):
            # Either may begin a stop.
            self._plan = measure_grace(self._plan, self._context)
        before = self._state
        after, actions = decide(before, event, Now(utc_now(), time.time()), self._plan)
        if after is not before:
            self._state = after
            self._recorder.commit_state(after)
            self._announce(before.state, after.state)
        for action in actions:
            self._perform(action)
        if after is not before:
            # The lease's public record follows what was done; whoever waits for this step does not wait for it.
            self._lease.on_state(after.state)

    def _announce(self, before: State, after: State) -> None:
        if type(before) is not type(after):
            if isinstance(before, Preflight):
                self._preflight.abandon()
            elif isinstance(before, Running):
                self._health.stop_clocks()
            name = type(after).__name__.lower()
            grace = {"grace_s": self._plan.grace_s} if isinstance(after, Stopping) else {}
            self._recorder.event(name, **_headline(after), **grace)
            if not isinstance(after, Ended):
                # The end is told when its records are written.
                self._context.notify(name)
        elif isinstance(after, Waiting):
            self._recorder.event("blocked", busy=after.blocked_by)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Arm):
            self._loop.timers.arm(action.timer, action.delay_s, lambda: self._on_timer(action.timer))
        elif isinstance(action, Disarm):
            self._loop.timers.disarm(action.timer)
        elif isinstance(action, EmptyTree):
            self._job.empty(self._state.state, action.gentle_s)
        else:
            self._orders()[action]()

    def _orders(self) -> dict[Do, Callable[[], None]]:
        return {
            Do.RUN_CHECKS: self._preflight.begin,
            Do.TAKE_LEASE: self._lease.begin,
            Do.START_JOB: self._start_job,
            Do.LET_GO: self._job.let_go,
            Do.WATCH_JOB: self._watch_job,
            Do.TERM_TREE: lambda: self._job.terminate(self._state.state),
            Do.KILL_TREE: lambda: self._job.kill(self._state.state),
            Do.CHECK_RESULTS: lambda: self._closing.check(self._state.state),
            Do.RELEASE_LEASE: self._release,
            Do.WRITE_EXIT: self._write_exit,
            Do.LEAVE: self._leave,
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
        self._emit(TimerFired(timer, progressing=timer is Timer.GRACE and self._job.is_progressing()))

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
        if isinstance(state, Preflight):
            finding = Finding("preflight.internal", Level.FAIL, "preflight", refusal.message, refusal.hint)
            self._emit(ChecksDone((finding,)))
        elif isinstance(state, Waiting):
            self._emit(LeaseFailed(refusal))
        elif isinstance(state, Starting) and state.job is None:
            self._emit(StartFailed(refusal))
        elif isinstance(state, Finalizing) and state.emptied:
            late = Finding("postflight.internal", Level.UNKNOWN, "postflight", refusal.message, refusal.hint)
            self._emit(ResultsChecked((late,)))
        elif isinstance(state, Ended):
            self._leaving = True
        elif isinstance(state, (Running, Stopping)):
            self._press_on(state, event)

    def _press_on(self, state: Running | Stopping, event: Event | None) -> None:
        """A step of ours failed beside a living job: a wish to end it must not be lost, nor the ladder stand still."""
        if isinstance(state, Running) and isinstance(event, (StopWanted, TimerFired)):
            self._emit(event)
        elif isinstance(state, Stopping) and not self._loop.timers.is_armed(Timer.GRACE):
            self._loop.timers.arm(Timer.GRACE, self._plan.grace_s, lambda: self._on_timer(Timer.GRACE))

    def _prepare_start(self) -> None:
        from . import starting

        self._job.prepare()
        starting.warm_up(self._context)

    def _start_job(self) -> None:
        assert isinstance(self._state.state, Starting)
        self._job.start(self._state.state)

    def _watch_job(self) -> None:
        self._job.watch(self._state.state)
        self._health.begin(self._state.state)
        if isinstance(self._state.state, Running) and "holdfast.agent.starting" in sys.modules:
            self._loop.timers.arm("slim", SLIM_AFTER_S, self._slim_down)

    def _slim_down(self) -> None:
        """Replace this image, which has loaded all that a start needs, by a small one: same process, same children.

        Only while the job simply runs; nothing is lost, because whoever comes up next begins from the files anyway.
        """
        if not isinstance(self._state.state, Running):
            return
        if (
            self._events
            or self._context.notifying
            or self._context.helpers
            or not files.can_read(f"{self._context.run_dir}/{wire.RUN}")
        ):
            self._loop.timers.arm("slim", SLIM_AFTER_S, self._slim_down)
            return
        # Until the new image listens, a signal waits instead of ending it.
        signal.pthread_sigmask(signal.SIG_BLOCK, LISTENED)
        keep = {**self._kept, **self._job.kept_fds}
        command = build_supervisor_command(
            self._context.run_dir, self._context.attempt, self._context.reason, keep=keep
        )
        for descriptor in keep.values():
            os.set_inheritable(descriptor, True)
        try:
            os.execve(command[0], command, os.environ)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, LISTENED)
            self._recorder.log(f"could not slim down: {error}")

    def _release(self) -> None:
        self._health.end()
        self._lease.release()

    def _write_exit(self) -> None:
        assert isinstance(self._state.state, Ended)
        self._closing.write(self._state.state)
        if self._claims is not None:
            self._claims.end(self._state.state)

    def _leave(self) -> None:
        self._leaving = True

    def _observe(self) -> Resumed:
        """What is left of a run that another supervisor began."""
        rebooted = self._state.boot_id != boot_id()
        self._lease.resume(self._state.state, rebooted=rebooted)
        resumed = self._job.observe(self._state.state, rebooted=rebooted)
        state = self._state.state
        if isinstance(state, Starting) and not rebooted and self._recorder.was_abandoned():
            # Brought up, never let go: the same as not brought up.
            self._job.forget()
            self._state = replace(self._state, state=replace(state, keeper=None, job=None))
        return resumed

    # --- the outside world -----------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._job.on_child()
            return
        name = signal.Signals(number).name
        forced = number == signal.SIGINT and self._context.note_interrupt() > 1
        request = StopRequest(StopCause.SIGNAL, f"{name} to the supervisor", force=forced)
        self._recorder.event("stop_requested", by=request.by, force=forced)
        self._emit(StopWanted(request))

    def _watch_directory(self) -> None:
        try:
            queue = self._open_queue()
        except OSError as error:
            self._recorder.log(f"no inotify ({error}); looking every {POLL_WITHOUT_INOTIFY_S} s instead")
            self._poll_directory()
            return

        def take() -> None:
            for event in queue.read():
                self._on_file(event.name)

        self._kept["inotify"] = queue.fileno()
        self._loop.add(queue.fileno(), take)

    def _open_queue(self) -> Inotify:
        if "inotify" in self._kept:
            return Inotify(self._kept["inotify"])
        queue = Inotify()
        queue.add(self._recorder.directory, MOVED_TO)
        return queue

    def _poll_directory(self) -> None:
        for name in (wire.DESIRED, wire.STATUS, wire.CHECKPOINT_WANTED):
            self._on_file(name)
        self._loop.timers.arm("poll", POLL_WITHOUT_INOTIFY_S, self._poll_directory)

    def _on_file(self, name: str) -> None:
        if name == wire.DESIRED:
            self._read_desired()
        elif name == wire.STATUS:
            self._job.on_status()
        elif name == wire.CHECKPOINT_WANTED:
            self._saving.look(self._state.state)

    def _read_desired(self) -> None:
        desired = self._recorder.read_desired()
        if desired is None or self._context.seen_before(desired):
            return
        force = desired.wish is Wish.STOP_NOW
        self._recorder.event("stop_requested", by=desired.by, force=force, reason=desired.reason)
        self._emit(StopWanted(StopRequest(StopCause.OPERATOR, desired.by, force=force, detail=desired.reason)))


def _headline(state: State) -> dict[str, object]:
    """What of a state is worth a word in the event stream."""
    skip = {"kind", "devices", "keeper"}
    return {key: value for key, value in wire.encode(state).items() if key not in skip and value not in (None, [], "")}


def main(argv: list[str], *, umask: int = 0o077) -> int:
    """``RUN_DIR ATTEMPT REASON [--keep FD,FD]``: supervise one attempt until it has ended.

    `umask` is the caller's, for the job; our own files are private whatever it is.
    """
    run_dir, attempt, reason = argv[0], int(argv[1]), argv[2]
    kept = _parse_kept(argv[4]) if len(argv) > 4 else {}
    try:
        record = wire.parse_object(files.read_bytes(f"{run_dir}/{wire.RUN}"), wire.RUN)
        spec = wire.decode(JobSpec, record["job"])
        if record.get("cell") is not None and spec.gpus.wanted and not spec.gpu.wait_s:
            # Who was queued waits for cards as long as it takes; the rules may say less.
            spec = replace(spec, gpu=replace(spec.gpu, wait_s=IN_QUEUE_WAIT_S))
        recorder = Recorder(run_dir, os.path.basename(run_dir), attempt)
        if os.path.lexists(recorder.path(wire.PLACEMENT)):
            from .queueing.placing import place, read_placement

            placement = read_placement(recorder.directory)
            spec = spec if placement is None else place(spec, placement)
        if not kept:
            lock = _take_lock(recorder.directory)
            if lock is None:
                recorder.log("another supervisor is at work; leaving")
                return 0
            kept = {"lock": lock}
        state = _read_state(recorder)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{utc_now()} cannot supervise {run_dir} attempt {attempt}: {error}\n")
        return 74
    try:
        code = Supervisor(run_dir, attempt, spec, recorder, state, reason=reason, kept=kept, umask=umask).run()
    except Exception as error:  # noqa: BLE001 - supervision barrier: the keeper goes on, another can take over
        import traceback

        recorder.log("".join(traceback.format_exception(error)).rstrip())
        recorder.event("supervisor_failed", error=f"{type(error).__name__}: {error}")
        _give_up(recorder, f"holdfast itself failed before anything was started: {type(error).__name__}: {error}")
        code = 70
    if record.get("cell") is not None:
        from .queueing.presence import see_to_worker

        see_to_worker(recorder.log)
    return code


def _give_up(recorder: Recorder, words: str) -> None:
    """End a run of which nothing was begun, so that nobody waits for it; one that was begun is left to a successor."""
    try:
        state = recorder.read_state()
        if isinstance(state.state, Created):
            refusal = Refusal("internal", 70, words, "please report it with supervisor.log")
            ended = Ended(utc_now(), Outcome.FAILED, 70, words, refusal=refusal)
            recorder.commit_state(replace(state, state=ended, version=state.version + 1, updated_at=utc_now()))
    except (OSError, ValueError) as error:
        recorder.log(f"the end could not be recorded: {error}")


def _read_state(recorder: Recorder) -> RunState:
    try:
        return recorder.read_state()
    except (OSError, ValueError) as error:
        from .rebuild import rebuild_state

        return rebuild_state(recorder, str(error))


def _parse_kept(text: str) -> dict[str, int]:
    """The descriptors that the former image of this process left open, close-on-exec again."""
    kept = {name: int(number) for name, _, number in (word.partition("=") for word in text.split(","))}
    for descriptor in kept.values():
        os.set_inheritable(descriptor, False)
    return kept


def _take_lock(directory: str) -> int | None:
    """The attempt's supervisor lock: None when another supervisor holds it.

    A disk that takes no lock does not stop a run; then this is a descriptor without one.
    """
    try:
        descriptor = os.open(f"{directory}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A keeper that looks whether somebody supervises has it for a moment.
        if not wait_briefly(lambda: _try_lock(descriptor), LOCK_PATIENCE_S):
            os.close(descriptor)
            return None
    except OSError:
        return descriptor
    return descriptor


def _try_lock(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
