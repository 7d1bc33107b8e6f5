"""Rehearsing a job: once without an interruption, once with KILLs at random moments, under the real supervisor.

Every attempt is started, watched, killed and started again in the way in which `run`, `stop --now` and `restart` do it,
in a directory of runs of its own, so that what is rehearsed is what happens. Whatever ends the rehearsal, the run that
it has started is ended too.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.drilling import End, Judgement, Trail, judge
from ..host import clock, processes
from ..model import wire
from ..model.errors import PreflightFailed, StillAlive, UsageError
from ..model.job import Notify, Tracker
from ..model.run import Outcome, Running, Wish
from . import acting, create, launch, observe
from .changes import Changes
from .drill_watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..model.job import JobSpec
    from .observe import RunView

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to rehearse. `kills` interruptions, one of them a TERM with `stop`; each run `time_s` or `until` a step."""

    kills: int = 3
    stop: bool = False
    seed: int = 0
    time_s: float = 300.0
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was seen. `cut`: the reference was stopped before its end; `planned` are the steps at which to interrupt."""

    reference: Trail
    trails: tuple[Trail, ...]
    judgement: Judgement
    cut: bool
    planned: tuple[int, ...]
    source: str


class Drill:
    """One rehearsal of one job, in the directory of runs `root`."""

    def __init__(
        self,
        spec: JobSpec,
        wanted: Wanted,
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
        if reference.end is End.FAILED:
            return Rehearsal(reference, (), judge(reference, ()), cut, (), source)
        planned = self._plan(reference, watch)
        trails = self._run_interrupted(reference, watch, planned, cut=cut)
        judgement = judge(reference, trails, source=source, stop=self._wanted.stop)
        return Rehearsal(reference, tuple(trails), judgement, cut, planned, source)

    # --------------------------------------------------------------------------------------------------- two runs

    def _run_reference(self) -> tuple[Trail, Watch, bool]:
        run_dir = self._start()
        wanted = self._wanted

        def decide(watch: Watch, running_s: float) -> Wish | None:
            reached = wanted.until is not None and watch.last is not None and watch.last >= wanted.until
            return Wish.STOP if reached or running_s > wanted.time_s else None

        trail, watch, asked = self._follow(run_dir, 1, decide)
        cut = asked is not None and trail.end is not End.FINISHED
        if cut:
            trail = replace(trail, end=End.FINISHED)
        far = f"{trail.last} steps" if trail.last is not None else "no step was told"
        self._tell(
            f"without an interruption: {far} in {trail.seconds:.1f} s, {len(watch.saved)} checkpoints"
            + (", then stopped" if cut else "")
        )
        self._live = None
        return trail, watch, cut

    def _run_interrupted(self, reference: Trail, watch: Watch, planned: tuple[int, ...], *, cut: bool) -> list[Trail]:
        run_dir = self._start()
        trails: list[Trail] = []
        limit_s = 3 * reference.seconds + SLACK_S * (len(planned) + 1)
        began = clock.monotonic_s()
        gentle = self._random.randrange(len(planned)) if self._wanted.stop else -1
        for at, target in enumerate((*planned, None)):
            attempt = at + 1
            if at:
                attempt = acting.restart(run_dir, environ=self._environ, by=BY, wait_s=END_WAIT_S, tell=lambda _: None)
            wish = Wish.STOP if at == gentle else Wish.STOP_NOW
            turn = _Turn(reference, watch, target, wish, cut=cut, limit_s=began + limit_s - clock.monotonic_s())
            trail, _, asked = self._follow(run_dir, attempt, turn.decide)
            if turn.late:
                trail = replace(trail, end=End.CUT)
            elif turn.reached and trail.end in (End.STOPPED, End.KILLED):
                trail = replace(trail, end=End.FINISHED)
            trails.append(trail)
            self._tell(_describe(trail))
            if asked is None or trail.end not in (End.KILLED, End.STOPPED):
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
        self, run_dir: str, attempt: int, decide: Callable[[Watch, float], Wish | None]
    ) -> tuple[Trail, Watch, Wish | None]:
        """Watch an attempt to its end; `decide` is asked with the seconds since it runs, until it wants a stop."""
        watch = Watch(run_dir, attempt)
        asked: Wish | None = None
        started: float | None = None
        with Changes(wire.attempt_dir(run_dir, attempt)) as changes:
            while True:
                view = observe.observe(run_dir, attempt=attempt)
                watch.look(view)
                if view.over:
                    break
                if self._interrupted():
                    raise KeyboardInterrupt
                if view.vanished:
                    acting.settle(view)
                now = clock.monotonic_s()
                if started is None and view.state is not None and isinstance(view.state.state, Running):
                    started = now
                if asked is None and started is not None:
                    asked = decide(watch, now - started)
                    if asked is not None:
                        acting.ask_stop(view, asked, by=BY)
                acting.watch_processes(changes, view)
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
        view = acting.stop(run_dir, Wish.STOP_NOW, by=BY, wait_s=END_WAIT_S, tell=lambda _: None)
        with Changes(view.attempt_dir) as changes:
            _wait_for_supervisor(view, changes)
        if not view.over:
            raise StillAlive(f"{view.run_id} did not end: {view.note}", hint=f"look at {run_dir}")

    # ------------------------------------------------------------------------------------------------------ the plan

    def _plan(self, reference: Trail, watch: Watch) -> tuple[int, ...]:
        """Where to interrupt: one step at random in each of equal parts of what follows the first checkpoint."""
        if self._wanted.kills < 1:
            raise UsageError("--kills: at least one interruption makes a rehearsal", hint="say --kills 1")
        first, last = reference.first or 0, reference.last or 0
        saved = [step for _, step in watch.saved if step < first + LATEST * (last - first)]
        low, high = min(saved, default=first), first + LATEST * (last - first)
        part = max(high - low, 0.0) / self._wanted.kills
        return tuple(int(low + part * (at + self._random.random())) for at in range(self._wanted.kills))


class _Turn:
    """When to interrupt one attempt: when by its pace it should be at a step; it says so only once a second."""

    def __init__(
        self, reference: Trail, watch: Watch, target: int | None, wish: Wish, *, cut: bool, limit_s: float
    ) -> None:
        self._reference, self._target, self._wish, self._cut, self._limit_s = reference, target, wish, cut, limit_s
        self._pace = [(step, at) for at, step in watch.timeline]
        self._needs_rows = watch.by_library
        self._due_s: float | None = None
        self.reached = self.late = False

    def decide(self, watch: Watch, running_s: float) -> Wish | None:
        """Whether it is time, and what is wished."""
        if running_s > self._limit_s:
            self.late = True
            return Wish.STOP_NOW
        if self._target is None:
            end = self._reference.last
            self.reached = self._cut and end is not None and watch.last is not None and watch.last >= end
            return Wish.STOP if self.reached else None
        delay = self._delay(watch, running_s)
        if delay is None or delay > 0:
            return None
        now = clock.monotonic_s()
        self._due_s = self._due_s or now
        waits = self._needs_rows and watch.attempt == 1 and now - self._due_s < FIRST_ROWS_S
        return None if waits and not watch.has_rows() else self._wish

    def _delay(self, watch: Watch, running_s: float) -> float | None:
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
    """The job without what reaches beyond it: nobody is told, no tracker online, no copy on the mirror."""
    tracker = Tracker.OFFLINE if spec.tracker is Tracker.ONLINE else spec.tracker
    return replace(spec, notify=Notify(on=()), tracker=tracker, checkpoints=replace(spec.checkpoints, mirror=None))


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


def _wait_for_supervisor(view: RunView, changes: Changes) -> None:
    """Wait until the supervisor has left the run's directory too, so that it may be removed."""
    supervisor = view.state.supervisor if view.state is not None else None
    deadline = clock.monotonic_s() + LEAVE_WAIT_S
    while supervisor is not None and processes.is_alive(supervisor) and clock.monotonic_s() < deadline:
        changes.watch(supervisor)
        changes.wait(LOOK_S)


def _judge_end(view: RunView, asked: Wish | None) -> End:
    code = view.status.get("code")
    if (view.end is not None and view.end.outcome is Outcome.SUCCEEDED) or code == 0:
        return End.FINISHED
    if asked is None:
        return End.FAILED
    return End.STOPPED if asked is Wish.STOP else End.KILLED


def _describe(trail: Trail) -> str:
    words = {
        End.FINISHED: "done",
        End.KILLED: "killed",
        End.STOPPED: f"stopped by a TERM (exit code {trail.exit_code})",
        End.FAILED: f"failed with exit code {trail.exit_code}",
        End.CUT: "time was up",
    }
    begin = "?" if trail.first is None else trail.first
    end = "?" if trail.last is None else trail.last
    return f"attempt {trail.attempt}: from step {begin} to about {end}: {words[trail.end]}"
