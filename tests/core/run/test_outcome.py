"""The verdict: in which order the proofs count, and that nothing but proven results is a success."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.run.outcome import COPY_FINDING, EXIT_LOST, LIMIT_FINDING, judge_outcome
from holdfast.core.run.stop_record import judge_leaving
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import JobProcess, ProcessId, WaitStatus
from holdfast.model.record import replace
from holdfast.model.run import Finalizing, Outcome, Refusal, StopCause, StopRequest
from tests.each import each
from tests.strategies import values_of

pytestmark = pytest.mark.pure

JOB = JobProcess(ProcessId(101, 7, "boot"), 101, 101, 2)
RAN = Finalizing("f", job=JOB, started_at="s", status=WaitStatus(0, None), emptied=True)
MISSING = Finding("artifact.missing", Level.FAIL, "result.json", "it is not there")
LATE = Finding("fast", Level.WARN, "run", "5 s of 60 s expected")
UNREAD = Finding("disk", Level.UNKNOWN, "/", "could not be read")


def judge(final: Finalizing, *findings: Finding) -> tuple[Outcome, int, str]:
    ended = judge_outcome(final, findings, "at")
    return ended.outcome, ended.exit_code, ended.evidence


def test_success_needs_the_code_and_the_results() -> None:
    assert judge(RAN, LATE, UNREAD) == (Outcome.SUCCEEDED, 0, "exit code 0")
    there = Finding("artifact", Level.PASS, "result.json", "12 B, written by this attempt")
    words = "exit code 0 and every declared result is in place"
    assert judge(RAN, LATE, there) == (Outcome.SUCCEEDED, 0, words)


def test_POST_05_exit_0_without_the_result_is_a_failure() -> None:
    words = "exit code 0, but artifact.missing result.json: it is not there"
    assert judge(RAN, LATE, MISSING) == (Outcome.FAILED, 73, words)


@pytest.mark.requirement("FAIL-10", "POST-07")
def test_FAIL_10_a_copy_that_failed_leaves_the_training_its_success() -> None:
    there = Finding("artifact", Level.PASS, "result.json", "12 B, written by this attempt")
    failed = Finding(COPY_FINDING, Level.FAIL, "/lasting/x", "no space")
    words = "training succeeded (exit code 0 and every declared result is in place); results were not copied to "
    assert judge(RAN, there, failed) == (Outcome.FAILED, 73, f"{words}/lasting/x: no space")
    assert judge(RAN, MISSING, failed)[2].startswith("exit code 0, but artifact.missing")
    copied = Finding(COPY_FINDING, Level.PASS, "/lasting/x", "2 files, 6 B")
    assert judge(RAN, copied) == (Outcome.SUCCEEDED, 0, "exit code 0; results copied to /lasting/x: 2 files, 6 B")


@pytest.mark.requirement("PROC-05", "B-01")
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (WaitStatus(3, None), 3, "the job ended with exit code 3"),
        (WaitStatus(None, 9), 137, "the job ended with signal 9"),
        (WaitStatus(None, 11, core_dumped=True), 139, "the job ended with signal 11 (core dumped)"),
    ],
)
def test_the_jobs_own_code_passes_through(status: WaitStatus, code: int, words: str) -> None:
    assert judge(replace(RAN, status=status), MISSING) == (Outcome.FAILED, code, words)


WORDS = {
    StopCause.OPERATOR: "asked to stop",
    StopCause.SIGNAL: "signal",
    StopCause.PREEMPTION: "preemption",
    StopCause.DEADLINE: "deadline",
    StopCause.MAX_HOLD: "max hold",
    StopCause.STALLED: "stalled",
    StopCause.DISK_FULL: "disk full",
    StopCause.LEASE_MISMATCH: "lease mismatch",
    StopCause.MEMORY: "memory",
}


@pytest.mark.requirement("B-50")
@each(
    ("cause", "outcome", "code"),
    [
        (StopCause.OPERATOR, Outcome.STOPPED, 130),
        (StopCause.SIGNAL, Outcome.STOPPED, 130),
        (StopCause.PREEMPTION, Outcome.PREEMPTED, 143),
        (StopCause.DEADLINE, Outcome.TIMED_OUT, 124),
        (StopCause.MAX_HOLD, Outcome.TIMED_OUT, 124),
        (StopCause.STALLED, Outcome.TIMED_OUT, 124),
        (StopCause.DISK_FULL, Outcome.FAILED, 1),
        (StopCause.LEASE_MISMATCH, Outcome.FAILED, 1),
        (StopCause.MEMORY, Outcome.FAILED, 1),
    ],
)
def test_who_left_with_0_because_it_was_asked_to_did_not_succeed(cause: StopCause, outcome: Outcome, code: int) -> None:
    stopped = replace(RAN, request=StopRequest(cause, "anna"))
    assert judge(stopped) == (outcome, code, f"{WORDS[cause]} by anna; the job ended with exit code 0")


@pytest.mark.requirement("B-50")
def test_who_left_with_0_because_its_keeper_asked_it_to_did_not_succeed() -> None:
    asked = replace(RAN, status=WaitStatus(0, None, asked=True))
    words = "its supervisor was killed, so the job was asked to leave, and left with exit code 0"
    assert judge(asked) == (Outcome.LOST, EXIT_LOST, words)
    failed = replace(RAN, status=WaitStatus(3, None, asked=True))
    assert judge(failed)[:2] == (Outcome.FAILED, 3)


def test_a_failure_for_a_cause_keeps_the_jobs_code() -> None:
    killed = replace(RAN, status=WaitStatus(None, 9), request=StopRequest(StopCause.MEMORY, "holdfast", detail="9 GiB"))
    assert judge(killed) == (Outcome.FAILED, 137, "memory by holdfast (9 GiB); the job ended with signal 9")


@pytest.mark.parametrize(
    ("job", "words"),
    [(None, "the job had not started"), (JOB, "the job is gone, its status was not witnessed")],
)
def test_a_stop_without_a_status(job: JobProcess | None, words: str) -> None:
    for cause, code in ((StopCause.OPERATOR, 130), (StopCause.MEMORY, 1)):
        final = replace(RAN, job=job, status=None, request=StopRequest(cause, "anna"))
        assert judge(final)[1:] == (code, f"{WORDS[cause]} by anna; {words}")


def test_absence_of_evidence_is_lost() -> None:
    outcome, code, words = judge(replace(RAN, status=None))
    assert (outcome, code) == (Outcome.LOST, EXIT_LOST)
    assert words.startswith("the job (pid 101) is gone and nobody witnessed its end")
    assert "before its job started" in judge(replace(RAN, job=None, status=None))[2]


@pytest.mark.parametrize(("code", "outcome"), [(75, Outcome.FAILED), (78, Outcome.FAILED), (124, Outcome.TIMED_OUT)])
def test_what_never_ran_says_why(code: int, outcome: Outcome) -> None:
    refusal = Refusal("busy", code, "GPU-1: anna")
    final = replace(RAN, status=None, refusal=refusal, request=StopRequest(StopCause.OPERATOR, "bert"))
    assert judge(final) == (outcome, code, "never ran: GPU-1: anna")


@pytest.mark.requirement("POST-09")
@given(st.data())
def test_only_a_witnessed_0_that_nobody_asked_for_succeeds(data: st.DataObject) -> None:
    final = data.draw(values_of(Finalizing))
    findings = tuple(data.draw(st.lists(values_of(Finding), max_size=3)))
    ended = judge_outcome(final, findings, "at")
    proven = final.status is not None and final.status.code == 0 and final.request is None and final.refusal is None
    proven = proven and not (final.status is not None and final.status.asked)
    proven = proven and (final.stop is None or judge_leaving(final.stop, final.status) is None)
    assert (ended.outcome is Outcome.SUCCEEDED) == (proven and all(item.level is not Level.FAIL for item in findings))
    assert ended.evidence
    if final.refusal is None:
        assert (ended.exit_code == 0) <= (ended.outcome is Outcome.SUCCEEDED)


def test_the_end_keeps_what_it_was_judged_by() -> None:
    request = StopRequest(StopCause.OPERATOR, "anna")
    ended = judge_outcome(replace(RAN, request=request), (LATE, UNREAD, MISSING), "at")
    assert (ended.at, ended.status, ended.request, ended.refusal) == ("at", RAN.status, request, None)
    assert ended.started_at == "s"


def test_POST_06_what_is_not_quite_right_is_a_warning() -> None:
    said = ("fast: 5 s of 60 s expected", "disk: could not be read")
    passed = Finding("x", Level.PASS, "y", "z")
    assert judge_outcome(RAN, (LATE, passed, UNREAD), "at").warnings == said
    failed = replace(RAN, status=WaitStatus(1, None))
    assert judge_outcome(failed, (LATE, UNREAD, MISSING), "at").warnings == (*said, "artifact.missing: it is not there")


def test_a_limit_that_was_reached_explains_the_signal() -> None:
    killed = replace(RAN, status=WaitStatus(None, 9))
    reached = Finding(LIMIT_FINDING, Level.WARN, "memory", "the tree reached its 8 GiB")
    words = "the job ended with signal 9; the tree reached its 8 GiB"
    assert judge(killed, LATE, reached) == (Outcome.FAILED, 137, words)
