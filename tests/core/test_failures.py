"""A failure gets one class: counters before words, words before the bare exit code."""

from __future__ import annotations

import pytest

from holdfast.core.failures import SIGNALS, Traces, judge_failure
from holdfast.model.finding import Finding, Level
from holdfast.model.identity import WaitStatus
from holdfast.model.run import Ended, Outcome, Refusal, StopCause, StopRequest

pytestmark = [pytest.mark.pure, pytest.mark.requirement("POST-03")]


def ended(code: int | None = 1, signal: int | None = None, **fields: object) -> Ended:
    status = WaitStatus(code, signal)
    base: dict[str, object] = {
        "at": "2026-11-20T10:45:01.123Z",
        "outcome": Outcome.FAILED,
        "exit_code": status.exit_code,
    }
    base |= {"evidence": f"ended with {status.describe()}", "status": status}
    return Ended(**{**base, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tail", "name"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu_out_of_memory"),
        ("OSError: [Errno 28] No space left on device: 'x'", "disk_full"),
        (
            "ERROR: Unexpected bus error encountered in worker. Maybe insufficient shared memory (shm).",
            "shared_memory",
        ),
        ("Traceback\nMemoryError", "out_of_memory"),
        ("RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed.", "out_of_memory"),
        ("AssertionError: Torch not compiled with CUDA enabled", "gpu_unavailable"),
        ("[rank1] Watchdog caught collective operation timeout: WorkNCCL", "communication"),
        ("Traceback\nModuleNotFoundError: No module named 'torch'", "missing_package"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "missing_file"),
        ("PermissionError: [Errno 13] Permission denied: 'x'", "not_permitted"),
        ("OSError: [Errno 24] Too many open files", "open_files"),
        ("ValueError: x", "job_failed"),
        ("", "job_failed"),
    ],
)
def test_POST_03_the_last_words_decide(tail: str, name: str) -> None:
    verdict = judge_failure(ended(), Traces(tail=tail))
    assert verdict.failure_class == name
    assert verdict.remedy
    assert tail.rpartition("\n")[2][:60] in " ".join(verdict.evidence)


def test_POST_03_counters_come_before_words() -> None:
    traces = Traces("ModuleNotFoundError: x", oom_kills=2, memory_peak_bytes=2**30, memory_limit_bytes=2**30)
    verdict = judge_failure(ended(None, 9), traces)
    assert verdict.failure_class == "out_of_memory"
    assert "killed 2 of its processes" in verdict.evidence[1]
    assert len(judge_failure(ended(None, 9), Traces(oom_kills=1)).evidence) == 2
    assert judge_failure(ended(), Traces("ValueError", free_bytes=0)).failure_class == "disk_full"


@pytest.mark.parametrize("number", [6, 9, 11, 7, 64])
def test_POST_03_a_signal_is_named_with_its_meaning(number: int) -> None:
    verdict = judge_failure(ended(None, number), Traces())
    assert verdict.failure_class == f"signal_{number}"
    assert SIGNALS.get(number, (f"signal {number}",))[0] in verdict.evidence[1]


@pytest.mark.parametrize(("code", "name"), [(0, "result_missing"), (127, "exec_failed"), (126, "exec_failed")])
def test_POST_03_telling_codes(code: int, name: str) -> None:
    assert judge_failure(ended(code), Traces()).failure_class == name


@pytest.mark.parametrize("cause", list(StopCause))
def test_POST_03_every_stop_cause_has_a_class(cause: StopCause) -> None:
    verdict = judge_failure(ended(None, 15, request=StopRequest(cause, "me")), Traces())
    assert verdict.failure_class
    assert verdict.remedy


def test_POST_03_a_refusal_keeps_its_code_and_hint() -> None:
    finding = Finding("inputs", Level.FAIL, "/x", "does not exist", "put it there")
    refusal = Refusal("preflight", 78, "a check failed", "put it there", findings=(finding,))
    verdict = judge_failure(ended(None, None, status=None, refusal=refusal), Traces())
    assert (verdict.failure_class, verdict.remedy) == ("preflight", "put it there")
    assert "inputs /x: does not exist" in verdict.evidence
    assert judge_failure(ended(0, status=None, outcome=Outcome.LOST), Traces()).failure_class == "lost"
