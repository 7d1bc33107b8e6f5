"""The judgement of a rehearsal: from what was seen to a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.drill.compare import compare_runs
from holdfast.core.drill.drill import AttemptEnd, AttemptTrail, DrillJudgement, DrillVerdict, count_redone, judge_drill
from holdfast.model.record import replace

pytestmark = [pytest.mark.pure, pytest.mark.requirement("CKPT-15")]

LAST = 100


def rows(first: int, last: int, shift: float = 0.0) -> dict[int, dict[str, Any]]:
    return {step: {"loss": 1 / (step + 1) + shift} for step in range(first, last)}


def prints(*steps: int, mark: str = "") -> dict[int, dict[str, str]]:
    return {step: {"model": f"{step}{mark}", "run.random.python": f"r{step}{mark}"} for step in steps}


REFERENCE = AttemptTrail(1, AttemptEnd.FINISHED, 0, LAST, rows=rows(0, LAST), prints=prints(*range(10, 101, 10)))
FIRST = AttemptTrail(1, AttemptEnd.KILLED, 0, 47, rows=rows(0, 45), prints=prints(10, 20, 30, 40))
SECOND = AttemptTrail(
    2, AttemptEnd.FINISHED, 40, LAST, durable=40, rows=rows(40, LAST), prints=prints(50, 60, 70, 80, 90, 100)
)


def judged(
    first: AttemptTrail = FIRST, second: AttemptTrail = SECOND, reference: AttemptTrail = REFERENCE
) -> DrillJudgement:
    return judge_drill(reference, (first, second))


def test_a_run_that_goes_on_as_if_nothing_had_happened_passes() -> None:
    found = judged()
    assert found.verdict is DrillVerdict.EXACT
    assert found.passed
    assert found.redone == 7
    assert "60 logged steps and 6 checkpoints" in found.why
    assert [line.good for line in found.lines] == [True, True, True]


def test_only_an_exact_run_passes() -> None:
    assert [verdict for verdict in DrillVerdict if DrillJudgement(verdict, "").passed] == [DrillVerdict.EXACT]


def test_one_that_begins_at_0_although_it_had_saved_starts_over() -> None:
    found = judged(second=replace(SECOND, first=0, rows=rows(0, LAST)))
    assert found.verdict is DrillVerdict.STARTS_OVER
    assert "step 40 was saved" in found.why


def test_one_that_never_saved_is_told_from_one_that_never_loads() -> None:
    again = replace(SECOND, first=0, durable=None, rows=rows(0, LAST), prints={})
    assert judged(second=again).verdict is DrillVerdict.NO_CHECKPOINT
    assert judged(second=replace(again, files=2)).verdict is DrillVerdict.STARTS_OVER


def test_an_older_checkpoint_than_the_newest_is_seen() -> None:
    found = judged(second=replace(SECOND, first=30, rows=rows(30, LAST)))
    assert found.verdict is DrillVerdict.GOES_BACK


def test_steps_that_nobody_did_are_seen() -> None:
    assert judged(second=replace(SECOND, first=44, rows=rows(44, LAST))).verdict is DrillVerdict.SKIPS
    holes = {step: row for step, row in rows(40, LAST).items() if step != 60}
    found = judged(second=replace(SECOND, rows=holes))
    assert found.verdict is DrillVerdict.SKIPS
    assert "60" in found.why
    seen = judge_drill(REFERENCE, [FIRST, replace(SECOND, rows=holes)], source="heartbeats")
    assert seen.verdict is not DrillVerdict.SKIPS, "a heartbeat that was not read was beaten all the same"


def test_the_first_step_with_another_loss_is_named() -> None:
    found = judged(second=replace(SECOND, rows={**rows(40, 70), **rows(70, LAST, 1e-9)}))
    assert found.verdict is DrillVerdict.INEXACT
    assert "loss differs first at step 70" in found.why
    assert "attempt 2" in found.why


def test_a_state_that_differs_is_named_although_the_loss_is_the_same() -> None:
    found = judged(second=replace(SECOND, prints={**SECOND.prints, 90: {"model": "90", "run.random.python": "x"}}))
    assert found.verdict is DrillVerdict.INEXACT
    assert "run.random.python" in found.why
    assert "step 90" in found.why


def test_values_that_differ_without_an_interruption_too_are_not_held_against_it() -> None:
    def timed(values: dict[int, dict[str, Any]], speed: float) -> dict[int, dict[str, Any]]:
        return {step: {**row, "tokens_per_s": speed + step} for step, row in values.items()}

    found = judge_drill(
        replace(REFERENCE, rows=timed(rows(0, LAST), 1.0)),
        (replace(FIRST, rows=timed(rows(0, 45), 2.0)), replace(SECOND, rows=timed(rows(40, LAST), 3.0))),
    )
    assert found.verdict is DrillVerdict.EXACT
    assert any("tokens_per_s" in line.words for line in found.lines)


@pytest.mark.parametrize("name", ["loss", "train_loss"])
def test_a_script_that_is_never_the_same_twice_does_not_pass(name: str) -> None:
    def named(values: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return {step: {name: row["loss"]} for step, row in values.items()}

    found = judge_drill(
        replace(REFERENCE, rows=named(rows(0, LAST)), prints={}),
        (
            replace(FIRST, rows=named(rows(0, 45, 0.1)), prints={}),
            replace(SECOND, rows=named(rows(40, LAST, 0.2)), prints={}),
        ),
    )
    assert found.verdict is DrillVerdict.INEXACT
    assert "without any interruption" in found.why


def test_nothing_to_compare_is_no_success() -> None:
    first, second, reference = (replace(trail, rows={}, prints={}) for trail in (FIRST, SECOND, REFERENCE))
    found = judged(first, second, reference)
    assert found.verdict is DrillVerdict.UNPROVEN


def test_states_alone_are_enough_and_so_are_values() -> None:
    assert judge_drill(replace(REFERENCE, rows={}), (replace(FIRST, rows={}), replace(SECOND, rows={}))).passed
    assert judge_drill(replace(REFERENCE, prints={}), (FIRST, SECOND)).passed


def test_attempts_that_fail_or_never_end_are_told() -> None:
    assert (
        judged(second=replace(SECOND, end=AttemptEnd.FAILED, exit_code=1, words="boom")).verdict is DrillVerdict.FAILS
    )
    assert judged(second=replace(SECOND, end=AttemptEnd.CUT)).verdict is DrillVerdict.UNFINISHED
    assert judge_drill(REFERENCE, (replace(FIRST, end=AttemptEnd.FINISHED),)).verdict is DrillVerdict.TOO_SHORT
    assert judge_drill(replace(REFERENCE, end=AttemptEnd.FAILED, exit_code=3), ()).verdict is DrillVerdict.BROKEN


def test_a_second_run_that_begins_where_the_first_ended_proves_nothing() -> None:
    assert judged(replace(FIRST, first=LAST, last=LAST, rows={})).verdict is DrillVerdict.SHARED


@pytest.mark.parametrize(
    ("code", "stop", "good"),
    [
        (143, {"step": 40, "saved": True}, True),
        (0, {"step": 40, "saved": True}, False),
        (143, {"step": 47, "saved": False}, False),
        (143, {"step": 47, "saved": True}, False),
        (143, {}, False),
    ],
)
def test_a_term_has_to_end_in_143_at_a_saved_step(code: int, stop: dict[str, Any], good: bool) -> None:
    found = judged(replace(FIRST, end=AttemptEnd.STOPPED, exit_code=code, stop=stop))
    assert found.verdict is (DrillVerdict.EXACT if good else DrillVerdict.DOES_NOT_STOP)


def test_another_scripts_late_first_heartbeat_is_no_resume() -> None:
    reference = replace(REFERENCE, first=1, prints={})
    first = replace(FIRST, first=2, last=47, prints={})
    assert (
        judge_drill(reference, (first, AttemptTrail(2, AttemptEnd.FINISHED, 4, LAST))).verdict
        is DrillVerdict.NO_CHECKPOINT
    )
    late = AttemptTrail(2, AttemptEnd.FINISHED, 43, LAST, files=1, rows=rows(43, LAST))
    assert judge_drill(reference, (first, late)).verdict is DrillVerdict.EXACT


def test_a_run_without_any_heartbeat_is_not_judged_by_its_end() -> None:
    silent = AttemptTrail(2, AttemptEnd.FINISHED)
    found = judge_drill(AttemptTrail(1, AttemptEnd.FINISHED), (AttemptTrail(1, AttemptEnd.KILLED), silent))
    assert found.verdict is DrillVerdict.NO_CHECKPOINT
    assert (
        judge_drill(
            AttemptTrail(1, AttemptEnd.FINISHED), (AttemptTrail(1, AttemptEnd.KILLED), replace(silent, files=1))
        ).verdict
        is DrillVerdict.UNPROVEN
    )


def test_numbers_of_another_type_and_nan_are_compared_as_they_are() -> None:
    nan = float("nan")
    same = compare_runs([(1, {}), (2, {5: {"loss": nan}})], {5: {"loss": nan}})
    assert not same.differences
    other = compare_runs([(1, {}), (2, {5: {"loss": 1}})], {5: {"loss": 1.0}})
    assert other.differences[0].step == 5


def test_steps_done_again_are_counted_where_both_ends_are_known() -> None:
    assert count_redone((FIRST, SECOND)) == 7
    assert count_redone((replace(FIRST, last=None), SECOND)) == 0


def test_a_term_that_nobody_left_after_is_no_proof_that_it_stops() -> None:
    assert judge_drill(REFERENCE, (FIRST, SECOND), stop=False).verdict is DrillVerdict.EXACT
    found = judge_drill(REFERENCE, (FIRST, SECOND), stop=True)
    assert found.verdict is DrillVerdict.DOES_NOT_STOP
    assert "no attempt left after a TERM" in found.why
