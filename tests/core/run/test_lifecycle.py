"""The table is total, its end absorbs, every road leads there, and a supervisor may die anywhere on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.run.events import (
    EVENTS,
    Action,
    Arm,
    Began,
    ChecksDone,
    Disarm,
    EmptyTree,
    EndCopy,
    Event,
    JobExited,
    JobReported,
    JobStarted,
    JobVanished,
    LeaseBlocked,
    LeaseFailed,
    LeaseGranted,
    Moment,
    ResultsChecked,
    ResultsCopied,
    Resumed,
    RunPlan,
    SimpleAction,
    StartFailed,
    StopWanted,
    Timer,
    TimerFired,
    TreeEmptied,
    TreeStuck,
)
from holdfast.core.run.lifecycle import LEFTOVER_GRACE_S, PROGRESS_STEP_S, STUCK_RETRY_S, TABLE, decide
from holdfast.core.run.outcome import COPY_FINDING
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import WaitStatus
from holdfast.model.record import replace
from holdfast.model.run import (
    STATES,
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
    StopRecord,
    StopRequest,
    StopRung,
    Waiting,
)
from tests.budget import examples
from tests.core.world import BUSY, DEVICE, JOB, KEEPER, NO_RUN, REFUSAL, World, replay
from tests.strategies import values_of

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject

pytestmark = pytest.mark.pure

T0 = 1_000_000.0
NOW = Moment("later", T0 + 10)
PLAN = RunPlan(wants_cards=True, wait_s=60, run_s=100, total_s=1000, max_hold_s=500, created_epoch_s=T0)
BARE = RunPlan()
OK, BAD = WaitStatus(0, None), WaitStatus(None, 9)
STOP = StopRequest(StopCause.OPERATOR, "anna")
FORCE = StopRequest(StopCause.OPERATOR, "bert", force=True)
WARNED = StopRequest(StopCause.PREEMPTION, "SIGUSR1 to the supervisor", warned=True)

STARTING = Starting("s", (DEVICE,), began=T0)
REPORTED = Starting("s", (DEVICE,), KEEPER, JOB, began=T0)
RUNNING = Running("r", (DEVICE,), KEEPER, JOB, began=T0 + 2, held_from=T0)
STOPPING = Stopping("r", (DEVICE,), KEEPER, JOB, STOP, StopRung.TERM, began=T0)
KILLING = replace(STOPPING, rung=StopRung.KILL)
FINALIZING = Finalizing("f", (DEVICE,), KEEPER, JOB, "r", OK)
EMPTIED = replace(FINALIZING, emptied=True)
ENDED = Ended("e", Outcome.SUCCEEDED, 0, "exit code 0")
EXAMPLES: tuple[State, ...] = (
    *(Created(), Preflight("p"), Waiting("w"), STARTING, REPORTED, RUNNING, STOPPING, KILLING),
    *(FINALIZING, EMPTIED, ENDED, replace(EMPTIED, copying="c", devices=())),
)

EDGES: dict[type, set[type]] = {
    Created: {Created, Preflight, Finalizing},
    Preflight: {Preflight, Waiting, Starting, Finalizing},
    Waiting: {Waiting, Preflight, Starting, Finalizing},
    Starting: {Starting, Preflight, Running, Stopping, Finalizing},
    Running: {Running, Stopping, Finalizing},
    Stopping: {Stopping, Finalizing},
    Finalizing: {Finalizing, Ended},
    Ended: {Ended},
}


def step(state: State, event: Event, *, plan: RunPlan = PLAN, now: Moment = NOW) -> tuple[State, tuple[Action, ...]]:
    run, actions = decide(replace(NO_RUN, state=state, version=5), event, now, plan)
    assert run.version == (5 if run.state == state else 6)
    return run.state, actions


def resumed(
    *, job: bool = False, members: bool = False, status: WaitStatus | None = None, boot: bool = False
) -> Resumed:
    return Resumed(job_alive=job, members_alive=members, status=status, rebooted=boot)


def assert_stale(state: State, event: Event, *, plan: RunPlan = PLAN) -> None:
    run = replace(NO_RUN, state=state)
    after, actions = decide(run, event, NOW, plan)
    assert after is run
    assert actions == ()


def draw_run(data: DataObject) -> RunState:
    return replace(NO_RUN, state=data.draw(values_of(data.draw(st.sampled_from(STATES)))), version=5)


class TestTable:
    def test_the_table_is_total(self) -> None:
        assert TABLE.keys() == {(state, event) for state in STATES for event in EVENTS}

    def test_the_lists_are_the_unions(self) -> None:
        assert set(get_args(State)) == set(STATES)
        assert set(get_args(Event)) == set(EVENTS)
        assert set(get_args(Action)) == {SimpleAction, EmptyTree, EndCopy, Arm, Disarm}

    @pytest.mark.slow
    @given(st.data())
    @settings(max_examples=examples(300))
    def test_every_event_in_every_state_has_an_answer(self, data: DataObject) -> None:
        run = draw_run(data)
        event = data.draw(values_of(data.draw(st.sampled_from(EVENTS))))
        after, actions = decide(run, event, NOW, data.draw(values_of(RunPlan)))
        assert type(after.state) in EDGES[type(run.state)]
        assert all(isinstance(action, (SimpleAction, EmptyTree, EndCopy, Arm, Disarm)) for action in actions)
        if after.state == run.state:
            assert after is run
        else:
            assert after == replace(run, state=after.state, version=6, updated_at=NOW.utc)

    @pytest.mark.slow
    @given(st.data())
    def test_the_end_absorbs_everything(self, data: DataObject) -> None:
        run = replace(NO_RUN, state=data.draw(values_of(Ended)))
        event = data.draw(values_of(data.draw(st.sampled_from(EVENTS))))
        after, actions = decide(run, event, NOW, PLAN)
        assert after is run
        assert actions == (
            (SimpleAction.RELEASE_LEASE, SimpleAction.WRITE_EXIT, SimpleAction.LEAVE)
            if isinstance(event, Resumed)
            else ()
        )

    @given(st.data())
    def test_only_a_tree_proven_empty_lets_a_run_end(self, data: DataObject) -> None:
        run = draw_run(data)
        event = data.draw(values_of(data.draw(st.sampled_from(EVENTS))))
        after, _ = decide(run, event, NOW, PLAN)
        if isinstance(after.state, Ended) and not isinstance(run.state, Ended):
            assert isinstance(run.state, Finalizing)
            assert run.state.emptied

    @given(st.data())
    def test_a_stop_asked_for_twice_is_asked_for_once(self, data: DataObject) -> None:
        event = data.draw(values_of(StopWanted))
        once, _ = decide(draw_run(data), event, NOW, PLAN)
        twice, _ = decide(once, event, NOW, PLAN)
        assert twice is once

    def test_a_forced_stop_that_is_a_warning_too_changes_nothing_the_second_time(self) -> None:
        warned = StopRequest(StopCause.OPERATOR, "", warned=True)
        event = StopWanted(replace(warned, force=True))
        run = replace(NO_RUN, state=replace(STOPPING, request=warned))
        once, _ = decide(run, event, NOW, PLAN)
        assert isinstance(once.state, Stopping)
        assert once.state.rung is StopRung.KILL
        assert decide(once, event, NOW, PLAN)[0] is once


class TestWholeLives:
    @pytest.mark.requirement("PROC-14", "PROC-15")
    @given(st.data(), st.booleans(), st.sampled_from([0.0, 60.0]), st.sampled_from([None, 100.0]))
    @settings(max_examples=examples(400))
    def test_every_life_ends_clean_wherever_the_supervisor_dies(
        self, data: DataObject, cards: bool, wait_s: float, run_s: float | None
    ) -> None:
        plan = replace(PLAN, wants_cards=cards, wait_s=wait_s, run_s=run_s, total_s=run_s, max_hold_s=run_s)
        world = World(data, plan)
        world.live()
        assert isinstance(world.run.state, Ended)
        assert (world.leased, world.exit_written, world.occupied) == (False, True, False)
        assert world.run.version == world.commits
        assert replay(world.history, plan) == world.run
        self.check_verdict(world)

    def check_verdict(self, world: World) -> None:
        ended = world.run.state
        assert isinstance(ended, Ended)
        assert (ended.outcome is Outcome.SUCCEEDED) == (ended.exit_code == 0)
        if ended.outcome is Outcome.SUCCEEDED:
            assert ended.status is not None
            assert (ended.status.code, ended.request, ended.refusal) == (0, None, None)

    def test_an_undisturbed_life(self) -> None:
        facts: list[Event] = [
            Began(),
            ChecksDone(()),
            LeaseGranted((DEVICE,)),
            JobReported(KEEPER, JOB),
            JobStarted("a little earlier"),
            JobExited(OK),
            TreeEmptied(),
            ResultsChecked(()),
        ]
        run, seen = NO_RUN, [Created]
        for event in facts:
            run, _ = decide(run, event, NOW, PLAN)
            seen.append(type(run.state))  # type: ignore[arg-type]
        names = [state.__name__ for state in seen]
        assert names == [
            *("Created", "Preflight", "Waiting", "Starting", "Starting", "Running", "Finalizing", "Finalizing", "Ended")
        ]
        assert run.version == 8
        assert run.state == Ended("later", Outcome.SUCCEEDED, 0, "exit code 0", OK, started_at="a little earlier")


class TestBeforeTheJob:
    def test_it_begins_with_checks_under_both_limits(self) -> None:
        state, actions = step(Created(), Began())
        assert state == Preflight("later")
        assert actions == (Arm(Timer.PREFLIGHT, 120.0), Arm(Timer.TOTAL, 990.0), SimpleAction.RUN_CHECKS)

    def test_without_a_total_limit_none_is_armed(self) -> None:
        assert step(Created(), Began(), plan=BARE)[1] == (Arm(Timer.PREFLIGHT, 120.0), SimpleAction.RUN_CHECKS)

    @pytest.mark.parametrize("state", [Created(), Preflight("p"), Waiting("w", (BUSY,)), STARTING])
    def test_what_was_not_started_begins_again(self, state: State) -> None:
        after, actions = step(state, resumed())
        assert after == Preflight("later")
        assert actions[-1] is SimpleAction.RUN_CHECKS

    @pytest.mark.parametrize("state", [Created(), Preflight("p"), Waiting("w"), STARTING])
    def test_it_does_not_begin_again_after_a_reboot(self, state: State) -> None:
        after, _ = step(state, resumed(boot=True))
        assert isinstance(after, Finalizing)
        assert (after.status, after.refusal, after.request) == (None, None, None)

    @pytest.mark.requirement("PRE-01")
    def test_a_failed_check_refuses_with_all_that_failed(self) -> None:
        bad = [Finding(f"disk.{name}", Level.FAIL, "/", f"{name} short", "free some") for name in ("bytes", "inodes")]
        state, actions = step(Preflight("p"), ChecksDone((bad[0], Finding("x", Level.UNKNOWN, "y", "z"), bad[1])))
        assert isinstance(state, Finalizing)
        words = "disk.bytes: /: bytes short; disk.inodes: /: inodes short"
        assert state.refusal == Refusal("preflight", 78, words, "free some", findings=tuple(bad))
        assert SimpleAction.START_JOB not in actions

    def test_unknown_and_warnings_do_not_refuse(self) -> None:
        findings = tuple(Finding("x", level, "y", "z") for level in (Level.UNKNOWN, Level.WARN, Level.PASS))
        state, actions = step(Preflight("p"), ChecksDone(findings))
        assert state == Waiting("later")
        assert actions == (Disarm(Timer.PREFLIGHT), Arm(Timer.WAIT, 60), SimpleAction.TAKE_LEASE)

    def test_without_cards_nothing_is_leased(self) -> None:
        state, actions = step(Preflight("p"), ChecksDone(()), plan=BARE)
        assert state == Starting("later", began=NOW.epoch_s)
        assert actions == (Disarm(Timer.PREFLIGHT), SimpleAction.START_JOB)

    @pytest.mark.parametrize(("final", "wait_s"), [(True, 60), (False, 0), (True, 0)])
    def test_who_does_not_wait_is_told_who_holds_the_card(self, final: bool, wait_s: float) -> None:
        busy = replace(BUSY, since="10:45")
        state, _ = step(Waiting("w"), LeaseBlocked((busy,), final), plan=replace(PLAN, wait_s=wait_s))
        assert isinstance(state, Finalizing)
        assert state.refusal is not None
        assert (state.refusal.exit_code, state.refusal.message) == (75, "GPU-1: anna since 10:45")
        assert state.refusal.busy == (busy,)
        short = "2 cards are asked for, 1 of 4 is free"
        counted, _ = step(Waiting("w"), LeaseBlocked((busy,), final, short), plan=replace(PLAN, wait_s=wait_s))
        assert isinstance(counted, Finalizing)
        assert counted.refusal is not None
        assert counted.refusal.message == f"{short}: GPU-1: anna since 10:45"
        apart = LeaseBlocked((busy,), final, sharing="both need --share")
        told, _ = step(Waiting("w"), apart, plan=replace(PLAN, wait_s=wait_s))
        assert isinstance(told, Finalizing)
        assert told.refusal is not None
        assert told.refusal.hint == f"{state.refusal.hint}; both need --share"

    def test_who_waits_sees_who_is_in_the_way(self) -> None:
        assert step(Waiting("w"), LeaseBlocked((BUSY,), final=False)) == (Waiting("w", (BUSY,)), ())
        assert_stale(Waiting("w", (BUSY,)), LeaseBlocked((BUSY,), final=False))

    @pytest.mark.parametrize(
        ("busy", "words"),
        [
            ((BUSY,), "GPU-1: anna"),
            ((), "the cards were still being watched for idleness (gpu.idle_window); wait longer than that"),
        ],
    )
    def test_waiting_ends_with_the_holder_named(self, busy: tuple[object, ...], words: str) -> None:
        state, _ = step(Waiting("w", busy), TimerFired(Timer.WAIT))  # type: ignore[arg-type]
        assert isinstance(state, Finalizing)
        assert state.refusal is not None
        assert state.refusal.message == f"gave up after waiting 60 s: {words}"

    def test_granted_cards_start_the_job_and_the_holding_limit(self) -> None:
        state, actions = step(Waiting("w"), LeaseGranted((DEVICE,)))
        assert state == Starting("later", (DEVICE,), began=NOW.epoch_s)
        assert actions == (Disarm(Timer.WAIT), SimpleAction.START_JOB, Arm(Timer.MAX_HOLD, 500))
        assert step(Waiting("w"), LeaseGranted((DEVICE,)), plan=BARE)[1] == (Disarm(Timer.WAIT), SimpleAction.START_JOB)

    @pytest.mark.parametrize(
        ("state", "event"),
        [(Waiting("w"), LeaseFailed(REFUSAL)), (STARTING, StartFailed(REFUSAL)), (RUNNING, StartFailed(REFUSAL))],
    )
    def test_a_refusal_is_kept(self, state: State, event: Event) -> None:
        after, _ = step(state, event)
        assert isinstance(after, Finalizing)
        assert after.refusal == REFUSAL

    def test_the_ids_are_committed_before_the_word_to_go(self) -> None:
        assert step(STARTING, JobReported(KEEPER, JOB)) == (REPORTED, (SimpleAction.LET_GO,))

    def test_a_start_without_ids_is_not_believed(self) -> None:
        assert_stale(STARTING, JobStarted("a little earlier"))

    @pytest.mark.parametrize("state", [Created(), Preflight("p"), Waiting("w"), STARTING])
    @pytest.mark.parametrize("request_", [STOP, FORCE])
    def test_a_stop_before_there_is_a_job_goes_straight_to_the_end(self, state: State, request_: StopRequest) -> None:
        after, actions = step(state, StopWanted(request_))
        assert isinstance(after, Finalizing)
        assert (after.request, after.job) == (request_, None)
        assert actions[-1] == EmptyTree(LEFTOVER_GRACE_S)

    @pytest.mark.parametrize(
        ("timer", "words"),
        [
            (Timer.PREFLIGHT, "preflight was not done within the preflight limit of 120.0 s"),
            (Timer.TOTAL, "preflight was not done within the total limit of 1000 s"),
        ],
    )
    def test_checks_that_take_too_long(self, timer: Timer, words: str) -> None:
        state, _ = step(Preflight("p"), TimerFired(timer))
        assert isinstance(state, Finalizing)
        assert state.refusal == Refusal("timed_out", 124, words)

    def test_a_run_whose_limit_passed_in_line_says_who_had_the_cards_and_how_to_leave_the_line_out(self) -> None:
        state, _ = step(Waiting("w", (BUSY,)), TimerFired(Timer.TOTAL))
        assert isinstance(state, Finalizing)
        assert state.refusal is not None
        said = state.refusal.message
        assert said.startswith("the total limit of 1000 s passed while waiting for cards: ")
        assert BUSY.holder in said
        assert "--timeout none --timeout-run 8h" in state.refusal.hint

    def test_the_whole_limit_holds_while_waiting(self) -> None:
        state, _ = step(Waiting("w"), TimerFired(Timer.TOTAL))
        assert isinstance(state, Finalizing)
        assert state.refusal is not None
        assert state.refusal.exit_code == 124


class TestTimers:
    @pytest.mark.parametrize(
        ("state", "timers"),
        [
            (Created(), {Timer.PREFLIGHT, Timer.TOTAL}),
            (Preflight("p"), {Timer.PREFLIGHT, Timer.TOTAL}),
            (Waiting("w"), {Timer.WAIT, Timer.TOTAL}),
            (STARTING, {Timer.RUN, Timer.TOTAL, Timer.MAX_HOLD}),
            (RUNNING, {Timer.RUN, Timer.TOTAL, Timer.MAX_HOLD}),
            (STOPPING, {Timer.GRACE}),
            (KILLING, set()),
            (FINALIZING, {Timer.STUCK}),
            (EMPTIED, {Timer.POSTFLIGHT}),
            (ENDED, set()),
        ],
    )
    def test_which_timers_matter_where(self, state: State, timers: set[Timer]) -> None:
        for timer in Timer:
            _, actions = decide(replace(NO_RUN, state=state), TimerFired(timer), NOW, PLAN)
            assert bool(actions) == (timer in timers), timer

    def test_a_wait_of_nothing_is_ended_by_the_lease_and_not_by_its_timer(self) -> None:
        assert_stale(Waiting("w"), TimerFired(Timer.WAIT), plan=replace(PLAN, wait_s=0))

    @pytest.mark.parametrize(
        ("timer", "cause", "detail"),
        [
            (Timer.RUN, StopCause.DEADLINE, "run limit of 100 s"),
            (Timer.TOTAL, StopCause.DEADLINE, "total limit of 1000 s"),
            (Timer.MAX_HOLD, StopCause.MAX_HOLD, "max_hold limit of 500 s"),
        ],
    )
    @pytest.mark.parametrize("state", [REPORTED, RUNNING])
    def test_a_deadline_stops_gently(self, state: State, timer: Timer, cause: StopCause, detail: str) -> None:
        after, actions = step(state, TimerFired(timer))
        assert isinstance(after, Stopping)
        assert after.request == StopRequest(cause, "holdfast", detail=detail)
        assert after.rung is StopRung.TERM
        assert actions[-2:] == (SimpleAction.TERM_TREE, Arm(Timer.GRACE, 30.0))

    def test_a_running_job_has_every_limit_from_its_own_beginning(self) -> None:
        state, actions = step(REPORTED, JobStarted("a little earlier"))
        assert state == Running("a little earlier", (DEVICE,), KEEPER, JOB, began=NOW.epoch_s, held_from=T0)
        assert actions == (SimpleAction.WATCH_JOB, Arm(Timer.RUN, 100), Arm(Timer.TOTAL, 990), Arm(Timer.MAX_HOLD, 490))

    def test_without_limits_nothing_is_armed(self) -> None:
        assert step(REPORTED, JobStarted("a little earlier"), plan=BARE)[1] == (SimpleAction.WATCH_JOB,)

    def test_who_holds_no_card_holds_none_too_long(self) -> None:
        state = replace(RUNNING, devices=())
        assert Timer.MAX_HOLD not in {a.timer for a in step(state, resumed(job=True))[1] if isinstance(a, Arm)}

    def test_a_new_supervisor_arms_what_is_left_of_every_limit(self) -> None:
        state, actions = step(RUNNING, resumed(job=True), now=Moment("later", T0 + 52))
        assert state == RUNNING
        assert actions == (SimpleAction.WATCH_JOB, Arm(Timer.RUN, 50), Arm(Timer.TOTAL, 948), Arm(Timer.MAX_HOLD, 448))

    @pytest.mark.parametrize(("epoch_s", "left"), [(T0 - 9999, (100, 1000, 500)), (T0 + 9999, (0, 0, 0))])
    def test_a_clock_that_jumped_gives_no_more_than_the_whole_limit(
        self, epoch_s: float, left: tuple[float, ...]
    ) -> None:
        _, actions = step(RUNNING, resumed(job=True), now=Moment("later", epoch_s))
        assert tuple(action.delay_s for action in actions if isinstance(action, Arm)) == left

    def test_a_record_that_does_not_say_when_counts_from_now(self) -> None:
        old = replace(RUNNING, began=None, held_from=None)
        _, actions = step(old, resumed(job=True))
        assert actions == (SimpleAction.WATCH_JOB, Arm(Timer.RUN, 100), Arm(Timer.TOTAL, 990), Arm(Timer.MAX_HOLD, 500))


class TestRunning:
    @pytest.mark.parametrize("state", [REPORTED, RUNNING])
    def test_its_own_end(self, state: Starting | Running) -> None:
        after, actions = step(state, JobExited(OK))
        assert isinstance(after, Finalizing)
        assert (after.status, after.devices, after.keeper, after.job) == (OK, (DEVICE,), KEEPER, JOB)
        assert after.started_at == state.since, "the results of what ran are looked at"
        assert actions[-1] == EmptyTree(LEFTOVER_GRACE_S)

    @pytest.mark.parametrize("state", [REPORTED, RUNNING, STOPPING])
    def test_a_vanished_job_has_no_status(self, state: Starting | Running | Stopping) -> None:
        after, _ = step(state, JobVanished())
        assert isinstance(after, Finalizing)
        assert after.status is None
        late, _ = step(after, JobExited(OK))
        assert isinstance(late, Finalizing)
        # Its results are looked at when its status comes late, too.
        assert (late.status, late.started_at) == (OK, state.since)

    def test_an_empty_tree_needs_no_emptying(self) -> None:
        after, actions = step(RUNNING, TreeEmptied())
        assert isinstance(after, Finalizing)
        assert after.emptied
        assert actions[-2:] == (Arm(Timer.POSTFLIGHT, 300.0), SimpleAction.CHECK_RESULTS)
        assert not any(isinstance(action, EmptyTree) for action in actions)

    @pytest.mark.parametrize("state", [RUNNING, STOPPING])
    def test_what_the_training_said_on_leaving_is_kept_whoever_saw_the_tree_empty(self, state: State) -> None:
        said = StopRecord(why="signal")
        after, _ = step(state, TreeEmptied(said))
        assert isinstance(after, Finalizing)
        assert after.stop == said

    def test_a_new_supervisor_finds_the_job_started(self) -> None:
        """The exec happened while nobody looked; its time counts from the last moment that is known."""
        after, actions = step(REPORTED, resumed(job=True, members=True))
        assert after == Running("s", (DEVICE,), KEEPER, JOB, began=T0, held_from=T0)
        assert actions == (SimpleAction.WATCH_JOB, Arm(Timer.RUN, 90), Arm(Timer.TOTAL, 990), Arm(Timer.MAX_HOLD, 490))
        old, _ = step(replace(REPORTED, began=None), resumed(job=True))
        assert isinstance(old, Running)
        assert (old.began, old.held_from) == (NOW.epoch_s, None)

    @pytest.mark.parametrize("state", [REPORTED, RUNNING])
    @pytest.mark.parametrize("status", [None, BAD])
    def test_a_new_supervisor_finds_the_job_gone(self, state: State, status: WaitStatus | None) -> None:
        after, actions = step(state, resumed(members=True, status=status))
        assert isinstance(after, Finalizing)
        assert after.status == status
        assert actions[-1] == EmptyTree(LEFTOVER_GRACE_S)


class TestStopping:
    @pytest.mark.parametrize("state", [REPORTED, RUNNING])
    def test_PROC_06_first_TERM_then_the_grace(self, state: Running | Starting) -> None:
        after, actions = step(state, StopWanted(STOP))
        assert after == Stopping(state.since, (DEVICE,), KEEPER, JOB, STOP, StopRung.TERM, NOW.epoch_s)
        quiet = (Disarm(Timer.RUN), Disarm(Timer.TOTAL))
        assert actions == (*quiet, SimpleAction.WATCH_JOB, SimpleAction.TERM_TREE, Arm(Timer.GRACE, 30.0))

    def test_PROC_17_force_skips_to_KILL(self) -> None:
        after, actions = step(RUNNING, StopWanted(FORCE))
        assert isinstance(after, Stopping)
        assert after.rung is StopRung.KILL
        assert actions[-1] is SimpleAction.KILL_TREE
        assert SimpleAction.TERM_TREE not in actions

    def test_PROC_17_force_on_the_way_skips_to_KILL_and_says_who(self) -> None:
        after, actions = step(STOPPING, StopWanted(FORCE))
        assert isinstance(after, Stopping)
        assert after.request == StopRequest(StopCause.OPERATOR, "anna", force=True, detail="forced by bert")
        assert (after.rung, actions) == (StopRung.KILL, (Disarm(Timer.GRACE), SimpleAction.KILL_TREE))

    @pytest.mark.requirement("PROC-18")
    @pytest.mark.parametrize("state", [STOPPING, KILLING, FINALIZING, EMPTIED, ENDED])
    def test_asking_twice_changes_nothing(self, state: State) -> None:
        assert_stale(state, StopWanted(STOP))

    @pytest.mark.parametrize("state", [KILLING, EMPTIED, ENDED])
    def test_forcing_twice_changes_nothing(self, state: State) -> None:
        assert_stale(state, StopWanted(FORCE))

    @pytest.mark.requirement("SLM-11")
    @pytest.mark.parametrize("state", [STOPPING, KILLING, FINALIZING, EMPTIED])
    def test_who_ends_it_after_a_warning_of_its_place_is_on_record(self, state: Stopping | Finalizing) -> None:
        warned = replace(state, request=WARNED)
        for then in (StopRequest(StopCause.SIGNAL, "SIGTERM to the supervisor"), STOP):
            assert step(warned, StopWanted(then)) == (replace(warned, request=then), ())
        for cause in (StopCause.PREEMPTION, StopCause.DEADLINE):
            assert_stale(warned, StopWanted(StopRequest(cause, "SIGTERM to the supervisor")))
        forced, _ = step(warned, StopWanted(FORCE))
        assert isinstance(forced, (Stopping, Finalizing))
        assert forced.request is not None
        assert (forced.request.cause, forced.request.by) == (StopCause.OPERATOR, "bert")

    def test_the_leader_obeys_and_the_rest_keeps_its_grace(self) -> None:
        assert step(STOPPING, JobExited(BAD)) == (replace(STOPPING, status=BAD), ())
        assert_stale(replace(STOPPING, status=BAD), JobExited(BAD))

    @pytest.mark.parametrize("event", [TreeEmptied(), JobVanished(), TreeStuck(("x",)), resumed()])
    def test_a_status_once_seen_is_kept(self, event: Event) -> None:
        after, _ = step(replace(STOPPING, status=BAD), event)
        assert isinstance(after, Finalizing)
        assert (after.status, after.request) == (BAD, STOP)

    def test_PROC_06_progress_extends_the_grace_up_to_the_ceiling(self) -> None:
        fired = TimerFired(Timer.GRACE, progressing=True)
        plan = replace(PLAN, grace_max_s=40)
        assert step(STOPPING, fired, plan=plan, now=Moment("x", T0 + 30)) == (
            STOPPING,
            (Arm(Timer.GRACE, PROGRESS_STEP_S),),
        )
        assert step(STOPPING, fired, plan=plan, now=Moment("x", T0 + 38)) == (STOPPING, (Arm(Timer.GRACE, 2.0),))
        assert step(STOPPING, fired, plan=plan, now=Moment("x", T0 + 40)) == (KILLING, (SimpleAction.KILL_TREE,))

    def test_PROC_06_without_progress_the_grace_ends_in_KILL(self) -> None:
        assert step(STOPPING, TimerFired(Timer.GRACE)) == (KILLING, (SimpleAction.KILL_TREE,))

    @pytest.mark.requirement("PROC-16", "B-41")
    def test_what_survives_KILL_is_named_and_looked_at_again(self) -> None:
        after, actions = step(KILLING, TreeStuck(("python (pid 7) in nfs_wait",)))
        assert isinstance(after, Finalizing)
        assert (after.stuck, after.emptied, after.request) == (("python (pid 7) in nfs_wait",), False, STOP)
        assert actions == (Arm(Timer.STUCK, STUCK_RETRY_S),)
        again, actions = step(after, TimerFired(Timer.STUCK))
        assert (again, actions) == (after, (EmptyTree(0.0),))

    def test_what_outlives_a_stopped_leader_gets_no_second_grace(self) -> None:
        assert step(STOPPING, JobVanished())[1][-1] == EmptyTree(0.0)

    @pytest.mark.parametrize(
        ("epoch_s", "left"),
        [(T0 + 10, 20.0), (T0 + 99, 0.0), (T0 - 999, 30.0)],
        ids=["early", "late", "clock set back"],
    )
    def test_a_new_supervisor_goes_on_with_the_same_grace(self, epoch_s: float, left: float) -> None:
        after, actions = step(STOPPING, resumed(job=True, members=True), now=Moment("x", epoch_s))
        assert (after, actions) == (STOPPING, (SimpleAction.WATCH_JOB, SimpleAction.TERM_TREE, Arm(Timer.GRACE, left)))

    def test_a_new_supervisor_learns_the_status_and_ends_the_rest(self) -> None:
        after, _ = step(STOPPING, resumed(members=True, status=BAD))
        assert after == replace(STOPPING, status=BAD)

    def test_a_new_supervisor_kills_on(self) -> None:
        assert step(KILLING, resumed(members=True)) == (KILLING, (SimpleAction.WATCH_JOB, SimpleAction.KILL_TREE))

    @pytest.mark.parametrize("event", [resumed(), resumed(job=True, members=True, boot=True)])
    def test_nothing_left_to_stop(self, event: Resumed) -> None:
        after, _ = step(STOPPING, event)
        assert isinstance(after, Finalizing)
        assert after.request == STOP


class TestFinalizing:
    def test_an_emptied_tree_has_its_results_checked_once(self) -> None:
        stuck = replace(FINALIZING, stuck=("x",))
        after, actions = step(stuck, TreeEmptied())
        assert after == EMPTIED
        assert actions[-2:] == (Arm(Timer.POSTFLIGHT, 300.0), SimpleAction.CHECK_RESULTS)
        assert_stale(EMPTIED, TreeEmptied())

    def test_results_of_a_tree_that_is_not_empty_do_not_count(self) -> None:
        assert_stale(FINALIZING, ResultsChecked(()))

    def test_an_empty_tree_is_not_stuck(self) -> None:
        assert_stale(EMPTIED, TreeStuck(("x",)))

    def test_the_end_releases_before_it_writes_and_leaves(self) -> None:
        after, actions = step(EMPTIED, ResultsChecked(()))
        assert isinstance(after, Ended)
        assert actions == (
            Disarm(Timer.POSTFLIGHT),
            SimpleAction.RELEASE_LEASE,
            SimpleAction.WRITE_EXIT,
            SimpleAction.LEAVE,
        )

    def test_checks_that_hang_do_not_hold_the_cards(self) -> None:
        after, actions = step(EMPTIED, TimerFired(Timer.POSTFLIGHT))
        assert isinstance(after, Ended)
        assert after.warnings == ("postflight: not done within 300.0 s",)
        assert SimpleAction.RELEASE_LEASE in actions

    def test_a_status_that_comes_late_still_counts(self) -> None:
        """A leader that hung in the kernel ends after KILL was reported stuck."""
        lost = replace(FINALIZING, status=None)
        assert step(lost, JobExited(BAD)) == (replace(lost, status=BAD), ())
        assert_stale(FINALIZING, JobExited(BAD))
        assert_stale(replace(lost, refusal=REFUSAL), JobExited(BAD))

    def test_force_hurries_what_is_left(self) -> None:
        assert step(FINALIZING, StopWanted(FORCE)) == (FINALIZING, (EmptyTree(0.0),))

    @pytest.mark.requirement("PROC-24")
    @pytest.mark.parametrize("state", [FINALIZING, EMPTIED])
    @pytest.mark.parametrize("status", [WaitStatus(None, 15), WaitStatus(None, 1), WaitStatus(143, None)], ids=str)
    def test_one_signal_to_all_is_a_stop_though_the_job_ended_first(
        self, state: Finalizing, status: WaitStatus
    ) -> None:
        ended = replace(state, status=status)
        logout = StopRequest(StopCause.SIGNAL, "SIGTERM to the supervisor")
        assert step(ended, StopWanted(logout)) == (replace(ended, request=logout), ())
        again = StopRequest(StopCause.SIGNAL, "SIGINT to the supervisor")
        assert_stale(replace(ended, request=logout), StopWanted(again))

    @pytest.mark.parametrize("status", [OK, BAD, WaitStatus(1, None), None])
    def test_a_signal_after_any_other_end_changes_nothing(self, status: WaitStatus | None) -> None:
        logout = StopRequest(StopCause.SIGNAL, "SIGTERM to the supervisor")
        assert_stale(replace(FINALIZING, status=status), StopWanted(logout))

    @pytest.mark.parametrize("cause", [StopCause.OPERATOR, StopCause.DEADLINE])
    def test_only_a_signal_is_taken_for_the_one_that_ended_the_job(self, cause: StopCause) -> None:
        assert_stale(replace(FINALIZING, status=WaitStatus(None, 15)), StopWanted(StopRequest(cause, "anna")))

    def test_a_new_supervisor_proves_it_empty_again(self) -> None:
        assert step(EMPTIED, resumed()) == (EMPTIED, (Arm(Timer.POSTFLIGHT, 300.0), SimpleAction.CHECK_RESULTS))
        assert step(EMPTIED, resumed(members=True)) == (FINALIZING, (EmptyTree(LEFTOVER_GRACE_S),))
        assert step(FINALIZING, resumed()) == (FINALIZING, (EmptyTree(LEFTOVER_GRACE_S),))

    def test_a_new_supervisor_adds_the_status_if_there_was_none(self) -> None:
        lost = replace(FINALIZING, status=None)
        assert step(lost, resumed(status=BAD))[0] == replace(lost, status=BAD)
        assert step(FINALIZING, resumed(status=BAD))[0] == FINALIZING
        refused = replace(lost, refusal=REFUSAL)
        assert step(refused, resumed(status=BAD))[0] == refused


COPYING_PLAN = RunPlan(copies=True, copy_s=50.0)
COPYING = replace(EMPTIED, copying="later", devices=())
NOT_COPIED = Finding(COPY_FINDING, Level.FAIL, "/lasting", "no space")


@pytest.mark.requirement("POST-07", "FAIL-10")
class TestCopying:
    def test_a_success_gives_its_cards_back_and_copies(self) -> None:
        after, actions = step(EMPTIED, ResultsChecked(()), plan=COPYING_PLAN)
        assert after == COPYING
        assert actions == (Arm(Timer.POSTFLIGHT, 50.0), SimpleAction.RELEASE_LEASE, SimpleAction.COPY_RESULTS)

    def test_nothing_else_copies(self) -> None:
        missing = Finding("artifact", Level.FAIL, "result.json", "is not there")
        for state, findings in ((EMPTIED, (missing,)), (replace(EMPTIED, status=BAD), ())):
            assert isinstance(step(state, ResultsChecked(findings), plan=COPYING_PLAN)[0], Ended)

    @pytest.mark.parametrize(("findings", "code"), [((), 0), ((NOT_COPIED,), 73)])
    def test_the_copy_decides_how_it_ended(self, findings: tuple[Finding, ...], code: int) -> None:
        after, actions = step(COPYING, ResultsCopied(findings), plan=COPYING_PLAN)
        assert isinstance(after, Ended)
        assert after.exit_code == code
        assert actions[-2:] == (SimpleAction.WRITE_EXIT, SimpleAction.LEAVE)
        assert_stale(EMPTIED, ResultsCopied(findings))

    def test_a_new_supervisor_checks_and_copies_again(self) -> None:
        checks = (Arm(Timer.POSTFLIGHT, 300.0), SimpleAction.CHECK_RESULTS)
        assert step(COPYING, resumed(), plan=COPYING_PLAN) == (COPYING, checks)
        after, actions = step(COPYING, ResultsChecked(()), plan=COPYING_PLAN)
        assert (after, actions[-1]) == (COPYING, SimpleAction.COPY_RESULTS)
        assert step(COPYING, resumed(members=True))[0] == replace(FINALIZING, devices=())

    def test_time_and_people_end_it(self) -> None:
        assert step(COPYING, TimerFired(Timer.POSTFLIGHT)) == (
            COPYING,
            (EndCopy("not done in the time that there was"),),
        )
        assert step(COPYING, StopWanted(STOP)) == (COPYING, (EndCopy("asked to stop by anna"),))

    def test_a_place_that_says_by_when_it_kills_lets_it_go_on_until_then(self) -> None:
        warned = StopRequest(StopCause.PREEMPTION, "Slurm")
        assert_stale(COPYING, StopWanted(warned))
        assert step(COPYING, StopWanted(replace(warned, force=True)))[1] == (EndCopy("preemption by Slurm"),)


@given(st.data())
def test_no_action_is_ordered_by_a_stale_event(data: DataObject) -> None:
    run = draw_run(data)
    event = data.draw(st.sampled_from([kind for kind in EVENTS if (type(run.state), kind) in TABLE]))
    if TABLE[type(run.state), event].__name__ == "_stale":
        assert_stale(run.state, data.draw(values_of(event)))
