"""Runs a job undisturbed and then with KILLs at random moments, under the real supervisor.

Every attempt is started, watched, killed and started again in the way in which `run`, `stop --now` and `restart_run` do
it, in a directory of runs of its own, so that what is rehearsed is what happens. Whatever ends the rehearsal, the run
that it has started is ended too.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from holdfast.agent import launch
from holdfast.agent.control import create
from holdfast.agent.control.restart import restart_run
from holdfast.agent.control.settle import settle_run
from holdfast.agent.control.stop import ask_stop, stop
from holdfast.agent.view import observe
from holdfast.agent.view.changes import ChangeWatch
from holdfast.agent.view.follow import watch_processes
from holdfast.agent.view.run_view import RunView
from holdfast.core.drill.drill import AttemptEnd, AttemptTrail, DrillJudgement, judge_drill
from holdfast.host import clock
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import PreflightFailed, StillAlive, UsageError
from holdfast.model.job import Channels, JobSpec, Notify, Results, TrackerMode
from holdfast.model.record import record, replace
from holdfast.model.run import Outcome, RequestKind, Running
from holdfast.model.units import format_count

from .report import DrillRequest
from .watch import AttemptWatch

BY = "holdfast drill"
VARIABLE = "HOLDFAST_REHEARSAL"
"""Tells the library that this is a rehearsal: a directory that the script names itself is then left alone."""
LOOK_S = 0.05
SLACK_S = 60.0
"""Beyond three times the reference's time, what the interrupted run may take for each attempt."""
END_WAIT_S = 60.0
LEAVE_WAIT_S = 10.0
LATEST = 0.95
"""No interruption is planned after this share of the steps: it would often come too late."""
FIRST_ROWS_S = 5.0
"""How long the first interruption waits for values to compare: the library writes about once a second."""


@record
class Rehearsal:
    """What was seen. `cut`: the reference was stopped before its end; `planned` are the steps at which to interrupt."""

    reference: AttemptTrail
    trails: tuple[AttemptTrail, ...]
    judgement: DrillJudgement
    cut: bool
    planned: tuple[int, ...]
    source: str


class Drill:
    """One rehearsal of one job, in the directory of runs `root`."""

    def __init__(
        self,
        spec: JobSpec,
        wanted: DrillRequest,
        *,
        root: str,
        environ: Mapping[str, str],
        argv: Sequence[str],
        tell: Callable[[str], None],
        interrupted: Callable[[], bool],
    ) -> None:
        """`tell` hears how it goes; `interrupted` is asked again and again whether to give up."""
        self._spec, self._wanted, self._root = _isolate(spec), wanted, root
        self._environ, self._argv, self._tell = {**environ, VARIABLE: "1"}, tuple(argv), tell
        self._interrupted = interrupted
        self._random = random.Random(wanted.seed)  # noqa: S311 - not for secrets
        self._live: str | None = None

    def run(self) -> Rehearsal:
        """Do it. Nothing of it runs any more when this returns or raises.

        Raises:
            HoldfastError: the job could not be started.
            KeyboardInterrupt: somebody does not want to wait for the end.
        """
        try:
            return self._run()
        finally:
            self._end()

    def _run(self) -> Rehearsal:
        self._tell("first without an interruption")
        reference, watch, cut = self._run_reference()
        source = "metrics" if watch.by_library else "heartbeats"
        if reference.end is AttemptEnd.FAILED:
            return Rehearsal(reference, (), judge_drill(reference, ()), cut, (), source)
        planned = self._plan(reference, watch)
        trails = self._run_interrupted(reference, watch, planned, cut=cut)
        judgement = judge_drill(reference, trails, source=source, stop=self._wanted.stop)
        return Rehearsal(reference, tuple(trails), judgement, cut, planned, source)

    # --------------------------------------------------------------------------------------------------- two runs

    def _run_reference(self) -> tuple[AttemptTrail, AttemptWatch, bool]:
        run_dir = self._start()
        wanted = self._wanted

        def decide(watch: AttemptWatch, running_s: float) -> RequestKind | None:
            reached = wanted.until is not None and watch.last is not None and watch.last >= wanted.until
            return RequestKind.STOP if reached or running_s > wanted.time_s else None

        trail, watch, asked = self._follow(run_dir, 1, decide)
        cut = asked is not None and trail.end is not AttemptEnd.FINISHED
        if cut:
            trail = replace(trail, end=AttemptEnd.FINISHED)
        far = format_count(trail.last, "step") if trail.last is not None else "no step was told"
        self._tell(
            f"without an interruption: {far} in {trail.seconds:.1f} s, {format_count(len(watch.saved), 'checkpoint')}"
            + (", then stopped" if cut else "")
        )
        self._live = None
        return trail, watch, cut

    def _run_interrupted(
        self, reference: AttemptTrail, watch: AttemptWatch, planned: tuple[int, ...], *, cut: bool
    ) -> list[AttemptTrail]:
        run_dir = self._start()
        trails: list[AttemptTrail] = []
        limit_s = 3 * reference.seconds + SLACK_S * (len(planned) + 1)
        began = clock.monotonic_s()
        gentle = self._random.randrange(len(planned)) if self._wanted.stop else -1
        for at, target in enumerate((*planned, None)):
            attempt = at + 1
            if at:
                made = restart_run(run_dir, environ=self._environ, by=BY, wait_s=END_WAIT_S, tell=lambda _: None)
                attempt = made.attempt
            request = RequestKind.STOP if at == gentle else RequestKind.STOP_NOW
            turn = _Interruption(
                reference, watch, target, request, cut=cut, limit_s=began + limit_s - clock.monotonic_s()
            )
            trail, _, asked = self._follow(run_dir, attempt, turn.decide)
            if turn.late:
                trail = replace(trail, end=AttemptEnd.CUT)
            elif turn.reached and trail.end in (AttemptEnd.STOPPED, AttemptEnd.KILLED):
                trail = replace(trail, end=AttemptEnd.FINISHED)
            trails.append(trail)
            self._tell(_describe(trail))
            if asked is None or trail.end not in (AttemptEnd.KILLED, AttemptEnd.STOPPED):
                break
        self._live = None
        return trails

    def _start(self) -> str:
        run_dir, _ = create.create_run(self._spec, self._root, argv=self._argv, cwd=os.getcwd(), environ=self._environ)
        self._live = run_dir
        launch.start_supervisor(run_dir, 1, environ=self._environ, reason="start")
        return run_dir

    # -------------------------------------------------------------------------------------------------- one attempt

    def _follow(
        self, run_dir: str, attempt: int, decide: Callable[[AttemptWatch, float], RequestKind | None]
    ) -> tuple[AttemptTrail, AttemptWatch, RequestKind | None]:
        """Watch an attempt to its end; `decide` is asked with the seconds since it runs, until it wants a stop."""
        watch = AttemptWatch(run_dir, attempt)
        asked: RequestKind | None = None
        started: float | None = None
        with ChangeWatch(wire.attempt_dir(run_dir, attempt)) as changes:
            while True:
                view = observe.observe_run(run_dir, attempt=attempt)
                watch.look(view)
                if view.over:
                    break
                if self._interrupted():
                    raise KeyboardInterrupt
                if view.vanished:
                    settle_run(view)
                now = clock.monotonic_s()
                if started is None and view.state is not None and isinstance(view.state.state, Running):
                    started = now
                if asked is None and started is not None:
                    asked = decide(watch, now - started)
                    if asked is not None:
                        ask_stop(view, asked, by=BY)
                watch_processes(changes, view)
                changes.wait(LOOK_S)
            _wait_for_supervisor(view, changes)
        _require_started(view)
        seconds = clock.monotonic_s() - (started or clock.monotonic_s())
        return watch.close(view, _judge_end(view, asked), seconds), watch, asked

    def _end(self) -> None:
        """End what still runs, by force."""
        run_dir, self._live = self._live, None
        if run_dir is None:
            return
        view = stop(run_dir, RequestKind.STOP_NOW, by=BY, wait_s=END_WAIT_S, tell=lambda _: None)
        with ChangeWatch(view.attempt_dir) as changes:
            _wait_for_supervisor(view, changes)
        if not view.over:
            raise StillAlive(f"{view.run_id} did not end: {view.note}", hint=f"look at {run_dir}")

    # ------------------------------------------------------------------------------------------------------ the plan

    def _plan(self, reference: AttemptTrail, watch: AttemptWatch) -> tuple[int, ...]:
        """Where to interrupt: one step at random in each of equal parts of what follows the first checkpoint."""
        if self._wanted.kills < 1:
            raise UsageError("--kills: at least one interruption makes a rehearsal", hint="say --kills 1")
        first, last = reference.first or 0, reference.last or 0
        saved = [step for _, step in watch.saved if step < first + LATEST * (last - first)]
        low, high = min(saved, default=first), first + LATEST * (last - first)
        part = max(high - low, 0.0) / self._wanted.kills
        return tuple(int(low + part * (at + self._random.random())) for at in range(self._wanted.kills))


class _Interruption:
    """When to interrupt one attempt: when by its pace it should be at a step; it says so only once a second."""

    def __init__(
        self,
        reference: AttemptTrail,
        watch: AttemptWatch,
        target: int | None,
        request: RequestKind,
        *,
        cut: bool,
        limit_s: float,
    ) -> None:
        self._reference, self._target, self._request, self._cut, self._limit_s = (
            reference,
            target,
            request,
            cut,
            limit_s,
        )
        self._pace = [(step, at) for at, step in watch.timeline]
        self._needs_rows = watch.by_library
        self._due_s: float | None = None
        self.reached = self.late = False

    def decide(self, watch: AttemptWatch, running_s: float) -> RequestKind | None:
        """Whether it is time, and what is wished."""
        if running_s > self._limit_s:
            self.late = True
            return RequestKind.STOP_NOW
        if self._target is None:
            end = self._reference.last
            self.reached = self._cut and end is not None and watch.last is not None and watch.last >= end
            return RequestKind.STOP if self.reached else None
        delay = self._delay(watch, running_s)
        if delay is None or delay > 0:
            return None
        now = clock.monotonic_s()
        self._due_s = self._due_s or now
        waits = self._needs_rows and watch.attempt == 1 and now - self._due_s < FIRST_ROWS_S
        return None if waits and not watch.has_rows() else self._request

    def _delay(self, watch: AttemptWatch, running_s: float) -> float | None:
        """Seconds until the interruption is due, 0 or less when it is; None while that is not known."""
        assert self._target is not None
        if not self._pace:
            # It never says where it is: its share of the time has to do.
            first, last = self._reference.first or 0, self._reference.last or 0
            share = (self._target - first) / (last - first) if last > first else 0.5
            return share * self._reference.seconds - running_s
        if watch.first is None or watch.began_s is None:
            return None
        elapsed_s = clock.monotonic_s() - watch.began_s
        (begin_s, begin), (last_s, last) = watch.beats[0], watch.beats[-1]
        if last >= self._target:
            return 0.0
        if last > begin:
            # Its own pace: that of the reference may have been another one, when the machine had more or less to do.
            return last_s + (self._target - last) * (last_s - begin_s) / (last - begin) - elapsed_s
        return max(self._time_of(self._target) - self._time_of(watch.first), 0.0) - elapsed_s

    def _time_of(self, step: int) -> float:
        """When the reference was at a step, in seconds since its first one."""
        at = bisect_left(self._pace, (step, 0.0))
        if at == 0:
            return self._pace[0][1]
        if at == len(self._pace):
            return self._pace[-1][1]
        (low, begin), (high, end) = self._pace[at - 1], self._pace[at]
        return begin + (end - begin) * (step - low) / max(high - low, 1)


def _isolate(spec: JobSpec) -> JobSpec:
    """The job without what reaches beyond it: nobody is told, no tracker online, no copy on mirror or storage."""
    tracker = TrackerMode.OFFLINE if spec.tracker is TrackerMode.ONLINE else spec.tracker
    kept = replace(spec.checkpoints, mirror=None)
    return replace(
        spec, notify=Notify(on=()), channels=Channels(), tracker=tracker, checkpoints=kept, results=Results()
    )


def _require_started(view: RunView) -> None:
    """Refuse to judge a job that was never started.

    Raises:
        PreflightFailed: a check said no, or no card was to be had; with the run's own exit code.
    """
    refusal = view.exit.get("refusal")
    if not isinstance(refusal, dict):
        return
    error = PreflightFailed(str(refusal.get("message") or view.note), hint=str(refusal.get("hint") or ""))
    error.exit_code = view.exit_code or error.exit_code
    raise error


def _wait_for_supervisor(view: RunView, changes: ChangeWatch) -> None:
    """Wait until the supervisor has left the run's directory too, so that it may be removed."""
    supervisor = view.state.supervisor if view.state is not None else None
    deadline = clock.monotonic_s() + LEAVE_WAIT_S
    while supervisor is not None and processes.is_alive(supervisor) and clock.monotonic_s() < deadline:
        changes.watch(supervisor)
        changes.wait(LOOK_S)


def _judge_end(view: RunView, asked: RequestKind | None) -> AttemptEnd:
    code = view.status.get("code")
    if (view.end is not None and view.end.outcome is Outcome.SUCCEEDED) or code == 0:
        return AttemptEnd.FINISHED
    if asked is None:
        return AttemptEnd.FAILED
    return AttemptEnd.STOPPED if asked is RequestKind.STOP else AttemptEnd.KILLED


def _describe(trail: AttemptTrail) -> str:
    words = {
        AttemptEnd.FINISHED: "done",
        AttemptEnd.KILLED: "killed",
        AttemptEnd.STOPPED: f"stopped by a TERM (exit code {trail.exit_code})",
        AttemptEnd.FAILED: f"failed with exit code {trail.exit_code}",
        AttemptEnd.CUT: "time was up",
    }
    begin = "?" if trail.first is None else trail.first
    end = "?" if trail.last is None else trail.last
    return f"attempt {trail.attempt}: from step {begin} to about {end}: {words[trail.end]}"
