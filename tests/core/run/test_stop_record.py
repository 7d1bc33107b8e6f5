"""What a training wrote on leaving, held against how it ended."""

from __future__ import annotations

import pytest

from holdfast.core.run.outcome import EXIT_LOST, judge_outcome
from holdfast.core.run.stop_record import describe_leaving, judge_leaving
from holdfast.model.finding import Finding
from holdfast.model.identity import JobProcess, ProcessId, WaitStatus
from holdfast.model.record import replace
from holdfast.model.run import Finalizing, Outcome, StopCause, StopRecord, StopRequest
from tests.each import each

pytestmark = pytest.mark.pure

SAVED = StopRecord("signal", "SIGTERM", step=120, checkpoint_step=120, saved=True)
JOB = JobProcess(ProcessId(101, 7, "boot"), 101, 101, 2)
LEFT = Finalizing("f", job=JOB, started_at="s", status=WaitStatus(143, None), emptied=True, stop=SAVED)


def judge(final: Finalizing, *findings: Finding) -> tuple[Outcome, int, str]:
    ended = judge_outcome(final, findings, "at")
    assert ended.stop == final.stop
    return ended.outcome, ended.exit_code, ended.evidence


@pytest.mark.requirement("SPOT-02", "LIB-18")
def test_SPOT_02_who_saved_and_left_because_of_a_signal_from_outside_was_preempted() -> None:
    words = "saved step 120, stopped by SIGTERM from outside; the job ended with exit code 143"
    assert judge(LEFT) == (Outcome.PREEMPTED, 143, words)


def test_143_without_a_record_is_a_failure_with_143() -> None:
    words = "the job ended with exit code 143"
    assert judge(replace(LEFT, stop=None)) == (Outcome.FAILED, 143, words)


@pytest.mark.requirement("LIB-18", "POST-09", "B-50")
@each("code", [0, 143])
@each(
    ("why", "outcome", "shown"),
    [
        ("signal", Outcome.PREEMPTED, 143),
        ("deadline", Outcome.TIMED_OUT, 124),
        ("operator", Outcome.STOPPED, 130),
        ("memory", Outcome.FAILED, None),
        ("nonfinite", Outcome.FAILED, None),
        ("save_failed", Outcome.FAILED, None),
        ("exception", Outcome.FAILED, None),
    ],
)
def test_POST_09_each_reason_has_its_outcome_whether_the_script_says_143_or_0(
    why: str, outcome: Outcome, shown: int | None, code: int
) -> None:
    final = replace(LEFT, stop=replace(SAVED, why=why), status=WaitStatus(code, None))
    found, exit_code, evidence = judge(final)
    assert (found, exit_code) == (outcome, shown if shown is not None else code or 1)
    assert evidence.startswith("saved step 120")


@pytest.mark.requirement("LIB-03", "SLM-03")
def test_who_left_ahead_of_its_places_own_end_may_go_on() -> None:
    own = replace(SAVED, why="deadline", detail="SLURM_JOB_END_TIME")
    assert judge(replace(LEFT, stop=own))[:2] == (Outcome.PREEMPTED, 143)
    assert judge(replace(LEFT, stop=replace(own, detail="walltime of the run")))[:2] == (Outcome.TIMED_OUT, 124)


def test_a_script_that_stopped_itself_is_believed_when_it_says_0() -> None:
    own = replace(SAVED, why="user", detail="early stopping")
    assert judge(replace(LEFT, stop=own, status=WaitStatus(0, None)))[:2] == (Outcome.SUCCEEDED, 0)
    words = "saved step 120, stopped by its own script (early stopping); the job ended with exit code 143"
    assert judge(replace(LEFT, stop=own)) == (Outcome.STOPPED, 130, words)


@pytest.mark.parametrize("why", ["finished", "a word of a later version"])
def test_other_reasons_decide_nothing(why: str) -> None:
    stop = replace(SAVED, why=why)
    assert judge(replace(LEFT, stop=stop, status=WaitStatus(0, None)))[:2] == (Outcome.SUCCEEDED, 0)
    assert judge(replace(LEFT, stop=stop, status=WaitStatus(3, None)))[:2] == (Outcome.FAILED, 3)


@pytest.mark.parametrize("status", [WaitStatus(None, 9), WaitStatus(None, 11), WaitStatus(3, None)])
def test_a_crash_while_leaving_stays_a_crash_and_the_record_is_told(status: WaitStatus) -> None:
    outcome, code, evidence = judge(replace(LEFT, status=status))
    assert (outcome, code) == (Outcome.FAILED, status.exit_code)
    assert "it wrote before: saved step 120, stopped by SIGTERM from outside" in evidence


def test_a_launcher_that_turns_143_into_1_is_seen_through_only_when_all_was_saved() -> None:
    assert judge(replace(LEFT, status=WaitStatus(1, None)))[:2] == (Outcome.PREEMPTED, 143)
    unsaved = replace(SAVED, saved=False)
    assert judge(replace(LEFT, stop=unsaved, status=WaitStatus(1, None)))[:2] == (Outcome.FAILED, 1)


def test_killed_by_term_itself_after_it_saved_is_the_same_end() -> None:
    assert judge(replace(LEFT, status=WaitStatus(None, 15)))[:2] == (Outcome.PREEMPTED, 143)


def test_an_end_that_nobody_witnessed_is_lost_unless_all_was_saved() -> None:
    outcome, code, evidence = judge(replace(LEFT, status=None))
    assert (outcome, code) == (Outcome.PREEMPTED, 143)
    assert "its exit status was not witnessed" in evidence
    assert judge(replace(LEFT, status=None, stop=replace(SAVED, saved=False)))[:2] == (Outcome.LOST, EXIT_LOST)
    assert judge(replace(LEFT, status=None, stop=replace(SAVED, why="exception")))[:2] == (Outcome.LOST, EXIT_LOST)


@pytest.mark.requirement("POST-09", "LIB-18")
@pytest.mark.parametrize("code", [0, 143])
def test_POST_09_our_own_request_decides_and_the_step_is_told(code: int) -> None:
    asked = replace(LEFT, request=StopRequest(StopCause.OPERATOR, "anna"), status=WaitStatus(code, None))
    words = f"asked to stop by anna; the job ended with exit code {code}, saved step 120"
    assert judge(asked) == (Outcome.STOPPED, 130, words)


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (StopRecord("signal"), "saved nothing, stopped by a signal from outside"),
        (
            StopRecord("signal", step=7, checkpoint_step=5),
            "saved nothing at step 7, the last durable step is 5, stopped",
        ),
        (
            replace(SAVED, why="deadline", detail="walltime of the run"),
            "saved step 120 before the deadline (walltime of",
        ),
        (StopRecord("user", saved=True), "saved, stopped by its own script"),
        (StopRecord("finished", step=9, saved=True), "saved step 9, all of its steps were done"),
        (StopRecord("nonfinite", "loss at step 4"), "saved nothing, a value was not finite (loss at step 4)"),
    ],
)
def test_a_record_in_words(stop: StopRecord, words: str) -> None:
    assert describe_leaving(stop).startswith(words)


def test_a_status_that_nobody_saw_needs_the_word_saved() -> None:
    assert judge_leaving(replace(SAVED, saved=False), None) is None


def test_a_signal_that_holdfast_sent_is_not_one_from_outside() -> None:
    words = "saved step 120, stopped by SIGTERM, sent by holdfast"
    assert describe_leaving(replace(SAVED, why="signal", detail="SIGTERM"), sent=True) == words
    left = judge_leaving(replace(SAVED, why="signal", detail="SIGTERM"), WaitStatus(143, None, asked=True))
    assert left is not None
    assert left[2] == f"{words}; the job ended with exit code 143", (
        "its keeper asked it, because its supervisor was gone"
    )
