"""Folding: the surest decides, then the ladder's order; nothing that was said or unread is lost."""

from __future__ import annotations

import re

import pytest

from holdfast.diagnosis.evidence import Answer, Detection
from holdfast.diagnosis.fold import fold_verdict, redact_verdict
from holdfast.diagnosis.remedies import REMEDIES
from holdfast.model.verdict import Clue, Confidence, FailureClass, RetryPolicy
from tests.each import each

pytestmark = pytest.mark.pure
F = FailureClass


def say(
    kind: FailureClass, answer: Answer = Answer.YES, sure: Confidence = Confidence.LIKELY, **facts: str
) -> Detection:
    clue = (Clue(f"{kind.value} {answer.value}"),)
    return Detection(
        kind.value,
        kind,
        answer,
        sure,
        evidence_for=clue if answer is Answer.YES else (),
        evidence_against=clue if answer is Answer.NO else (),
        unknown=clue if answer is Answer.UNKNOWN else (),
        facts=facts,
    )


def test_the_surest_decides_and_then_the_order() -> None:
    found = (
        say(F.KILLED),
        say(F.BUG),
        say(F.REBOOT, sure=Confidence.CERTAIN),
        say(F.DIVERGED, sure=Confidence.POSSIBLE),
    )
    verdict = fold_verdict(found)
    assert (verdict.kind, verdict.also) == (F.REBOOT, ("killed", "bug", "diverged"))
    assert verdict.others == ("killed: killed yes", "bug: bug yes", "diverged: diverged yes")
    assert fold_verdict(found[:2]).kind is F.KILLED


def test_no_and_unknown_stay_apart() -> None:
    verdict = fold_verdict((say(F.BUG), say(F.REBOOT, Answer.NO), say(F.HANG_UP, Answer.UNKNOWN)), Clue("it ended"))
    assert [clue.text for clue in verdict.evidence_for] == ["it ended", "bug yes"]
    assert [clue.text for clue in verdict.evidence_against] == ["not reboot: reboot no"]
    assert [clue.text for clue in verdict.unknown] == ["hang_up unknown"]


def test_a_secret_in_what_speaks_for_another_class_is_washed_too() -> None:
    verdict = redact_verdict(fold_verdict((say(F.KILLED), say(F.BUG))), lambda text: text.replace("bug yes", "***"))
    assert verdict.others == ("bug: ***",)


def test_what_only_repeats_the_first_half_of_the_end_is_not_said_twice() -> None:
    ending = Clue("asked to stop by anna; the job ended with signal 9", "state.json")
    said = Detection("A2", F.STOPPED, Answer.YES, evidence_for=(Clue("asked to stop by anna", "state.json"),))
    assert fold_verdict((said,), ending).evidence_for == (ending,)


@pytest.mark.requirement("FAIL-01")
def test_FAIL_01_what_nothing_explains_is_unknown_and_never_retried() -> None:
    verdict = fold_verdict((say(F.BUG, Answer.NO), say(F.HARDWARE, Answer.UNKNOWN)))
    assert (verdict.kind, verdict.retry, verdict.detector) == (F.UNKNOWN, RetryPolicy.NEVER, "")
    assert "investigate" in verdict.action


def test_what_nothing_explains_gets_the_commands_that_tell_more() -> None:
    verdict = fold_verdict((say(F.BUG, Answer.NO, run=" digits"),))
    for way in ("logs digits", "logs --supervisor digits"):
        assert f"(holdfast {way})" in verdict.action
    # Who reads that has asked for a diagnosis already.
    assert "holdfast diagnose" not in verdict.action


@pytest.mark.requirement("FAIL-01", "FAIL-02")
@each("kind", list(FailureClass))
def test_FAIL_01_every_class_has_one_action_that_needs_no_facts(kind: FailureClass) -> None:
    remedy = REMEDIES[kind]
    text = remedy.render({})
    assert text
    assert not re.search(r"[{}]", text)
    named = set(re.findall(r"\{(\w+)\}", remedy.action))
    assert named - {"run"} == set(remedy.defaults)
    assert all("seen" in remedy.render({name: "seen"}) for name in named)


def test_an_action_names_the_run_that_it_is_about() -> None:
    text = REMEDIES[F.TIMED_OUT].render({"run": " digits"})
    assert "holdfast restart digits --timeout 8h" in text
    assert text.endswith("holdfast limit digits --timeout +2h")


def test_facts_are_text_and_never_templates() -> None:
    assert "{x}" in REMEDIES[F.DISK_FULL].render({"path": "/a{x}"})


@pytest.mark.requirement("FAIL-02", "FAIL-06")
def test_FAIL_02_only_what_came_from_outside_may_be_repeated_unchanged() -> None:
    same = {kind for kind, remedy in REMEDIES.items() if remedy.retry is RetryPolicy.SAME}
    assert same == {F.TRANSIENT, F.REBOOT, F.CONTAINER_RESTART, F.HANG_UP, F.PREEMPTED}
    for kind in (F.BUG, F.UNKNOWN, F.OUT_OF_MEMORY, F.KILLED, F.DIVERGED, F.ENVIRONMENT):
        assert REMEDIES[kind].retry is RetryPolicy.NEVER


@pytest.mark.requirement("FAIL-04")
def test_FAIL_04_no_words_of_a_log_replace_what_is_said_about_memory() -> None:
    verdict = fold_verdict((say(F.OUT_OF_MEMORY, remedy="use a smaller batch"),))
    assert "do not shrink the batch" in verdict.action
    assert fold_verdict((say(F.TRANSIENT, remedy="run it again when the tracker is back"),)).action.startswith(
        "run it again"
    )


@pytest.mark.requirement("FAIL-08")
def test_FAIL_08_a_throttled_card_is_no_regression_of_the_code() -> None:
    remedy = REMEDIES[F.THROTTLED]
    assert "no regression of the code" in remedy.action
    assert remedy.retry is RetryPolicy.ELSEWHERE


def test_FAIL_14_a_counter_that_stood_still_speaks_against_words_of_the_same_class() -> None:
    words, counter = say(F.OUT_OF_MEMORY), say(F.OUT_OF_MEMORY, Answer.NO)
    assert [clue.text for clue in fold_verdict((words, counter)).evidence_against] == ["out_of_memory no"]
    proven = say(F.OUT_OF_MEMORY, sure=Confidence.CERTAIN)
    assert fold_verdict((proven, counter)).evidence_against == ()
