"""The vanished ladder: every cause on its own evidence, and what could not be read is never taken for a no."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.run.outcome import MISMATCH_FINDING
from holdfast.diagnosis.ended.detect.table import LADDER, detect
from holdfast.diagnosis.ended.evidence import DiskChange, EndedEvidence, LevelChange
from holdfast.diagnosis.ended.judge import judge_evidence
from holdfast.diagnosis.evidence import (
    Answer,
    Detection,
    KernelEvent,
    KernelKind,
    KernelLog,
    LineRole,
    LogFacts,
    LogMatch,
    Reading,
)
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.model.finding import Finding, Level
from holdfast.model.record import replace
from holdfast.model.run import Outcome, Refusal, StopCause, StopRecord, StopRequest
from holdfast.model.verdict import Clue, Confidence, FailureClass, RetryPolicy, Verdict
from tests.diagnosis.ended.making import GIB, GROUP, RUN_ID, disk, ended, evidence, log_of, oom_event, said
from tests.each import each

pytestmark = pytest.mark.pure

UNREAD: Reading[Any] = Reading(unread="not permitted")
CARD = {"index": 0, "uuid": "GPU-1", "pci_bus_id": "00000000:3B:00.0", "faults": [], "ecc_uncorrectable": 0}


def words(kind: FailureClass, text: str = "said", confidence: Confidence = Confidence.LIKELY) -> Detection:
    return Detection("log.x", kind, Answer.YES, confidence, (Clue(text, "output.log"),))


def verdict_of(found: EndedEvidence) -> Verdict:
    verdict, ladder = judge_evidence(found)
    assert verdict is not None
    assert {item.detector for item in ladder} >= set(LADDER) - {"WORDS"}
    return verdict


def kind_of(found: EndedEvidence) -> tuple[FailureClass, Confidence, str]:
    verdict = verdict_of(found)
    assert isinstance(verdict.kind, FailureClass)
    return verdict.kind, verdict.confidence, verdict.detector


CERTAIN, LIKELY, POSSIBLE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE
SETUP = "line 2 of setup failed with exit code 7: module load cuda"
F = FailureClass


@pytest.mark.requirement("DIAG-02", "FAIL-04", "FAIL-09", "FAIL-14")
@each(
    ("found", "expected"),
    [
        (evidence(ended(None, 9), own_kills=Reading(1)), (F.OUT_OF_MEMORY, CERTAIN, "V1")),
        (evidence(ended(137), own_kills=Reading(3)), (F.OUT_OF_MEMORY, CERTAIN, "V1")),
        (evidence(ended(1), own_kills=Reading(1)), (F.OUT_OF_MEMORY, LIKELY, "V1")),
        (evidence(ended(None, None), own_kills=Reading(1)), (F.OUT_OF_MEMORY, LIKELY, "V1")),
        (evidence(ended(None, 9), own_kills=UNREAD, kernel=log_of(oom_event())), (F.OUT_OF_MEMORY, CERTAIN, "V1")),
        (
            evidence(ended(1), own_kills=UNREAD, kernel=log_of(oom_event(pid=77, group=f"/x/{GROUP}"))),
            (F.OUT_OF_MEMORY, CERTAIN, "V1"),
        ),
        (
            evidence(
                ended(None, 9), own_kills=UNREAD, host_kills=Reading(1), kernel=log_of(oom_event("CONSTRAINT_NONE"))
            ),
            (F.OUT_OF_MEMORY, CERTAIN, "V2"),
        ),
        (evidence(ended(None, 9), own_kills=UNREAD, host_kills=Reading(2)), (F.OUT_OF_MEMORY, POSSIBLE, "V2")),
        (
            evidence(
                ended(None, 15), killers=Reading(('earlyoom[9]: sending SIGTERM to process 4242 uid 0 "python"',))
            ),
            (F.OUT_OF_MEMORY, CERTAIN, "V3"),
        ),
        (evidence(ended(None, 9)), (F.KILLED, LIKELY, "V9")),
        (evidence(ended(137)), (F.KILLED, LIKELY, "V9")),
        (evidence(ended(None, 15)), (F.KILLED, LIKELY, "V9")),
        (evidence(ended(143)), (F.KILLED, LIKELY, "V9")),
        (evidence(ended(None, 2)), (F.KILLED, LIKELY, "V9")),
        (evidence(ended(None, 9), own_kills=UNREAD, host_kills=UNREAD), (F.KILLED, POSSIBLE, "V9")),
        (evidence(ended(None, None), rebooted=Reading(True)), (F.REBOOT, CERTAIN, "V7")),
        (evidence(ended(None, None), init_restarted=Reading(True)), (F.CONTAINER_RESTART, CERTAIN, "V7C")),
        (evidence(ended(None, None)), (F.SUPERVISOR_LOST, LIKELY, "V14")),
        (evidence(ended(None, None), rebooted=UNREAD, init_restarted=UNREAD), (F.SUPERVISOR_LOST, LIKELY, "V14")),
        (evidence(ended(None, 1)), (F.HANG_UP, LIKELY, "V8")),
        (evidence(ended(None, 1), session={"ssh": True, "hangup_ignored": True}), (F.HANG_UP, CERTAIN, "V8")),
        (evidence(ended(1), **said(words(F.HANG_UP))), (F.HANG_UP, LIKELY, "V8")),
        (evidence(ended(1), **said(words(F.TIMED_OUT))), (F.TIMED_OUT, LIKELY, "V10")),
        (evidence(ended(1), **said(words(F.PREEMPTED))), (F.PREEMPTED, LIKELY, "V10")),
        (evidence(ended(124)), (F.TIMED_OUT, POSSIBLE, "V10")),
        (evidence(ended(174)), (F.UNKNOWN, POSSIBLE, "")),
        (evidence(ended(None, 11)), (F.NATIVE_CRASH, CERTAIN, "V11")),
        (evidence(ended(139)), (F.NATIVE_CRASH, LIKELY, "V11")),
        (evidence(ended(None, 6)), (F.NATIVE_CRASH, LIKELY, "V11")),
        (evidence(ended(None, 6), **said(words(F.COMMUNICATION))), (F.COMMUNICATION, LIKELY, "log.x")),
        (evidence(ended(None, 7)), (F.SHARED_MEMORY, LIKELY, "V5")),
        (evidence(ended(None, 7), **said(words(F.SHARED_MEMORY))), (F.SHARED_MEMORY, CERTAIN, "V5")),
        (evidence(ended(129), session={"ssh": True}), (F.HANG_UP, LIKELY, "V8")),
        (evidence(ended(135)), (F.SHARED_MEMORY, POSSIBLE, "V5")),
        (evidence(ended(152)), (F.RESOURCE_LIMIT, LIKELY, "V4")),
        (evidence(ended(None, 24)), (F.RESOURCE_LIMIT, CERTAIN, "V4")),
        (evidence(ended(None, 25)), (F.RESOURCE_LIMIT, CERTAIN, "V4")),
        (
            evidence(ended(1), rlimits={"as": GIB}, **said(words(F.OUT_OF_MEMORY), exception="MemoryError")),
            (F.RESOURCE_LIMIT, LIKELY, "V4"),
        ),
        (evidence(ended(1), **said(words(F.RESOURCE_LIMIT))), (F.RESOURCE_LIMIT, LIKELY, "log.x")),
        (evidence(ended(1), **said(words(F.GPU_OUT_OF_MEMORY))), (F.GPU_OUT_OF_MEMORY, LIKELY, "V6")),
        (evidence(ended(1), **said(exception="KeyError: 'lr'")), (F.BUG, LIKELY, "V12")),
        (
            evidence(ended(1), **said(words(F.ENVIRONMENT), exception="ImportError: x")),
            (F.ENVIRONMENT, LIKELY, "log.x"),
        ),
        (evidence(ended(127)), (F.EXEC_FAILED, LIKELY, "A4")),
        *[
            (evidence(ended(7), **said(*found, tail=f"x\n{SETUP}\n", exception=thrown)), (kind, CERTAIN, "A7"))
            for found, thrown, kind in (
                ((), "", F.ENVIRONMENT),
                ((), "KeyError: 1", F.BUG),
                ((words(F.ENVIRONMENT),), "ImportError: x", F.ENVIRONMENT),
                ((words(F.TRANSIENT),), "", F.TRANSIENT),
            )
        ],
        (evidence(ended(3), **said(tail=f"{SETUP}\n")), (F.UNKNOWN, POSSIBLE, "")),
        (evidence(ended(3)), (F.UNKNOWN, POSSIBLE, "")),
        (evidence(ended(1), disks=(disk(free=0),), **said(words(F.DISK_FULL))), (F.DISK_FULL, CERTAIN, "D1")),
        (evidence(ended(1), **said(words(F.DISK_FULL))), (F.DISK_FULL, LIKELY, "D1")),
        (evidence(ended(1), disks=(disk(free=0),)), (F.DISK_FULL, POSSIBLE, "D1")),
        (evidence(ended(1), disks=(disk(free_inodes=0),), **said(words(F.DISK_FULL))), (F.DISK_FULL, CERTAIN, "D2")),
        (evidence(ended(1), disks=(disk(free=0, role="data"),)), (F.UNKNOWN, POSSIBLE, "")),
        (
            evidence(ended(1), disks=(disk(read_only=True, was_read_only=False),), **said(words(F.STORAGE_FAULT))),
            (F.STORAGE_FAULT, CERTAIN, "D4"),
        ),
        (evidence(ended(1), heartbeat={"nonfinite": 9}), (F.DIVERGED, LIKELY, "C1")),
    ],
)
def test_DIAG_02_each_cause_has_its_class_and_confidence(
    found: EndedEvidence, expected: tuple[FailureClass, Confidence, str]
) -> None:
    assert kind_of(found) == expected


FAREWELL = "holdfast: stopped at step 7 (operator: anna); its next attempt continues from step-7"
ASKED = {"request": StopRequest(StopCause.OPERATOR, "anna")}
LEFT = {"stop": StopRecord(why="signal", detail="SIGTERM", step=7, saved=True)}


@each(
    ("end", "raised", "also"),
    [
        (ASKED, "", ()),
        (LEFT, "", ()),
        (ASKED, "KeyError: 'lr'", ("bug: KeyError: 'lr'  [traceback]",)),
    ],
)
def test_that_a_run_says_of_its_stop_that_it_stops_is_no_bug_of_it(
    end: dict[str, Any], raised: str, also: tuple[str, ...]
) -> None:
    log = Reading(LogFacts("output.log", 9, exception=raised, tail=FAREWELL))
    judged = () if raised else judge_log(log)
    verdict = verdict_of(evidence(ended(143, **end), log=log, words=judged))
    assert (verdict.confidence, verdict.others) == (CERTAIN, also)


def test_a_complaint_of_a_run_that_nobody_asked_to_stop_is_its_own() -> None:
    log = Reading(LogFacts("output.log", 9, tail="stopped: the data is corrupt"))
    assert kind_of(evidence(ended(3), log=log, words=judge_log(log))) == (F.BUG, POSSIBLE, "V12")


@pytest.mark.gotcha("U3")
@pytest.mark.requirement("DIAG-02", "FAIL-14", "B-22")
def test_DIAG_02_an_unreadable_kernel_log_and_counters_never_say_that_it_was_no_oom() -> None:
    verdict = verdict_of(evidence(ended(None, 9), own_kills=UNREAD, host_kills=UNREAD, kernel=UNREAD, killers=UNREAD))
    assert verdict.kind is F.KILLED
    assert verdict.confidence is POSSIBLE
    assert not [clue for clue in verdict.evidence_against if "out_of_memory" in clue.text]
    unknown = " ".join(clue.text for clue in verdict.unknown)
    for what in ("OOM counter of its control group", "OOM counter of the box", "kernel log", "memory daemons"):
        assert what in unknown


@pytest.mark.requirement("DIAG-02")
def test_DIAG_02_a_kernel_log_whose_beginning_is_gone_proves_nothing() -> None:
    lost = Reading(KernelLog(lost=True, first_seconds=900.0))
    found = evidence(ended(None, 9), own_kills=UNREAD, host_kills=UNREAD, kernel=lost, kernel_from_s=10.0)
    assert found.kernel_unread
    assert "beginning was overwritten" in " ".join(clue.text for clue in verdict_of(found).unknown)


@pytest.mark.requirement("FAIL-14")
def test_FAIL_14_137_without_a_counter_is_a_kill_from_outside_and_no_oom() -> None:
    verdict = verdict_of(evidence(ended(137)))
    assert (verdict.kind, verdict.retry) == (F.KILLED, RetryPolicy.NEVER)
    assert "out_of_memory" not in verdict.also
    ruled_out = [clue.text for clue in verdict.evidence_against]
    assert "not out_of_memory: the OOM counter of its control group did not move" in ruled_out
    assert "do not change its configuration" in verdict.action


@pytest.mark.requirement("FAIL-14")
def test_a_look_long_after_the_end_does_not_use_counters_of_others() -> None:
    found = evidence(ended(None, 9), own_kills=UNREAD, host_kills=Reading(4), looked_s=9000.0)
    assert verdict_of(found).kind is F.KILLED
    calm = evidence(ended(None, 9), own_kills=UNREAD, host_kills=Reading(0), looked_s=9000.0)
    assert Answer.NO not in [item.answer for item in detect(calm) if item.detector in ("V1", "V2")]


def test_a_neighbours_kill_in_a_shared_group_is_only_a_possibility() -> None:
    level = LevelChange("/sys/fs/cgroup/memory/box", Reading(1))
    found = evidence(ended(None, 9), own_kills=UNREAD, host_kills=UNREAD, levels=(level,))
    assert kind_of(found) == (F.OUT_OF_MEMORY, POSSIBLE, "V1")
    assert kind_of(evidence(ended(3), own_kills=UNREAD, host_kills=UNREAD, levels=(level,)))[0] is F.UNKNOWN


@pytest.mark.requirement("FAIL-14")
def test_others_killed_on_the_box_do_not_make_it_an_oom() -> None:
    verdict = verdict_of(evidence(ended(None, 9), host_kills=Reading(7), kernel=log_of(oom_event(pid=9))))
    assert verdict.kind is F.KILLED
    assert "it did kill others on this box" in " ".join(clue.text for clue in verdict.evidence_against)


def test_a_forged_line_of_the_kernel_log_proves_nothing() -> None:
    found = evidence(ended(None, 9), own_kills=UNREAD, host_kills=UNREAD, kernel=log_of(oom_event(trusted=False)))
    assert verdict_of(found).kind is F.KILLED


@each("used", [1.0, 0.96])
def test_a_peak_that_a_limit_cut_off_does_not_say_how_much_is_needed(used: float) -> None:
    found = evidence(ended(None, 9), own_kills=Reading(1), peak_bytes=int(used * GIB), limit_bytes=GIB)
    action = verdict_of(found).action
    assert "(now 1 GiB; all of it was in use, so how much is needed is not known; try 2 GiB)" in action
    assert f"holdfast restart {RUN_ID} --limit-memory 2GiB" in action
    assert "a fifth more" not in action


@each(("cards", "told"), [(False, False), (True, True), (None, True)])
def test_of_a_batch_that_lives_on_a_card_is_spoken_only_where_there_may_be_one(cards: bool | None, told: bool) -> None:
    action = verdict_of(evidence(ended(None, 9), own_kills=Reading(1), has_cards=cards)).action
    assert ("it lives on the card" in action) == told
    assert action.endswith("result another experiment" if told else f"holdfast restart {RUN_ID}")


def test_a_request_for_memory_that_the_system_refused_is_no_reason_to_set_a_limit() -> None:
    for limit, why in ((None, "no memory limit is set"), (GIB, "its limit of 1 GiB was not reached")):
        fields = said(words(F.OUT_OF_MEMORY, "MemoryError"))
        verdict = verdict_of(evidence(ended(1), peak_bytes=GIB // 100, limit_bytes=limit, has_cards=False, **fields))
        assert verdict.kind is F.OUT_OF_MEMORY
        assert verdict.action.startswith("see how much it asks for at the line that failed")
        assert why in verdict.action
        assert "limit-memory" not in verdict.action


@pytest.mark.requirement("FAIL-04", "SLM-10")
@pytest.mark.gotcha("SLURM4")
def test_FAIL_04_a_killed_worker_makes_it_certain_and_the_number_of_kills_is_not_told() -> None:
    line = "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly"
    match = LogMatch("worker", LineRole.CASCADE, None, line, 0)
    log = Reading(LogFacts("output.log", 9, matches=(match,), exception=line))
    verdict = verdict_of(evidence(ended(1), own_kills=Reading(3), log=log, peak_bytes=GIB, limit_bytes=2 * GIB))
    assert (verdict.kind, verdict.confidence) == (F.OUT_OF_MEMORY, CERTAIN)
    assert "do not shrink the batch" in verdict.action
    assert "now 2 GiB; 1.2 GiB is a fifth more than was seen in use, and what lasts a moment is not" in verdict.action
    assert not any("3" in clue.text for clue in verdict.evidence_for)


@pytest.mark.requirement("SLM-08", "SLM-10")
@pytest.mark.parametrize(
    ("outcome", "code", "kind"),
    [
        (Outcome.FAILED, 137, F.OUT_OF_MEMORY),
        (Outcome.TIMED_OUT, 124, F.TIMED_OUT),
        (Outcome.PREEMPTED, 143, F.PREEMPTED),
        (Outcome.STOPPED, 130, F.STOPPED),
    ],
)
def test_SLM_08_an_end_that_only_the_scheduler_saw_is_of_the_class_that_it_tells(
    outcome: Outcome, code: int, kind: FailureClass
) -> None:
    words = "Slurm: job 7 used more memory than it was given: OUT_OF_MEMORY"
    found = evidence(ended(None, outcome=outcome, exit_code=code, evidence=words), own_kills=UNREAD, host_kills=UNREAD)
    verdict = verdict_of(found)
    assert (verdict.kind, verdict.confidence) == (kind, LIKELY)
    assert words in verdict.evidence_for[0].text
    assert ("do not shrink the batch" in verdict.action) == (kind is F.OUT_OF_MEMORY)


def test_an_exception_of_its_own_goes_before_an_early_kill_of_a_child() -> None:
    found = evidence(ended(1), own_kills=Reading(1), **said(exception="KeyError: 'lr'"))
    verdict = verdict_of(found)
    assert (verdict.kind, verdict.also) == (F.BUG, ("out_of_memory",))


@pytest.mark.requirement("FAIL-14")
@pytest.mark.parametrize(
    "earlier",
    [
        {"earlier_kills": 2},
        {"kernel": log_of(oom_event(pid=77, group=f"/x/{GROUP}")), "kernel_until_s": 500.0},
    ],
)
def test_a_kill_of_a_worker_that_was_survived_is_not_the_kill_of_the_job(earlier: dict[str, Any]) -> None:
    verdict = verdict_of(evidence(ended(None, 9), own_kills=Reading(2), **earlier))
    assert (verdict.kind, verdict.confidence, verdict.also) == (F.KILLED, LIKELY, ("out_of_memory",))
    assert any("well before the end" in clue.text for clue in verdict.evidence_for)


@pytest.mark.requirement("FAIL-14")
@pytest.mark.parametrize(
    "close",
    [
        {"earlier_kills": 1},
        {"kernel": log_of(oom_event(pid=77, group=f"/x/{GROUP}")), "kernel_until_s": 70.0},
        {"kernel": log_of(oom_event(group=f"/x/{GROUP}")), "kernel_until_s": 70.0},
    ],
)
def test_a_kill_at_the_end_is_the_end(close: dict[str, Any]) -> None:
    assert kind_of(evidence(ended(None, 9), own_kills=Reading(2), **close)) == (F.OUT_OF_MEMORY, CERTAIN, "V1")


def test_a_named_kill_of_a_worker_does_not_hide_an_exception_of_the_jobs_own() -> None:
    log = log_of(oom_event(pid=77, group=f"/x/{GROUP}"))
    verdict = verdict_of(evidence(ended(1), own_kills=Reading(1), kernel=log, **said(exception="KeyError: 'lr'")))
    assert (verdict.kind, verdict.also) == (F.BUG, ("out_of_memory",))


@pytest.mark.requirement("FAIL-14")
def test_words_of_an_oom_that_no_counter_saw_do_not_explain_a_sigkill() -> None:
    kind, confidence, _ = kind_of(evidence(ended(None, 9), **said(words(F.OUT_OF_MEMORY))))
    assert (kind, confidence) == (F.KILLED, LIKELY)
    assert kind_of(evidence(ended(1), **said(words(F.OUT_OF_MEMORY))))[0] is F.OUT_OF_MEMORY


def test_words_that_were_survived_do_not_explain_a_signal_from_outside() -> None:
    steps = "".join(f"step {number}\n" for number in range(99))
    line = "CUDA out of memory"
    told = replace(words(F.GPU_OUT_OF_MEMORY), facts={"line": line})
    survived = Reading(LogFacts("output.log", 999, tail=f"{line}\n{steps}"))
    last = Reading(LogFacts("output.log", 999, tail=f"{steps}{line}\n"))
    assert kind_of(evidence(ended(None, 9), words=(told,), log=survived))[0] is F.KILLED
    assert kind_of(evidence(ended(None, 9), words=(told,), log=last))[0] is F.GPU_OUT_OF_MEMORY
    assert kind_of(evidence(ended(1), words=(told,), log=survived))[0] is F.GPU_OUT_OF_MEMORY


@pytest.mark.requirement("FAIL-09")
@each("cause", list(StopCause))
def test_FAIL_09_every_stop_cause_has_a_class(cause: StopCause) -> None:
    found = evidence(ended(None, 9, request=StopRequest(cause, "anna")), own_kills=Reading(1))
    kind, confidence, detector = kind_of(found)
    assert (confidence, detector) == (CERTAIN, "A2")
    wanted = {StopCause.DEADLINE: F.TIMED_OUT, StopCause.OPERATOR: F.STOPPED, StopCause.PREEMPTION: F.PREEMPTED}
    assert kind is wanted.get(cause, kind)


def test_a_stop_for_a_stall_says_where_it_stood_or_why_that_is_not_known() -> None:
    end = ended(None, 15, request=StopRequest(StopCause.STALLED, "holdfast"))
    verdict = verdict_of(evidence(end, stood=Reading(("wait (train.py:12)",))))
    assert any("it stood in wait (train.py:12)" in clue.text for clue in verdict.evidence_for)
    assert verdict.action.startswith("see why it stood in wait (train.py:12)")
    unread = verdict_of(evidence(end, stood=Reading(unread="1 of 2 processes did not write their stacks")))
    assert any("1 of 2 processes did not write" in clue.text for clue in unread.unknown)
    assert "threads.txt" in unread.action


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("signal", F.PREEMPTED),
        ("deadline", F.TIMED_OUT),
        ("operator", F.STOPPED),
        ("memory", F.OUT_OF_MEMORY),
        ("nonfinite", F.DIVERGED),
        ("save_failed", F.STORAGE_FAULT),
    ],
)
def test_what_the_training_wrote_on_leaving_counts_where_its_status_agrees(why: str, kind: FailureClass) -> None:
    stop = StopRecord(why, "SIGTERM", step=4, saved=True)
    oom = said(words(F.GPU_OUT_OF_MEMORY))
    assert kind_of(evidence(ended(143, stop=stop), **oom)) == (kind, CERTAIN, "A3")


def test_a_crash_while_leaving_in_good_order_is_the_crash() -> None:
    stop = StopRecord("signal", "SIGTERM", step=4, saved=True)
    assert kind_of(evidence(ended(None, 11, stop=stop)))[0] is F.NATIVE_CRASH


def test_a_training_that_left_because_of_a_hang_up_says_so() -> None:
    stop = StopRecord("signal", "SIGHUP", saved=True)
    assert kind_of(evidence(ended(143, stop=stop)))[0] is F.HANG_UP


def test_an_exception_known_from_its_own_record_only() -> None:
    stop = StopRecord("exception", traceback="Traceback\n  File\nOddError: what now\n")
    verdict = verdict_of(evidence(ended(1, stop=stop)))
    assert verdict.kind is F.BUG
    assert "OddError: what now" in [clue.text for clue in verdict.evidence_for]


def test_a_refusal_keeps_its_words_and_hint_and_asks_nothing_else() -> None:
    finding = Finding("inputs", Level.FAIL, "/x", "does not exist", "put it there")
    refusal = Refusal("preflight", 78, "a check failed", "put it there", findings=(finding,))
    end = ended(None, None, refusal=refusal, started_at=None, outcome=Outcome.FAILED)
    verdict = verdict_of(evidence(end, kernel=UNREAD, log=UNREAD))
    assert (verdict.kind, verdict.action, verdict.unknown) == (F.REFUSED, "put it there", ())
    assert "inputs /x: does not exist" in [clue.text for clue in verdict.evidence_for]
    exec_failed = ended(None, None, refusal=Refusal("exec", 127, "no such file"), started_at=None)
    assert verdict_of(evidence(exec_failed)).kind is F.EXEC_FAILED


@pytest.mark.requirement("FAIL-05")
def test_FAIL_05_only_a_co_tenant_makes_a_retry_thinkable() -> None:
    fields = said(words(F.GPU_OUT_OF_MEMORY))
    alone = verdict_of(evidence(ended(1), cards=(CARD,), cards_before=(CARD,), **fields))
    assert alone.retry is RetryPolicy.NEVER
    assert "no other process was on its cards when it had ended" in [clue.text for clue in alone.evidence_against]
    shared = verdict_of(evidence(ended(1), cards=(CARD,), tenants=("pid 9 bob 20 GiB x on card 0",), **fields))
    assert shared.retry is RetryPolicy.WHEN_ALONE
    assert "pid 9 bob 20 GiB" in shared.action
    unread = verdict_of(evidence(ended(1), cards_unread="the cards were not read at the end", **fields))
    assert "who else was on the cards" in " ".join(clue.text for clue in unread.unknown)


def xid(code: int, pci: str = "0000:3b:00.0", *, trusted: bool = True) -> KernelEvent:
    text = f"NVRM: Xid (PCI:{pci}): {code}, pid=4242"
    return KernelEvent(KernelKind.XID, 5.0, text, trusted=trusted, values={"code": str(code), "pci": pci})


@pytest.mark.gotcha("U22")
@pytest.mark.requirement("FAIL-07")
def test_FAIL_07_a_fatal_xid_on_our_card_is_hardware_and_nothing_else_is() -> None:
    def judged(**fields: Any) -> Verdict:
        return verdict_of(evidence(ended(1), cards_before=(CARD,), cards=(CARD,), **fields))

    lost = judged(kernel=log_of(xid(79)))
    assert (lost.kind, lost.confidence, lost.retry, lost.cards) == (
        F.HARDWARE,
        CERTAIN,
        RetryPolicy.ELSEWHERE,
        ("GPU-1",),
    )
    assert "quarantine GPU-1" in lost.action
    assert "do not debug the code" in lost.action
    for harmless in (xid(45), xid(79, "0000:af:00.0"), xid(79, trusted=False)):
        assert judged(kernel=log_of(harmless)).kind is F.UNKNOWN
    broken = {**CARD, "faults": ["ecc_uncorrectable: 2 errors"]}
    assert verdict_of(evidence(ended(1), cards_before=(CARD,), cards=(broken,))).kind is F.HARDWARE
    assert verdict_of(evidence(ended(1), cards_before=(broken,), cards=(broken,))).kind is F.UNKNOWN
    unread = judged(kernel=UNREAD)
    assert "Xid lines" in " ".join(clue.text for clue in unread.unknown)


@pytest.mark.requirement("FAIL-13")
def test_FAIL_13_a_success_is_only_doubted_for_a_reason() -> None:
    good = ended(0)
    assert (
        judge_evidence(evidence(good, own_kills=Reading(1), **said(words(F.DISK_FULL), exception="KeyError: 1")))[0]
        is None
    )
    fast = Finding("duration", Level.WARN, "duration", "took 1 s, expected 1h: suspiciously fast")
    assert verdict_of(evidence(good, findings=(fast,))).kind is F.SUSPICIOUS_FINISH
    assert verdict_of(evidence(good, duration_s=1.0, expected_s=60.0)).kind is F.SUSPICIOUS_FINISH
    assert judge_evidence(evidence(good, duration_s=59.0, expected_s=60.0))[0] is None
    assert verdict_of(evidence(good, heartbeat={"step": 9, "planned_steps": 10})).kind is F.SUSPICIOUS_FINISH
    assert judge_evidence(evidence(good, heartbeat={"step": 10, "planned_steps": 10}))[0] is None
    assert verdict_of(evidence(good, heartbeat={"nonfinite": 3})).kind is F.DIVERGED


def test_a_missing_result_and_a_foreign_card_are_named() -> None:
    missing = Finding("artifact", Level.FAIL, "x", "is not there")
    assert kind_of(evidence(ended(0, outcome=Outcome.FAILED), findings=(missing,))) == (F.RESULT_MISSING, CERTAIN, "A5")
    wrong = Finding(MISMATCH_FINDING, Level.FAIL, "CUDA_VISIBLE_DEVICES", "a login file sets it")
    assert kind_of(evidence(ended(78), findings=(wrong,)))[0] is F.LEASE_MISMATCH


@pytest.mark.requirement("FAIL-03")
@pytest.mark.parametrize(
    ("line", "detector"),
    [
        ("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0", "D5"),
        ("OSError: [Errno 122] Disk quota exceeded: '/q/x'", "D3"),
    ],
)
def test_FAIL_03_a_broken_write_is_storage_and_no_bug(line: str, detector: str) -> None:
    match = LogMatch("disk", LineRole.ROOT, F.DISK_FULL, line, 0)
    log = Reading(LogFacts("output.log", 9, matches=(match,), exception=line))
    verdict = verdict_of(evidence(ended(1), log=log, words=(words(F.DISK_FULL, line),)))
    assert (verdict.kind, verdict.retry) == (F.DISK_FULL, RetryPolicy.AFTER_SCRATCH)
    assert detector in [
        item.detector
        for item in detect(evidence(ended(1), log=log, words=(words(F.DISK_FULL),)))
        if item.answer is Answer.YES
    ]
    full = evidence(ended(1), log=log, words=(words(F.DISK_FULL, line),), disks=(disk("/ckpt", 0, "checkpoints"),))
    assert verdict_of(full).confidence is CERTAIN
    assert "/ckpt" in verdict_of(full).action


@each(
    ("line", "named"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/mnt/a b/x.pt'",
            "the file system of /mnt/a b/x.pt (df, df -i)",
        ),
        ("open /var/lib/x: no space left on device", "the file system of /var/lib/x (df, df -i)"),
        ("OSError: [Errno 28] No space left on device", "the disk that it wrote to: those of the run have room"),
    ],
)
def test_a_full_disk_that_is_none_of_the_runs_is_named_by_the_file(line: str, named: str) -> None:
    told = replace(words(F.DISK_FULL, line), facts={"line": line})
    verdict = verdict_of(evidence(ended(1), **said(told)))
    assert verdict.action.startswith(f"free space or inodes on {named}")
    assert any("free now" in clue.text for clue in verdict.evidence_against)


def test_a_segfault_names_the_library_from_the_kernel_log() -> None:
    values = {"library": "libnccl.so.2", "address": "0"}
    event = KernelEvent(
        KernelKind.SEGFAULT, 5.0, "python[4242]: segfault at 0 in libnccl.so.2", pid=4242, values=values
    )
    assert "libnccl.so.2" in verdict_of(evidence(ended(None, 11), kernel=log_of(event))).action
    unread = verdict_of(evidence(ended(None, 11), kernel=UNREAD))
    assert unread.kind is F.NATIVE_CRASH
    assert any("which library crashed" in clue.text for clue in unread.unknown)


def test_a_scheduler_around_a_kill_is_named_as_a_possibility() -> None:
    verdict = verdict_of(evidence(ended(None, 15), scheduler="Slurm job 7"))
    assert (verdict.kind, verdict.also) == (F.KILLED, ("preempted",))


def test_secrets_do_not_come_through_a_verdict() -> None:
    verdict = verdict_of(evidence(ended(1), **said(exception="ValueError: HF_TOKEN=abcdefsecret1")))
    assert "abcdefsecret1" not in str(verdict)


def io_error(device: str, seconds: float = 60.0) -> KernelEvent:
    line = f"I/O error, dev {device}, sector 348224 op 0x0:(READ)"
    return KernelEvent(KernelKind.IO_ERROR, seconds, line, values={"device": device}, trusted=True)


@pytest.mark.requirement("DIAG-02", "FAIL-01", "FAIL-14")
def test_DIAG_02_a_device_of_others_is_no_cause_of_this_end() -> None:
    ours = disk("/data/run", devices=("nvme0n1", "nvme0n1p2"))

    def judged(device: str, *disks: DiskChange, **fields: Any) -> Verdict:
        return verdict_of(evidence(ended(4), kernel=log_of(io_error(device)), disks=disks, **fields))

    foreign = judged("loop2", ours, disk("/dev/shm", devices=()))
    assert (foreign.kind, "loop2" in str(foreign)) == (F.UNKNOWN, False)
    own = judged("nvme0n1", ours)
    assert (own.kind, own.confidence) == (F.STORAGE_FAULT, POSSIBLE)
    assert own.action.startswith("stop writing to /data/run,")
    # Where the devices behind the run's disks cannot be told, that is said; it is no verdict either.
    untold = judged("loop2", ours, disk("/", devices=None))
    assert untold.kind is F.UNKNOWN
    assert any("loop2" in clue.text for clue in untold.unknown)
    # A foreign line proves nothing of an error that the job met, and an action names no path that there is not.
    said_so = judged("loop2", ours, **said(words(F.STORAGE_FAULT)))
    assert (said_so.kind, said_so.confidence) == (F.STORAGE_FAULT, LIKELY)
    assert said_so.action.startswith("stop writing to the disk that failed,")
    assert judged("nvme0n1", ours, **said(words(F.STORAGE_FAULT))).confidence is CERTAIN
