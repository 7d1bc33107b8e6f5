"""What may follow a failure without a person: a table."""

from __future__ import annotations

import pytest

from holdfast.core.run.retry import (
    AUTOMATIC,
    LONGEST_ASKED_S,
    LONGEST_WAIT_S,
    MUCH_S,
    NOT_MEASURED,
    SPREAD,
    RetryFacts,
    RetryStep,
    decide_retry,
)
from holdfast.model.record import replace
from holdfast.model.verdict import Confidence, FailureClass
from tests.each import each

pytestmark = [pytest.mark.pure, pytest.mark.requirement("FAIL-02")]

BLIP = RetryFacts(FailureClass.TRANSIENT, Confidence.LIKELY, used=0, allowed=1)


def test_a_transient_failure_is_repeated_once() -> None:
    first = decide_retry(BLIP, 5)
    assert (first.step, first.wait_s) == (RetryStep.AGAIN, 5)
    second = decide_retry(replace(BLIP, used=1), 5)
    assert second.step is RetryStep.NOTHING
    assert "1 of 1" in second.why


@pytest.mark.requirement("FAIL-01", "FAIL-06")
@each("kind", [kind for kind in FailureClass if kind not in AUTOMATIC])
def test_every_other_class_is_left_to_a_person(kind: FailureClass) -> None:
    assert decide_retry(replace(BLIP, kind=kind, allowed=100), 5).step is RetryStep.NOTHING


def test_what_is_only_possible_is_not_repeated() -> None:
    assert decide_retry(replace(BLIP, confidence=Confidence.POSSIBLE), 5).step is RetryStep.NOTHING


@pytest.mark.requirement("FAIL-16")
def test_another_configuration_is_not_repeated() -> None:
    found = decide_retry(replace(BLIP, changed="train.py was changed"), 5)
    assert found.step is RetryStep.NOTHING
    assert "train.py was changed" in found.why


def test_a_wish_to_stop_and_a_bound_of_none_are_obeyed() -> None:
    assert decide_retry(replace(BLIP, stop_wanted=True), 5).step is RetryStep.NOTHING
    assert decide_retry(replace(BLIP, allowed=0), 5).step is RetryStep.NOTHING


@pytest.mark.requirement("FAIL-03")
def test_a_full_disk_needs_room_first() -> None:
    full = replace(BLIP, kind=FailureClass.DISK_FULL, measured=True)
    assert decide_retry(full, 5).step is RetryStep.PRUNE_FIRST
    told = decide_retry(replace(full, measured=False), 5)
    assert (told.step, told.why) == (RetryStep.NOTHING, NOT_MEASURED)


@pytest.mark.requirement("FAIL-02")
def test_hours_of_work_are_not_begun_anew_without_a_person() -> None:
    found = decide_retry(replace(BLIP, lost_s=MUCH_S), 5)
    assert found.step is RetryStep.NOTHING
    assert "no checkpoint" in found.why
    assert decide_retry(replace(BLIP, lost_s=MUCH_S - 1), 5).step is RetryStep.AGAIN


@pytest.mark.requirement("FAIL-02")
def test_a_pause_is_as_long_as_what_failed_asks_for_or_it_is_left_to_a_person() -> None:
    assert decide_retry(replace(BLIP, asked_wait_s=120), 5).wait_s >= 120
    assert decide_retry(replace(BLIP, asked_wait_s=2), 5).wait_s == decide_retry(BLIP, 5).wait_s
    assert decide_retry(replace(BLIP, asked_wait_s=2 * LONGEST_ASKED_S), 5).step is RetryStep.NOTHING


def test_a_pause_that_leaves_less_than_half_of_the_limit_of_an_attempt_is_left_to_a_person() -> None:
    asked = replace(BLIP, asked_wait_s=120.0)
    assert decide_retry(replace(asked, total_s=240.0), 5).step is RetryStep.AGAIN
    refused = decide_retry(replace(asked, total_s=239.0), 5)
    assert refused.step is RetryStep.NOTHING
    assert "(timeout)" in refused.why


@pytest.mark.requirement("FAIL-07")
def test_a_broken_card_is_left_unless_the_job_names_it() -> None:
    broken = replace(BLIP, kind=FailureClass.HARDWARE, confidence=Confidence.CERTAIN)
    assert decide_retry(broken, 5).step is RetryStep.SET_ASIDE_FIRST
    assert decide_retry(replace(broken, names_cards=True), 5).step is RetryStep.NOTHING
    assert (
        decide_retry(replace(broken, not_set_aside="which card is at fault is not known"), 5).step is RetryStep.NOTHING
    )


def test_pauses_grow_and_are_bounded() -> None:
    waits = [decide_retry(replace(BLIP, used=used, allowed=50), 5).wait_s for used in range(40)]
    assert waits[:3] == [5, 15, 45]
    assert max(waits) == LONGEST_WAIT_S


def test_runs_that_failed_together_come_back_at_different_times() -> None:
    waits = {decide_retry(replace(BLIP, seed=f"run-{number}.1"), 5).wait_s for number in range(50)}
    assert len(waits) > 40
    assert min(waits) >= 5
    assert max(waits) <= 5 * (1 + SPREAD)
    assert decide_retry(replace(BLIP, seed="run-1.1"), 5) == decide_retry(replace(BLIP, seed="run-1.1"), 5)
