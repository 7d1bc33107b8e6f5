"""A box in miniature that drives the lifecycle table: carries out actions, answers with events, kills supervisors.

What is left open by the table (does the check pass, does the job obey, does KILL take at once, when does the supervisor
die) is drawn by hypothesis. Fair: every refusal to make progress is drawn from a budget, so a table without dead ends
must end. The invariants that hold at each moment are asserted where they could be broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from holdfast.core.run.events import (
    Arm,
    Began,
    ChecksDone,
    Disarm,
    EmptyTree,
    JobExited,
    JobReported,
    JobStarted,
    JobVanished,
    LeaseBlocked,
    LeaseFailed,
    LeaseGranted,
    Moment,
    ResultsChecked,
    Resumed,
    RunPlan,
    SimpleAction,
    StartFailed,
    StopWanted,
    TimerFired,
    TreeEmptied,
    TreeStuck,
)
from holdfast.core.run.lifecycle import decide
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import BoxIdentity, JobProcess, ProcessId, WaitStatus
from holdfast.model.lease import BusyReason, LeasedDevice, Witness
from holdfast.model.record import replace
from holdfast.model.run import Created, Ended, Finalizing, Refusal, RunState, Starting, StopCause, StopRequest, Waiting

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

    from holdfast.core.run.events import Action, Event, Timer

KEEPER = ProcessId(100, 1000, "boot")
JOB = JobProcess(ProcessId(101, 1001, "boot"), 101, 101, 2)
DEVICE = LeasedDevice("GPU-1", 0, "H100")
BUSY = BusyReason("GPU-1", Witness.LOCK, "anna")
REFUSAL = Refusal("spawn", 71, "no such command")
STATUSES = (WaitStatus(0, None), WaitStatus(3, None), WaitStatus(None, 15))
NO_RUN = RunState("20261120-104501-digits-3fa2", 1, 0, BoxIdentity("box"), "2026-11-20T10:45:01.000Z", None, Created())


@dataclass
class World:
    """One run, its supervisor, its processes and its clock. `history` has every (event, now) for a replay."""

    data: DataObject
    plan: RunPlan
    mischief: int = 10
    run: RunState = NO_RUN
    epoch_s: float = 1_000_000.0
    queue: list[Event] = field(default_factory=list)
    timers: dict[Timer, float] = field(default_factory=dict)
    history: list[tuple[Event, Moment]] = field(default_factory=list)
    commits: int = 0
    job: str = "none"
    keeper: bool = False
    rest: bool = False
    status: WaitStatus | None = None
    told: bool = False
    leased: bool = False
    exit_written: bool = False
    left: bool = False

    def live(self) -> None:
        """From the first event until the supervisor leaves; fails when nothing can happen any more."""
        self.queue.append(Began())
        for _ in range(400):
            if self.left:
                return
            if self._misbehave():
                self._disturb()
            elif self.queue:
                self._dispatch(self.queue.pop(0))
            else:
                self._let_time_pass()
        raise AssertionError(f"no end after 400 steps; it stands at {self.run.state}")

    @property
    def occupied(self) -> bool:
        """Whether any process of the tree is there."""
        return self.job in ("held", "alive") or self.keeper or self.rest

    @property
    def resuming(self) -> bool:
        """Whether a new supervisor has still to look around: it stands in no line yet."""
        return any(isinstance(event, Resumed) for event in self.queue)

    def _misbehave(self) -> bool:
        # Seldom, so that the budget lasts into the late states.
        if self.mischief > 0 and self.data.draw(st.integers(0, 7)) == 7:
            self.mischief -= 1
            return True
        return False

    def _pick(self, *options: str) -> str:
        return self.data.draw(st.sampled_from(options))

    def _disturb(self) -> None:
        what = self._pick("die", "stop", "force", "deadline", "exit", "unblock", "clock")
        if what == "die":
            self._supervisor_dies()
        elif what in ("stop", "force"):
            self.queue.append(StopWanted(StopRequest(StopCause.OPERATOR, "anna", force=what == "force")))
        elif what == "deadline" and self.timers:
            self._fire(min(self.timers, key=lambda timer: self.timers[timer]))
        elif what == "exit" and self.job == "alive":
            self._job_ends()
        elif what == "unblock" and isinstance(self.run.state, Waiting) and not self.leased and not self.resuming:
            self._grant()
        elif what == "clock":
            self.epoch_s += self.data.draw(st.sampled_from((-5000.0, 0.5, 5000.0)))

    def _supervisor_dies(self) -> None:
        """Its memory is gone; its locks too, unless a keeper holds them; a job that waits for the word never starts."""
        self.queue.clear()
        self.timers.clear()
        if self.job == "held":
            self.job, self.keeper = "dead", False
        if not self.keeper and self.job != "alive":
            self.leased = self.leased and self.rest
        self.told = False
        alive = self.job == "alive"
        self.queue.append(Resumed(job_alive=alive, members_alive=self.occupied, status=self.status))

    def _dispatch(self, event: Event) -> None:
        now = Moment(f"t{self.epoch_s}", self.epoch_s)
        self.history.append((event, now))
        before = self.run
        self.run, actions = decide(before, event, now, self.plan)
        if self.run is not before:
            assert self.run.version == before.version + 1
            assert self.run.state != before.state
            self.commits += 1
        if isinstance(self.run.state, Ended):
            assert not self.occupied, "a run ended while something of it was there"
        for action in actions:
            if self._misbehave() and self._pick("die", "twice") == "die":
                self._supervisor_dies()
                return
            self._perform(action)
            if self._misbehave():
                self._perform(action)

    def _let_time_pass(self) -> None:
        if self.job == "alive" and (not self.timers or self.data.draw(st.booleans())):
            self._job_ends()
            return
        assert self.timers, f"dead end: no event, no timer, no job in {self.run.state}"
        timer = min(self.timers, key=lambda timer: self.timers[timer])
        self.epoch_s = max(self.epoch_s, self.timers[timer])
        self._fire(timer)

    def _fire(self, timer: Timer) -> None:
        del self.timers[timer]
        self.queue.append(TimerFired(timer, progressing=self._misbehave()))

    def _job_ends(self) -> None:
        self.job = "dead"
        if self._misbehave():
            self.keeper = False  # killed together with the job: nobody witnessed the end
            self.queue.append(JobVanished())
        else:
            self.status = self.data.draw(st.sampled_from(STATUSES))
            self.queue.append(JobExited(self.status))
        self.told = True
        self.rest = self._misbehave()
        self.keeper = self.keeper and self.rest
        if not self.rest and self._misbehave():
            self.queue.insert(0, TreeEmptied())

    def _perform(self, action: Action) -> None:
        if isinstance(action, Arm):
            assert action.delay_s >= 0
            self.timers[action.timer] = self.epoch_s + action.delay_s
        elif isinstance(action, Disarm):
            self.timers.pop(action.timer, None)
        elif isinstance(action, EmptyTree):
            self._empty()
        else:
            assert isinstance(action, SimpleAction)
            getattr(self, f"_{action.value}")()

    def _run_checks(self) -> None:
        level = Level.FAIL if self._misbehave() else Level.PASS
        self.queue.append(ChecksDone((Finding("disk.bytes", level, "/", "1 GB free"),)))

    def _take_lease(self) -> None:
        if self.leased:
            return
        if not self._misbehave():
            self._grant()
        elif self._pick("busy", "failed") == "busy":
            self.queue.append(LeaseBlocked((BUSY,), final=self.plan.wait_s <= 0))
        else:
            self.queue.append(LeaseFailed(REFUSAL))

    def _grant(self) -> None:
        self.leased = True
        self.queue.append(LeaseGranted((DEVICE,)))

    def _start_job(self) -> None:
        assert self.leased or not self.plan.wants_cards, "a job started without its cards"
        if self.job == "held":
            return
        assert not self.occupied, "a second tree"
        if self._misbehave():
            self.queue.append(StartFailed(REFUSAL))
            return
        self.job, self.keeper, self.status = "held", True, None
        self.queue.append(JobReported(KEEPER, JOB))

    def _let_go(self) -> None:
        assert isinstance(self.run.state, Starting)
        assert self.run.state.job == JOB, "the word to go was given before the ids were committed"
        if self.job != "held":
            return
        if self._misbehave():
            self.job, self.keeper = "dead", False
            self.queue.append(StartFailed(REFUSAL))
        else:
            self.job = "alive"
            self.queue.append(JobStarted("then"))

    def _watch_job(self) -> None:
        if self.job == "dead" and not self.told:
            self.queue.append(JobExited(self.status) if self.status else JobVanished())
            self.told = True

    def _term_tree(self) -> None:
        if self.job == "alive" and not self._misbehave():
            self._job_ends()
        if not self._misbehave():
            self.rest = False
        if self.job != "alive" and not self.rest:
            self.job, self.keeper = "dead", False
            self.queue.append(TreeEmptied())

    def _kill_tree(self) -> None:
        self._empty()

    def _empty(self) -> None:
        if self.occupied and self._misbehave():
            self.queue.append(TreeStuck(("python (pid 101) in nfs_wait",)))
            return
        if self.job == "alive":
            self._job_ends()
        if self.job == "held":
            self.job = "dead"
        self.keeper = self.rest = False
        self.queue.append(TreeEmptied())

    def _check_results(self) -> None:
        assert isinstance(self.run.state, Finalizing)
        assert self.run.state.emptied
        assert not self.occupied, "the results were judged while something could still write them"
        if self._misbehave():
            return  # a disk that hangs: the postflight timer must end it
        level = Level.FAIL if self._misbehave() else Level.PASS
        self.queue.append(ResultsChecked((Finding("artifacts", level, "result.json", "missing"),)))

    def _release_lease(self) -> None:
        assert not self.occupied, "cards were given back under a living process"
        self.leased = False

    def _write_exit(self) -> None:
        assert isinstance(self.run.state, Ended)
        self.exit_written = True

    def _leave(self) -> None:
        assert not self.leased
        assert self.exit_written
        self.left = True


def replay(history: list[tuple[Event, Moment]], plan: RunPlan) -> RunState:
    """The state after the same events at the same times."""
    run = replace(NO_RUN)
    for event, now in history:
        run, _ = decide(run, event, now, plan)
    return run
