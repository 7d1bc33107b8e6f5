"""What the queue begins again without a person, and what it leaves: a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queue.requeue import CLAIM, MOST_IN_A_ROW, MemoryFailure, RequeueFacts, count_in_row, decide_requeue
from holdfast.core.run.retry import LONGEST_WAIT_S, SPREAD, spread_pause
from holdfast.model.job import OutOfMemory
from holdfast.model.record import replace
from holdfast.model.requeue import Requeue, RequeueAction
from holdfast.model.run import Outcome
from holdfast.model.verdict import Confidence, FailureClass
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("QUEUE-07", "FAIL-02")]

LOST = RequeueFacts(Outcome.LOST)
FULL = RequeueFacts(
    Outcome.FAILED,
    FailureClass.GPU_OUT_OF_MEMORY,
    Confidence.LIKELY,
    memory=MemoryFailure(OutOfMemory.LARGER, shared=True, failed_bytes=24, largest_bytes=80),
)


def with_memory(**fields: object) -> Requeue:
    return decide_requeue(replace(FULL, memory=replace(FULL.memory, **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", [LOST, RequeueFacts(Outcome.PREEMPTED, stopped_by="a scheduler")])
def test_what_was_taken_from_a_run_is_begun_again(facts: RequeueFacts) -> None:
    found = decide_requeue(facts)
    assert (found.kind, found.wait_s, found.placement) == (RequeueAction.SAME, 5, None)


def test_what_a_person_stopped_stays_stopped() -> None:
    assert not decide_requeue(RequeueFacts(Outcome.STOPPED, stopped_by="anna (pid 7)")).again
    assert not decide_requeue(RequeueFacts(Outcome.STOPPED, stopped_by="anna (pid 7)", started=False)).again
    assert not decide_requeue(replace(LOST, wanted=True)).again
    assert not decide_requeue(replace(LOST, allowed=0)).again
    assert decide_requeue(replace(LOST, allowed=0, started=False)).again


def test_what_holdfast_called_off_before_it_began_is_begun() -> None:
    assert decide_requeue(RequeueFacts(Outcome.STOPPED, stopped_by="holdfast", started=False)).again
    assert not decide_requeue(RequeueFacts(Outcome.STOPPED, stopped_by="holdfast")).again


def test_a_job_that_another_box_has_claimed_is_not_begun_here() -> None:
    assert not decide_requeue(RequeueFacts(Outcome.PREEMPTED, stopped_by=f"{CLAIM} of box b")).again


@pytest.mark.parametrize("outcome", [None, Outcome.TIMED_OUT, Outcome.SUCCEEDED, Outcome.STOPPED])
def test_every_other_end_is_left_to_a_person(outcome: Outcome | None) -> None:
    found = decide_requeue(RequeueFacts(outcome))
    assert not found.again
    assert found.why


@pytest.mark.requirement("FAIL-06")
@each("kind", [*FailureClass])
def test_no_failure_is_repeated_that_its_own_supervisor_left(kind: FailureClass) -> None:
    assert not decide_requeue(RequeueFacts(Outcome.FAILED, kind, Confidence.CERTAIN)).again


def test_a_transient_failure_that_nobody_could_repeat_is_repeated() -> None:
    blip = RequeueFacts(Outcome.FAILED, FailureClass.TRANSIENT, Confidence.LIKELY, undecided=True)
    assert decide_requeue(blip).again
    assert not decide_requeue(replace(blip, allowed=0)).again
    assert not decide_requeue(replace(blip, kind=FailureClass.BUG)).again
    assert not decide_requeue(replace(blip, confidence=Confidence.POSSIBLE)).again
    assert decide_requeue(replace(blip, kind=FailureClass.HARDWARE, unbegun=True)).again


def test_busy_cards_are_waited_for_without_a_bound() -> None:
    busy = RequeueFacts(Outcome.FAILED, FailureClass.REFUSED, started=False, busy=True, in_row=50)
    assert decide_requeue(busy).again
    assert not decide_requeue(replace(busy, busy=False)).again


@pytest.mark.requirement("FAIL-16")
def test_only_the_recorded_configuration_is_begun_again() -> None:
    found = decide_requeue(replace(LOST, changed="train.py was changed"))
    assert not found.again
    assert "train.py was changed" in found.why


def test_nothing_is_begun_beside_what_lives() -> None:
    found = decide_requeue(replace(LOST, alive="pid 12"))
    assert (found.again, "pid 12" in found.why) == (False, True)


def test_attempts_without_progress_are_bounded() -> None:
    assert decide_requeue(replace(LOST, in_row=MOST_IN_A_ROW - 1)).again
    assert not decide_requeue(replace(LOST, in_row=MOST_IN_A_ROW)).again


def test_progress_begins_the_count_anew() -> None:
    began = (False, True, True, True)
    assert count_in_row((5, 5, 5, 5), began) == 3
    assert count_in_row((5, 9, 9, 9), began) == 2
    assert count_in_row((5, 5, 5, 6), began) == 0
    assert count_in_row((None, None, None, None), began) == 3
    assert count_in_row((5, 5, 5, 5), (False, True, False, True)) == 1
    assert count_in_row((), ()) == 0


@pytest.mark.requirement("FAIL-05")
def test_a_full_card_is_repeated_only_by_the_jobs_own_policy() -> None:
    assert with_memory().kind is RequeueAction.LARGER
    assert not with_memory(policy=OutOfMemory.NEVER).again
    assert not decide_requeue(replace(FULL, memory=MemoryFailure())).again


@pytest.mark.requirement("FAIL-05")
def test_a_larger_card_must_be_there_and_known() -> None:
    found = with_memory()
    assert found.placement is not None
    assert found.placement.min_total_bytes == 24
    for field, value in (("largest_bytes", 24), ("largest_bytes", None), ("failed_bytes", None), ("fixed", "named")):
        left = with_memory(**{field: value})
        assert (left.again, bool(left.why)) == (False, True), field


@pytest.mark.requirement("FAIL-05")
def test_alone_means_something_only_on_a_shared_card() -> None:
    found = with_memory(policy=OutOfMemory.ALONE)
    assert found.placement is not None
    assert (found.kind, found.placement.alone) == (RequeueAction.ALONE, True)
    assert not with_memory(policy=OutOfMemory.ALONE, shared=False).again


@pytest.mark.requirement("FAIL-05")
def test_another_place_is_tried_once_and_only_when_it_was_the_memory() -> None:
    assert not with_memory(placed=True).again
    assert not decide_requeue(replace(FULL, confidence=Confidence.POSSIBLE)).again
    assert not decide_requeue(replace(FULL, kind=FailureClass.OUT_OF_MEMORY)).again


@given(st.integers(0, 20), st.text(max_size=20), st.floats(0, 1000))
def test_pauses_grow_are_bounded_and_never_shorter_than_stated(in_row: int, seed: str, first_s: float) -> None:
    found = decide_requeue(replace(LOST, in_row=min(in_row, 2), seed=seed, first_wait_s=first_s))
    assert min(first_s, LONGEST_WAIT_S) <= found.wait_s + 0.001
    assert found.wait_s <= LONGEST_WAIT_S * (1 + SPREAD)


def test_runs_that_were_lost_together_do_not_come_back_together() -> None:
    pauses = {decide_requeue(replace(LOST, seed=f"run-{number}.1")).wait_s for number in range(50)}
    assert len(pauses) > 40
    assert spread_pause("run-1.1") == spread_pause("run-1.1")
