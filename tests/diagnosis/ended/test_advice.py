"""What a verdict tells a person to do, of ends whose advice once led astray: the words, by whole outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.diagnosis.ended.judge import judge_evidence
from holdfast.diagnosis.logs.attribute import judge_log
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.record import replace
from holdfast.model.verdict import Confidence, FailureClass, Verdict
from tests.each import each

from .making import GIB, RUN_ID, ended, evidence

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-01")]

TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n    main()\n'
ABORTED = "step 3\nterminate called after throwing an instance of '{}'\n  what():  {}\n"
UNREADY = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized\n"
)
GPU_MEMORY, ENVIRONMENT, BUG = FailureClass.GPU_OUT_OF_MEMORY, FailureClass.ENVIRONMENT, FailureClass.BUG
POSSIBLE, LIKELY = Confidence.POSSIBLE, Confidence.LIKELY


def judge(root: Path, output: str, code: int | None = 1, signal: int | None = None, **known: Any) -> Verdict:
    path = root / "output.log"
    path.write_text(output, encoding="utf-8")
    log = read_log(str(path))
    end = ended(None if signal else code, signal)
    found = judge_evidence(replace(evidence(end), log=log, words=judge_log(log), **known))[0]
    assert found is not None
    return found


@each("words", ["RuntimeError: can't start new thread", "bash: fork: retry: Resource temporarily unavailable"])
def test_a_limit_of_tasks_that_the_job_set_is_raised_by_a_restart(tmp_path: Path, words: str) -> None:
    told = judge(tmp_path, f"{words}\n", tasks_limit=10)
    assert (told.kind, told.confidence) == (FailureClass.RESOURCE_LIMIT, LIKELY)
    assert f"raise limits.tasks, which counts both (now 10; " in told.action
    assert told.action.endswith(f"holdfast restart {RUN_ID} --limit-tasks 20")
    free = judge(tmp_path, f"{words}\n")
    assert "limits.tasks where the job has one, else `ulimit -u`" in free.action
    assert "--limit-tasks" not in free.action


@each(
    ("words", "kind", "sure", "action"),
    [
        ("CUDA error: all CUDA-capable devices are busy or unavailable", ENVIRONMENT, LIKELY, "compute mode"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", ENVIRONMENT, LIKELY, "compute mode"),
        ("CUDA error: unknown error", ENVIRONMENT, POSSIBLE, "a Xid of this card"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `x`", GPU_MEMORY, POSSIBLE, "memory was full"),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", GPU_MEMORY, POSSIBLE, "an index or label"),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `x`", BUG, POSSIBLE, "CUDA_LAUNCH_BLOCKING=1"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", BUG, POSSIBLE, "CUDA_LAUNCH_BLOCKING=1"),
        (UNREADY.removeprefix("RuntimeError: ").strip(), ENVIRONMENT, LIKELY, "nvidia-fabricmanager"),
    ],
)
def test_trouble_of_a_card_or_its_driver_is_not_called_the_jobs_own(
    tmp_path: Path, words: str, kind: FailureClass, sure: Confidence, action: str
) -> None:
    told = judge(tmp_path, f"{TRACE}RuntimeError: {words}\n")
    assert (told.kind, told.confidence) == (kind, sure)
    assert action in told.action


@each(
    ("words", "kind"),
    [
        ("CUDA error: device-side assert triggered", BUG),
        ("CUDA error: an illegal memory access was encountered", BUG),
        ("CUDA error: out of memory", GPU_MEMORY),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", GPU_MEMORY),
        ("CUDA error: unknown error", ENVIRONMENT),
    ],
)
def test_a_cpp_exception_that_nobody_caught_is_judged_by_its_text(
    tmp_path: Path, words: str, kind: FailureClass
) -> None:
    text = ABORTED.format("c10::Error", words)
    assert judge(tmp_path, text, signal=6).kind is kind
    same = judge(tmp_path, f"{TRACE}RuntimeError: {words}\n")
    assert judge(tmp_path, text, signal=6).action == same.action


def test_an_abort_whose_text_no_rule_knows_stays_a_crash(tmp_path: Path) -> None:
    told = judge(tmp_path, ABORTED.format("std::out_of_range", "vector::_M_range_check: __n (which is 9)"), signal=6)
    assert told.kind is FailureClass.NATIVE_CRASH


def test_a_cpp_program_without_memory_is_told_what_a_python_one_is(tmp_path: Path) -> None:
    native = judge(tmp_path, ABORTED.format("std::bad_alloc", "std::bad_alloc"), signal=6, peak_bytes=GIB)
    python = judge(tmp_path, f"{TRACE}MemoryError\n", peak_bytes=GIB)
    assert native.kind is FailureClass.OUT_OF_MEMORY
    assert native.action == python.action
    assert "limit that it met" not in native.action
    assert f"holdfast restart {RUN_ID}" in native.action
