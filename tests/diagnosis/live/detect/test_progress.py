"""Whether a run gets on, told from heartbeat, samples, artifacts and log."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.diagnosis.evidence import Reading
from holdfast.diagnosis.live.detect.progress import Pace, ProgressJudgement, judge_progress
from holdfast.diagnosis.live.gather.run_files import HealthSample, RunFacts
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("MON-07", "DIAG-03")]
NOW = 1_000_000.0


def facts(**values: object) -> RunFacts:
    return RunFacts(**{"now_s": NOW, **values})  # type: ignore[arg-type]  # the table's values


def beat(step: int | None, *, age_s: float = 1.0, **more: object) -> RunFacts:
    phase = more.pop("phase", "train")
    rate = more.pop("rate", None)
    heartbeat = {"step": step, "phase": phase, "steps_per_s": rate}
    return facts(heartbeat=heartbeat, heartbeat_at_s=NOW - age_s, **more)


def judge(before: RunFacts, after: RunFacts, job_age_s: float | None = 10_000.0) -> ProgressJudgement:
    return judge_progress(Reading(before), Reading(after), job_age_s=job_age_s)


def test_a_step_between_the_looks_is_progress() -> None:
    assert judge(beat(5), beat(6)).pace is Pace.MOVING


def test_a_checkpoint_between_the_looks_is_progress_though_the_step_stands() -> None:
    before, after = beat(5, age_s=900, artifacts_at_s=NOW - 900), beat(5, age_s=900, artifacts_at_s=NOW - 1)
    assert judge(before, after).pace is Pace.MOVING


@each(
    ("rate", "age_s", "pace"),
    [
        (10.0, 4, Pace.RECENT),
        (10.0, 6, Pace.LATE),
        (10.0, 29, Pace.LATE),
        (10.0, 31, Pace.OVERDUE),
        (0.1, 49, Pace.RECENT),
        (0.1, 51, Pace.OVERDUE),
        (0.01, 490, Pace.RECENT),
        (0.01, 510, Pace.OVERDUE),
    ],
)
def test_a_step_is_overdue_after_five_of_the_runs_own_intervals(rate: float | None, age_s: float, pace: Pace) -> None:
    look = beat(5, age_s=age_s, rate=rate)
    assert judge(look, look).pace is pace


@pytest.mark.parametrize(
    ("first_attempt", "job_age_s", "age_s", "pace"),
    [
        # 50 steps in 10 s: a step takes a fifth of a second.
        (True, 45, 35, Pace.OVERDUE),
        # 50 steps in 1000 s: 20 s each.
        (True, 1035, 35, Pace.RECENT),
        (True, 1045, 45, Pace.OVERDUE),
        # A later attempt may have made one step in its 20 s, and began at 49.
        (False, 55, 35, Pace.RECENT),
        (False, 65, 45, Pace.OVERDUE),
        # However long a step may take, ten minutes are enough to ask.
        (False, 10_000, 590, Pace.RECENT),
        (False, 10_000, 610, Pace.OVERDUE),
    ],
)
def test_without_a_rate_a_step_is_reckoned_from_what_was_done(
    first_attempt: bool, job_age_s: float, age_s: float, pace: Pace
) -> None:
    look = beat(50, age_s=age_s, first_attempt=first_attempt)
    assert judge(look, look, job_age_s).pace is pace


def test_samples_of_the_step_measure_it() -> None:
    samples = (HealthSample(NOW - 3400, 10), HealthSample(NOW - 400, 40))
    look = beat(40, age_s=400, samples=samples)
    assert judge(look, look).pace is Pace.RECENT


def test_a_pause_as_long_as_one_seen_before_is_not_overdue() -> None:
    samples = (HealthSample(NOW - 900, 1), HealthSample(NOW - 500, 2), HealthSample(NOW - 350, 3))
    look = beat(3, age_s=350, samples=samples)
    assert judge(look, look).pace is Pace.RECENT


def test_a_heartbeat_that_repeats_its_step_is_no_progress() -> None:
    samples = tuple(HealthSample(NOW - age, 5) for age in (300, 200, 100, 10))
    look = beat(5, age_s=0.5, samples=samples, rate=1.0)
    judged = judge(look, look)
    assert judged.pace is Pace.OVERDUE
    assert judged.age_s == pytest.approx(300)


@pytest.mark.parametrize("phase", ["eval", "Save", "compile"])
def test_a_phase_that_may_take_long_is_given_its_time(phase: str) -> None:
    look = beat(5, age_s=600, phase=phase)
    judged = judge(look, look)
    assert judged.pace is Pace.RECENT
    assert judged.starting
    late = beat(5, age_s=2000, phase=phase)
    assert judge(late, late).pace is Pace.OVERDUE


@pytest.mark.parametrize("more", [{"step": 0}, {"step": 40, "phase": "eval"}, {"step": 40, "rate": 0.005}])
def test_the_limit_of_a_stall_that_was_told_holds_where_it_is_shorter(more: dict[str, Any]) -> None:
    look, told = beat(age_s=400, **more), beat(age_s=400, stall_limit_s=300.0, **more)
    assert (judge(look, look).pace, judge(told, told).pace) == (Pace.RECENT, Pace.OVERDUE)


def test_before_the_first_step_a_run_is_starting() -> None:
    look = beat(None, age_s=300)
    assert judge(look, look, 300.0).starting
    assert judge(look, look, 300.0).pace is Pace.RECENT
    late = beat(0, age_s=2000)
    assert judge(late, late, 2000.0).pace is Pace.OVERDUE


def test_a_log_alone_can_only_be_silent() -> None:
    look = facts(log_bytes=10, log_at_s=NOW - 9000)
    assert judge(look, look).pace is Pace.SILENT
    assert judge(look, facts(log_bytes=20, log_at_s=NOW)).pace is Pace.MOVING


def test_without_any_sign_nothing_is_known() -> None:
    assert judge(facts(), facts()).pace is Pace.UNKNOWN


def test_files_that_cannot_be_read_leave_progress_unknown_with_the_reason() -> None:
    judged = judge_progress(Reading(facts()), Reading(unread="no answer within 2 s"), job_age_s=None)
    assert judged.pace is Pace.UNKNOWN
    assert judged.unread == "no answer within 2 s"


def test_numbers_that_make_no_sense_are_survived() -> None:
    for rate in (float("nan"), float("inf"), -1.0, 0.0, True, "fast"):
        look = beat(5, age_s=1.0, rate=rate)
        assert judge(look, look).pace is Pace.RECENT
