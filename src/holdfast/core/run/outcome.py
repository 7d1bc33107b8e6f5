"""How a run ended, judged from what is proven (POST-05, POST-09, B-50).

Results that were to be copied and were not are a failure of their own, beside a training that succeeded.
In this order: it never ran; somebody or a deadline ended it; the training library says that it left before it was done;
its end was not witnessed; its own status; its results. Exit code 0 is not success until the declared results are there,
and a job that left with 0 because it was asked to leave was stopped, not finished.
"""

from __future__ import annotations

from holdfast.model.errors import EXIT_STOPPED, EXIT_TIMED_OUT, NotCopied, ResultMissing
from holdfast.model.finding import Finding, Level
from holdfast.model.run import Ended, Finalizing, Outcome, StopCause

from .stop_record import EXIT_PREEMPTED, describe_leaving, describe_saved, judge_leaving

EXIT_LOST = 71
"""The end was not witnessed (EX_OSERR of sysexits.h: the operating system took it)."""
LIMIT_FINDING = "limits.reached"
"""The id of a finding that says which limit the tree ran into: it explains a signal that nobody here sent (LIM-01)."""
MISMATCH_FINDING = "lease.mismatch"
"""The id of a finding that says that the job would have seen other cards than were leased (LEASE-09)."""
GONE_FINDING = "place.gone"
"""The id of a finding that says whose word it is that the run's place is gone."""
CAUSE_FINDING = "place.cause"
"""The id of a finding whose subject is why the place ended it: one of `WITNESSED`."""
NODE_FINDING = "nodes.failed"
"""The id of a finding that says which of several nodes failed first."""
COPY_FINDING = "results.copied"
"""The id of a finding about the copy of the results; its subject is where to."""
WITNESSED: dict[StopCause, tuple[Outcome, int]] = {
    StopCause.PREEMPTION: (Outcome.PREEMPTED, EXIT_PREEMPTED),
    StopCause.DEADLINE: (Outcome.TIMED_OUT, EXIT_TIMED_OUT),
    StopCause.SIGNAL: (Outcome.STOPPED, EXIT_STOPPED),
    StopCause.MEMORY: (Outcome.FAILED, 137),
}
"""Outcome and exit code of an end that only the place saw, by the cause that it tells (`PlaceGone.cause`)."""
EXPLAINING = (LIMIT_FINDING, MISMATCH_FINDING, GONE_FINDING, NODE_FINDING)
"""The ids of findings that belong to the evidence of an end."""
STOPPED_BY_TIME = (StopCause.DEADLINE, StopCause.MAX_HOLD, StopCause.STALLED)


def judge_outcome(final: Finalizing, findings: tuple[Finding, ...], at: str) -> Ended:
    """The end of a run whose tree is empty and whose results were looked at."""
    outcome, exit_code, evidence = _judge(final, findings)
    mild = (Level.WARN, Level.UNKNOWN) if outcome is Outcome.SUCCEEDED else (Level.WARN, Level.UNKNOWN, Level.FAIL)
    return Ended(
        at=at,
        outcome=outcome,
        exit_code=exit_code,
        evidence=evidence,
        status=final.status,
        refusal=final.refusal,
        request=final.request,
        started_at=final.started_at,
        stop=final.stop,
        warnings=tuple(f"{item.id}: {item.evidence}" for item in findings if item.level in mild),
    )


def _judge(final: Finalizing, findings: tuple[Finding, ...]) -> tuple[Outcome, int, str]:
    if final.refusal is not None:
        outcome = Outcome.TIMED_OUT if final.refusal.exit_code == EXIT_TIMED_OUT else Outcome.FAILED
        return outcome, final.refusal.exit_code, f"never ran: {final.refusal.message}"
    if final.request is not None:
        return _judge_stopped(final)
    reasons = [item.evidence for item in findings if item.id in EXPLAINING]
    if final.stop is not None:
        left = judge_leaving(final.stop, final.status)
        if left is not None:
            return left[0], left[1], "; ".join([left[2], *reasons])
        sent = final.status is not None and final.status.asked
        reasons.append(f"it wrote before: {describe_leaving(final.stop, sent=sent)}")
    if final.status is None:
        cause = next((item.subject for item in findings if item.id == CAUSE_FINDING), None)
        outcome, code = (Outcome.LOST, EXIT_LOST) if cause is None else WITNESSED[StopCause(cause)]
        return outcome, code, "; ".join([_describe_loss(final, told=bool(reasons)), *reasons])
    if final.status.code != 0:
        words = "; ".join([f"the job ended with {final.status.describe()}", *reasons])
        return Outcome.FAILED, final.status.exit_code, words
    if final.status.asked:
        words = "its supervisor was killed, so the job was asked to leave, and left with exit code 0"
        return Outcome.LOST, EXIT_LOST, "; ".join([words, *reasons])
    failed = [finding for finding in findings if finding.level is Level.FAIL]
    declared = any(finding.id == "artifact" for finding in findings)
    success = "exit code 0 and every declared result is in place" if declared else "exit code 0"
    copy = next((finding for finding in findings if finding.id == COPY_FINDING), None)
    if copy is not None and failed == [copy]:
        words = f"training succeeded ({success}); results were not copied to {copy.subject}: {copy.evidence}"
        return Outcome.FAILED, NotCopied.exit_code, words
    if failed:
        words = "; ".join(f"{item.id} {item.subject}: {item.evidence}" for item in failed)
        return Outcome.FAILED, ResultMissing.exit_code, f"exit code 0, but {words}"
    copied = "" if copy is None else f"; results copied to {copy.subject}: {copy.evidence}"
    return Outcome.SUCCEEDED, 0, f"{success}{copied}"


def _judge_stopped(final: Finalizing) -> tuple[Outcome, int, str]:
    request = final.request
    assert request is not None
    ending = _describe_end(final)
    detail = f" ({request.detail})" if request.detail else ""
    words = f"{request.words}{detail}; {ending}"
    if request.cause in STOPPED_BY_TIME:
        return Outcome.TIMED_OUT, EXIT_TIMED_OUT, words
    if request.cause is StopCause.PREEMPTION:
        return Outcome.PREEMPTED, EXIT_PREEMPTED, words
    if request.cause in (StopCause.OPERATOR, StopCause.SIGNAL):
        return Outcome.STOPPED, EXIT_STOPPED, words
    return Outcome.FAILED, final.status.exit_code or 1 if final.status else 1, words


def _describe_end(final: Finalizing) -> str:
    saved = "" if final.stop is None else f", {describe_saved(final.stop)}"
    if final.status is not None:
        return f"the job ended with {final.status.describe()}{saved}"
    return "the job had not started" if final.job is None else "the job is gone, its status was not witnessed"


def _describe_loss(final: Finalizing, *, told: bool) -> str:
    if final.job is None:
        why = "" if told else ": the box was restarted, or its records were lost"
        return f"the run was given up before its job started{why}"
    return (
        f"the job (pid {final.job.process.pid}) is gone and nobody witnessed its end: "
        "supervisor and keeper had both been killed, or the box was restarted"
    )
