"""Waits until a condition of one run is met or never can be (MON-03).

It sleeps on the kernel's own events (inotify on the attempt and on the awaited file's directory, pidfds of the run's
processes) and has a bounded life. It acts on nothing. When the run is gone without a word it ends with "run lost"
instead of waiting for what cannot come.
"""

from __future__ import annotations

import os
import select
import signal
from enum import Enum

from holdfast.agent.patrol.gather import gather_evidence
from holdfast.agent.view import observe
from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.follow import watch_processes
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.run_view import Presence, RunReach, RunView
from holdfast.core.patrol.evidence import LIMITS, RunStatus, StallLimits
from holdfast.core.patrol.patrol import judge_run, limit_s
from holdfast.host import clock
from holdfast.host.files import inotify
from holdfast.host.formats.readable import find_damage
from holdfast.model import wire
from holdfast.model.errors import EXIT_STOPPED, EXIT_TIMED_OUT, UsageError
from holdfast.model.record import record
from holdfast.model.run import Outcome, Running, Stopping

EXIT_NEVER = 1
PAUSE_S = 0.1
"""After a change, so that many at once are one look."""
CHATTER_S = 1.0
"""After output that decides nothing: so late a change may be noticed while a job prints without end."""
LONGEST_SLEEP_S = 3600.0
UNTOLD = frozenset({wire.OUTPUT, wire.SUPERVISOR_LOG, wire.EVENTS})
"""Files of an attempt whose changes decide nothing here."""
_RESULT_EVENTS = inotify.CREATE | inotify.MOVED_TO | inotify.CLOSE_WRITE


class ConditionKind(str, Enum):
    """What can be waited for."""

    ENDED = "ended"
    STARTED = "started"
    STALLED = "stalled"
    FAILED = "failed"
    STEP = "step"
    ARTIFACT = "artifact"


class ConditionState(str, Enum):
    """How a wait stands, or how it ended."""

    WAITING = "waiting"
    MET = "met"
    NEVER = "never"
    EXPIRED = "expired"
    ENDED = "ended by a signal"


@record
class SentinelCondition:
    """One thing to wait for; `step` and `path` belong to their kinds."""

    kind: ConditionKind
    step: int = 0
    path: str = ""

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        value = {ConditionKind.STEP: f"={self.step}", ConditionKind.ARTIFACT: f"={self.path}"}.get(self.kind, "")
        return f"{self.kind.value}{value}"


@record
class ConditionAnswer:
    """How it stands, and why, in words. `again_s`: look again after so many seconds even without an event."""

    verdict: ConditionState
    words: str = ""
    again_s: float = LONGEST_SLEEP_S

    @property
    def exit_code(self) -> int:
        """0 met, 1 it can no longer be met, 124 its life was over, 130 somebody ended it."""
        codes = {ConditionState.MET: 0, ConditionState.NEVER: EXIT_NEVER, ConditionState.EXPIRED: EXIT_TIMED_OUT}
        return codes.get(self.verdict, EXIT_STOPPED)


def parse_condition(text: str) -> SentinelCondition:
    """The condition that a person wrote.

    Raises:
        UsageError: there is no such condition.
    """
    word, mark, value = text.partition("=")
    words = "ended, started, stalled, failed, step=N, artifact=PATH"
    try:
        kind = ConditionKind(word)
    except ValueError:
        raise UsageError(f"--for {text!r}: there is no such condition", hint=f"there are {words}") from None
    if kind is ConditionKind.STEP:
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise UsageError(f"--for {text!r}: a step is a whole number", hint="write it like step=5000")
        return SentinelCondition(kind, step=int(value))
    if kind is ConditionKind.ARTIFACT:
        if not value or "\0" in value:
            raise UsageError(f"--for {text!r}: name the file", hint="write it like artifact=artifacts/result.json")
        return SentinelCondition(kind, path=value)
    if mark:
        raise UsageError(f"--for {text!r}: {kind.value} takes no value", hint=f"there are {words}")
    return SentinelCondition(kind)


def judge_condition(condition: SentinelCondition, view: RunView, limits: StallLimits = LIMITS) -> ConditionAnswer:
    """How a condition stands by one look. A met condition counts also when the run has ended since."""
    met = _judge_met(condition, view, limits)
    if met.verdict is ConditionState.MET:
        return met
    if view.over:
        return ConditionAnswer(ConditionState.NEVER, f"{view.run_id} ended without: {view.condition}: {view.note}")
    if is_lost(view):
        lost = f"run lost: {view.run_id}: {view.note}"
        return ConditionAnswer(
            ConditionState.MET if condition.kind is ConditionKind.FAILED else ConditionState.NEVER, lost
        )
    if not os.path.isdir(view.run_dir):
        return ConditionAnswer(ConditionState.NEVER, f"run lost: {view.run_dir} does not exist any more")
    if view.reach is RunReach.ELSEWHERE:
        # Its processes cannot be watched from here, and its writes make no events.
        return ConditionAnswer(ConditionState.WAITING, again_s=min(met.again_s, 5.0))
    return met


def is_lost(view: RunView) -> bool:
    """Whether nobody is left who could end this run. Ourselves do not count, though we may carry the run's marker."""
    others = [member for member in view.members if member.pid not in (os.getpid(), os.getppid())]
    return (
        view.reach is RunReach.HERE
        and view.state is not None
        and not view.over
        and view.supervisor is Presence.GONE
        and Presence.ALIVE not in (view.job, view.keeper)
        and not others
    )


def _judge_met(condition: SentinelCondition, view: RunView, limits: StallLimits) -> ConditionAnswer:
    kind = condition.kind
    if kind is ConditionKind.STEP:
        return _judge_step(condition, view)
    if kind is ConditionKind.ARTIFACT:
        return _judge_artifact(condition, view)
    if kind is ConditionKind.STALLED:
        return _judge_stalled(view, limits)
    if kind is ConditionKind.STARTED:
        began = view.end.started_at is not None if view.end else isinstance(_state(view), (Running, Stopping))
        return (
            ConditionAnswer(ConditionState.MET, f"{view.run_id} has started")
            if began
            else ConditionAnswer(ConditionState.WAITING)
        )
    wanted = view.over
    if kind is ConditionKind.FAILED:
        bad = {outcome.value for outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST)}
        wanted = view.over and view.condition in bad
    return (
        ConditionAnswer(ConditionState.MET, f"{view.run_id} {view.condition}: {view.note}")
        if wanted
        else ConditionAnswer(ConditionState.WAITING)
    )


def _state(view: RunView) -> object:
    return view.state.state if view.state is not None else None


def _judge_step(condition: SentinelCondition, view: RunView) -> ConditionAnswer:
    step = view.heartbeat.get("step")
    if isinstance(step, (int, float)) and not isinstance(step, bool) and step >= condition.step:
        return ConditionAnswer(ConditionState.MET, f"{view.run_id} is at step {step:g}")
    return ConditionAnswer(ConditionState.WAITING)


def place_of(condition: SentinelCondition, run_dir: str) -> str:
    """The awaited file; a relative path is in the run directory, as the job file's `artifacts` are."""
    return os.path.normpath(os.path.join(run_dir, condition.path))


def _judge_artifact(condition: SentinelCondition, view: RunView) -> ConditionAnswer:
    """There, not empty, of this attempt, and, where its format is known, whole (MON-12)."""
    path = place_of(condition, view.run_dir)
    try:
        facts = os.stat(path)
        full = bool(os.listdir(path)) if os.path.isdir(path) else facts.st_size > 0
        began = clock.parse_utc(view.state.created_at) if view.state is not None else 0.0
        # A file system may keep whole seconds only.
        if not full or facts.st_mtime < began - 1:
            return ConditionAnswer(ConditionState.WAITING)
        damage = None if os.path.isdir(path) else find_damage(path)
    except (OSError, ValueError):
        return ConditionAnswer(ConditionState.WAITING)
    if damage is not None:
        return ConditionAnswer(ConditionState.WAITING, again_s=5.0)
    return ConditionAnswer(ConditionState.MET, f"{path} is there")


def _judge_stalled(view: RunView, limits: StallLimits) -> ConditionAnswer:
    if view.over or view.attempt == 0:
        return ConditionAnswer(ConditionState.WAITING)
    seen = gather_evidence(view.run_dir, limits, frozenset({os.getpid(), os.getppid()}))
    judged = judge_run(view.run_id, seen.ending, seen.vitals, limits)
    if judged.standing is RunStatus.STALLED:
        lines = [line for line in (judged.ending, *judged.alarms) if line.escalate]
        return ConditionAnswer(ConditionState.MET, f"{view.run_id} stalls: {'; '.join(line.text for line in lines)}")
    limit, age = limit_s(seen.vitals, limits), seen.vitals.progress_age_s
    left = limit - age if limit is not None and age is not None else 60.0
    return ConditionAnswer(ConditionState.WAITING, again_s=max(left, 0.0) + 1.0)


def wait_for_condition(
    run_dir: str, condition: SentinelCondition, *, max_s: float, attempt: int, limits: StallLimits = LIMITS
) -> ConditionAnswer:
    """Sleep until the condition is met, cannot be met, the life of `max_s` is over, or TERM or HUP comes."""
    deadline = clock.monotonic_s() + max_s
    with _WakeSources(place_of(condition, run_dir) if condition.kind is ConditionKind.ARTIFACT else None) as ears:
        where = wire.attempt_dir(run_dir, attempt)
        with ChangeWatch(where, wake_fd=ears.fileno()) as changes:
            while True:
                view = observe.observe_run(run_dir, attempt=attempt)
                answer = judge_condition(condition, view, limits)
                if answer.verdict is not ConditionState.WAITING:
                    if view.over and _hangs_on_its_end(condition, answer) and is_followed(run_dir, attempt):
                        break
                    return answer
                watch_processes(changes, view)
                _sleep(changes, ears, min(deadline, clock.monotonic_s() + answer.again_s))
                if ears.told_to_end:
                    return ConditionAnswer(
                        ConditionState.ENDED, "ended by a signal: another sentinel took its place, or somebody did"
                    )
                if clock.monotonic_s() >= deadline:
                    return ConditionAnswer(ConditionState.EXPIRED, f"not so within its life of {max_s:g} s")
    left_s = max(deadline - clock.monotonic_s(), 0.0)
    return wait_for_condition(run_dir, condition, max_s=left_s, attempt=attempt + 1, limits=limits)


def _hangs_on_its_end(condition: SentinelCondition, answer: ConditionAnswer) -> bool:
    """Whether the answer is about the run's end, which another attempt makes void."""
    return answer.verdict is ConditionState.NEVER or condition.kind in (ConditionKind.ENDED, ConditionKind.FAILED)


def _sleep(changes: ChangeWatch, ears: _WakeSources, until: float) -> None:
    """Until something that matters changed; then a moment more, so that many changes are one."""
    while not ears.told_to_end and (left_s := until - clock.monotonic_s()) > 0:
        changed = changes.wait(left_s)
        heard = ears.take()
        if heard or changed - UNTOLD:
            ears.rest(PAUSE_S)
            return
        if changed:
            # A job that prints all the time wakes nobody more often than this.
            ears.rest(min(left_s, CHATTER_S))


class _WakeSources:
    """What wakes a sentinel beside the attempt's own files: TERM and HUP, and changes where the awaited file will be.

    One epoll descriptor for both, because `ChangeWatch` takes one.
    """

    def __init__(self, awaited: str | None) -> None:
        self._awaited = awaited
        self._watched = ""
        self.told_to_end = False

    def __enter__(self) -> _WakeSources:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.epoll()
        self._poll.register(self._read, select.EPOLLIN)
        self._queue: inotify.Inotify | None = None
        self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGTERM, signal.SIGHUP)}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._follow()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._poll.close()
        if self._queue is not None:
            self._queue.close()
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._poll.fileno()

    def _hear(self, *_: object) -> None:
        self.told_to_end = True

    def _follow(self) -> None:
        """Watch the nearest directory of the awaited file that exists: something appears there."""
        if self._awaited is None:
            return
        near = os.path.dirname(self._awaited)
        while near != "/" and not os.path.isdir(near):
            near = os.path.dirname(near)
        if near == self._watched:
            return
        try:
            queue = self._queue or inotify.Inotify()
            if self._queue is None:
                self._queue = queue
                self._poll.register(queue.fileno(), select.EPOLLIN)
            queue.add(near, _RESULT_EVENTS)
            self._watched = near
        except OSError:
            # No events to be had: the supervisor's samples wake us at their own rate.
            return

    def rest(self, seconds: float) -> None:
        """Sleep, but not through a word to us."""
        self._poll.poll(seconds)

    def take(self) -> bool:
        """What was heard since the last time, if anything."""
        heard = False
        try:
            heard = bool(os.read(self._read, 4096))
        except BlockingIOError:
            pass
        if self._queue is not None and self._queue.read():
            heard = True
            self._follow()
        return heard
