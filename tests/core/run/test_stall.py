"""The stall clocks: learned limits, phases, first times, gaps, and nothing about what is merely slow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from holdfast.core.run.progress import estimate_left, find_standstill
from holdfast.core.run.stall import (
    BUSY_FACTOR,
    CEILING_S,
    FACTOR,
    FLOOR_S,
    STARTUP_S,
    Recovered,
    StallClock,
    Stalled,
    StallRules,
    StallSample,
    StallWatch,
)

pytestmark = pytest.mark.pure


@dataclass
class Driver:
    """A job and its watcher on a clock turned by hand."""

    rules: StallRules = field(default_factory=StallRules)
    now_s: float = 1000.0
    step: int | None = None
    phase: str = "train"
    output: int = 0
    beats: bool = True
    busy: bool | None = None
    done: int | None = None
    found: list[Stalled | Recovered] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = StallWatch(self.rules)
        self.look()

    def look(self) -> list[Stalled | Recovered]:
        news = list(
            self.watch.look(
                StallSample(
                    self.now_s, self.step, self.phase, self.beats, output=self.output, busy=self.busy, done=self.done
                )
            )
        )
        self.found += news
        return news

    def wait(self, seconds: float) -> list[Stalled | Recovered]:
        """So much time in looks of the usual rhythm; what was said meanwhile."""
        news: list[Stalled | Recovered] = []
        while seconds > 0:
            self.now_s += min(self.rules.period_s, seconds)
            seconds -= self.rules.period_s
            news += self.look()
        return news

    def do_steps(self, count: int, interval_s: float) -> list[Stalled | Recovered]:
        news: list[Stalled | Recovered] = []
        for _ in range(count):
            news += self.wait(interval_s)
            self.step = (self.step or 0) + 1
            news += self.look()
        return news


@pytest.mark.requirement("MON-07")
def test_MON_07_the_limit_is_learned_from_the_longest_step() -> None:
    run = Driver()
    assert run.do_steps(8, 120.0) == []
    assert run.wait(FACTOR * 120 - 1) == []
    (stalled,) = run.wait(120)
    assert isinstance(stalled, Stalled)
    assert (stalled.clock, stalled.limit_s, stalled.phase, stalled.first) == (
        StallClock.NO_PROGRESS,
        600.0,
        "train",
        False,
    )
    assert run.wait(10_000) == [], "it is said once"


@pytest.mark.requirement("MON-07")
@pytest.mark.parametrize(("interval_s", "limit_s"), [(0.5, FLOOR_S), (4000.0, CEILING_S)])
def test_MON_07_the_limit_has_a_floor_and_a_ceiling(interval_s: float, limit_s: float) -> None:
    run = Driver()
    run.do_steps(8, interval_s)
    assert run.wait(limit_s - 1) == []
    assert len(run.wait(60)) == 1


@pytest.mark.requirement("MON-07")
def test_MON_07_the_first_steps_are_exempt() -> None:
    run = Driver()
    assert run.wait(STARTUP_S - 1001) == [], "data, compilation"
    assert run.do_steps(5, 1000) == [], "with the first one the counting begins: four intervals are seen"
    assert run.wait(STARTUP_S - 1) == []
    (stalled,) = run.wait(60)
    assert isinstance(stalled, Stalled)
    assert stalled.first


@pytest.mark.requirement("MON-07")
def test_MON_07_an_evaluation_has_its_own_budget() -> None:
    run = Driver()
    run.do_steps(10, 2)
    run.phase = "eval"
    assert run.wait(STARTUP_S - 60) == [], "the first evaluation may take long"
    run.phase = "train"
    assert run.do_steps(3, 2) == []
    run.phase = "eval"
    assert run.wait(CEILING_S - 60) == [], "and the next as long"
    run.phase = "train"
    assert run.do_steps(3, 2) == []
    assert len(run.wait(FLOOR_S + 60)) == 1, "a step's limit is still a step's"


@pytest.mark.requirement("MON-07")
def test_MON_07_a_phase_that_does_not_end_stalls_too() -> None:
    run = Driver()
    run.do_steps(10, 2)
    for _ in range(3):
        run.phase = "save"
        run.wait(30)
        run.phase = "train"
        run.do_steps(3, 2)
    run.phase = "save"
    (stalled,) = run.wait(FLOOR_S + 60)
    assert isinstance(stalled, Stalled)
    assert (stalled.phase, stalled.first) == ("save", False)


def test_a_step_that_a_save_interrupts_teaches_nothing() -> None:
    run = Driver(StallRules(floor_s=1.0, period_s=1.0))
    run.do_steps(8, 2)
    run.wait(9)
    run.phase = "save"
    run.wait(1)
    run.phase = "train"
    run.look()
    limit_s, first = run.watch.limit(StallSample(run.now_s, run.step, "train", beats=True))
    assert not first
    assert limit_s is not None
    assert limit_s <= 15.1, "5 times a step of 2 s, seen a second late at most; not 5 times 9 s"


@pytest.mark.requirement("MON-07")
def test_MON_07_it_is_armed_again_by_progress_and_learns_from_it() -> None:
    run = Driver()
    run.do_steps(8, 100)
    assert len(run.wait(700)) == 1
    (recovered,) = run.do_steps(1, 0)
    assert isinstance(recovered, Recovered)
    assert recovered.waited_s == pytest.approx(700, abs=60)
    assert run.wait(2000) == [], "a step of 700 s was none that hung"
    assert len(run.wait(2000)) == 1, "and the next stall is told"


@pytest.mark.requirement("MON-07")
@pytest.mark.parametrize("gap_s", [3600.0, 1e6, -3600.0])
def test_MON_07_a_gap_in_the_watching_is_no_stall(gap_s: float) -> None:
    run = Driver()
    run.do_steps(8, 1)
    run.now_s += gap_s
    assert run.look() == []
    assert run.wait(FLOOR_S - 100) == []


@pytest.mark.requirement("MON-07")
def test_MON_07_a_busy_card_doubles_the_limit_and_is_said() -> None:
    run = Driver()
    run.do_steps(8, 100)
    run.busy = True
    assert run.wait(BUSY_FACTOR * FACTOR * 100 - 1) == []
    (stalled,) = run.wait(60)
    assert isinstance(stalled, Stalled)
    assert stalled.busy


def test_a_stated_limit_holds_for_steps_and_never_shortens_another_phase() -> None:
    run = Driver(StallRules(no_progress_s=60.0, period_s=5.0))
    run.do_steps(4, 20)
    assert run.wait(59) == []
    assert len(run.wait(10)) == 1
    run.do_steps(1, 0)
    for _ in range(2):
        run.phase = "eval"
        assert [item for item in run.wait(300) if isinstance(item, Stalled)] == []
        run.phase = "train"
        run.do_steps(2, 20)


@pytest.mark.requirement("MON-07")
def test_MON_07_a_stated_limit_holds_when_all_steps_came_between_two_looks() -> None:
    run = Driver(StallRules(no_progress_s=20.0, period_s=4.0))
    run.wait(4)
    run.step = run.done = 1
    assert run.wait(20) == []
    (stalled,) = run.wait(8)
    assert isinstance(stalled, Stalled)
    assert (stalled.limit_s, stalled.first) == (20.0, False)


@pytest.mark.requirement("MON-07")
def test_MON_07_a_stated_limit_does_not_hold_for_the_first_step_after_a_resume() -> None:
    run = Driver(StallRules(no_progress_s=20.0, period_s=4.0), step=40, done=0)
    assert run.wait(1000) == []
    run.step, run.done = 41, 1
    assert len(run.wait(28)) == 1


@pytest.mark.requirement("MON-07")
def test_MON_07_many_steps_between_two_looks_are_as_many_for_the_learned_limit() -> None:
    run = Driver()
    run.wait(3600)
    run.step = run.done = 40
    assert run.wait(FLOOR_S) == []
    (stalled,) = run.wait(60)
    assert isinstance(stalled, Stalled)
    assert (stalled.limit_s, stalled.first) == (FLOOR_S, False), "the hour before the first step is no step's"


@pytest.mark.requirement("MON-07")
@pytest.mark.parametrize(("steps", "limit_s"), [(5, STARTUP_S), (6, FLOOR_S), (20, FLOOR_S)])
@pytest.mark.parametrize("before", ["", "setup"])
def test_MON_07_steps_that_were_done_before_the_first_look_that_sees_them_count(
    before: str, steps: int, limit_s: float
) -> None:
    run = Driver(phase=before)
    run.wait(30)
    run.phase, run.step, run.done = "train", steps, steps
    assert run.wait(limit_s) == []
    (stalled,) = run.wait(60)
    assert isinstance(stalled, Stalled)
    assert (stalled.limit_s, stalled.phase) == (limit_s, "train")


@pytest.mark.requirement("MON-07")
def test_MON_07_the_wait_for_the_first_step_of_a_resumed_job_is_no_interval() -> None:
    run = Driver(phase="")
    run.phase, run.step, run.done = "train", 4000, 0
    assert run.wait(3600) == [], "the heartbeat tells the step that it goes on from"
    run.step, run.done = 4020, 20
    assert run.wait(FLOOR_S) == []
    (stalled,) = run.wait(60)
    assert isinstance(stalled, Stalled)
    assert (stalled.limit_s, stalled.first) == (FLOOR_S, False), "not five times the hour before its first step"


def test_a_clock_that_is_off_never_runs_out() -> None:
    run = Driver(StallRules(no_progress_s=0.0))
    run.do_steps(8, 1)
    assert run.wait(1e6) == []


def test_a_job_that_tells_no_steps_is_not_judged_unless_a_limit_was_stated() -> None:
    assert Driver(beats=False).wait(1e6) == []
    stated = Driver(StallRules(no_progress_s=60.0, startup_s=600.0), beats=False)
    assert stated.wait(590) == []
    assert len(stated.wait(60)) == 1


def test_files_without_a_rhythm_promise_nothing_and_with_one_they_do() -> None:
    run = Driver(beats=False)
    assert run.do_steps(3, 600) == []
    assert run.wait(1e6) == []
    run.do_steps(6, 600)
    assert [type(item) for item in run.wait(1e6)] == [Stalled]


@pytest.mark.requirement("MON-07")
def test_silence_is_told_where_steps_cannot_be_seen_and_steps_speak_for_a_silent_job() -> None:
    rules = StallRules(no_progress_s=0.0, no_output_s=300.0)
    silent = Driver(rules, beats=False)
    silent.wait(200)
    silent.output += 1
    assert silent.wait(290) == []
    (stalled,) = silent.wait(60)
    assert isinstance(stalled, Stalled)
    assert stalled.clock is StallClock.NO_OUTPUT
    silent.output += 1
    assert [type(item) for item in silent.look()] == [Recovered]
    assert Driver(rules).do_steps(100, 60) == [], "buffered output of a job that moves"


def test_what_an_earlier_watcher_saw_counts() -> None:
    run = Driver(step=50)
    run.watch.recall("train", [100.0] * 6)
    assert run.wait(490) == []
    assert len(run.wait(60)) == 1


@pytest.mark.requirement("MON-07")
def test_MON_07_no_false_alarm_over_a_thousand_healthy_samples() -> None:
    """Trainings of every pace with jitter, evaluations, saves, slow starts, rests of the watcher: 0 alarms."""
    chance = random.Random(7)
    samples = 0
    while samples < 1000:
        pace_s = 10 ** chance.uniform(-1, 2.3)
        run = Driver()
        run.wait(chance.uniform(0, 5000))
        eval_s = chance.uniform(1, 1200)
        for _ in range(12):
            for _ in range(chance.randrange(1, 12)):
                run.do_steps(1, pace_s * chance.lognormvariate(0, 0.4))
                samples += 1
            if chance.random() < 0.2:
                run.now_s += chance.uniform(0, 1e5)
            run.phase = chance.choice(("eval", "save"))
            run.wait(eval_s * chance.uniform(0.7, 1.3))
            run.phase = "train"
        assert run.found == []


BEAT = {"step": 40, "planned_steps": 100, "steps_per_s": 0.1, "phase": "train", "time": 1000.0}


def late(age_s: float, *, stated_s: float | None = None, has_cards: bool = False, **beat: object) -> bool:
    found = find_standstill({**BEAT, **beat}, 1000.0 + age_s, stated_s=stated_s, startup_s=None, has_cards=has_cards)
    return found is not None


def test_a_standstill_is_seen_in_the_heartbeat_by_its_own_pace() -> None:
    assert (late(FLOOR_S), late(FLOOR_S + 1)) == (False, True)
    assert (late(FLOOR_S + 1, has_cards=True), late(BUSY_FACTOR * FLOOR_S + 1, has_cards=True)) == (False, True)
    assert not late(4 * 600.0, steps_per_s=1 / 600), "a step of ten minutes"
    assert (late(STARTUP_S, steps_per_s=None), late(STARTUP_S + 1, steps_per_s=None)) == (False, True)
    assert (late(STARTUP_S, phase="eval"), late(STARTUP_S + 1, phase="eval")) == (False, True)


def test_a_standstill_is_one_by_the_limit_that_was_stated() -> None:
    assert (late(20.0, stated_s=20.0), late(21.0, stated_s=20.0)) == (False, True)
    assert not late(21.0, stated_s=20.0, steps_per_s=None), "the first step"
    assert late(21.0, stated_s=20.0, steps_per_s=None, start_step=39)
    assert not late(1e6, stated_s=0.0)
    assert not any(late(1e6, time=told) for told in (float("-inf"), float("nan"), -1.0, None))
    assert find_standstill({"loss": 1.0, "time": 0.0}, 1e6, stated_s=1.0, startup_s=None, has_cards=False) is None


def test_no_time_left_is_told_where_no_step_came_for_ten_steps_and_a_minute() -> None:
    assert estimate_left(BEAT, 1000.0) == 600.0
    assert (estimate_left(BEAT, 1100.0), estimate_left(BEAT, 1101.0)) == (600.0, None)
    quick = {**BEAT, "steps_per_s": 10.0}
    assert (estimate_left(quick, 1060.0), estimate_left(quick, 1061.0)) == (6.0, None)
    assert estimate_left({**quick, "phase": "eval"}, 1061.0) == 6.0, "an evaluation does no steps"
