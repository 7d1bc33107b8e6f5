"""The few properties that model types compute."""

from __future__ import annotations

import pytest

from holdfast.model.finding import Finding, Level, worst
from holdfast.model.gpu import GpuRequest
from holdfast.model.identity import WaitStatus
from holdfast.model.lease import BusyReason, LeasedDevice, Witness
from holdfast.model.run import Outcome, say_condition

pytestmark = pytest.mark.pure


@pytest.mark.requirement("PROC-05", "B-01")
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (WaitStatus(0, None), 0, "exit code 0"),
        (WaitStatus(3, None), 3, "exit code 3"),
        (WaitStatus(None, 9), 137, "signal 9"),
        (WaitStatus(None, 11, core_dumped=True), 139, "signal 11 (core dumped)"),
    ],
)
def test_a_wait_status_keeps_code_and_signal_apart(status: WaitStatus, code: int, words: str) -> None:
    assert (status.exit_code, status.describe()) == (code, words)


def test_the_worst_of_findings() -> None:
    findings = [Finding(str(level), level, "x", "y") for level in (Level.WARN, Level.PASS, Level.UNKNOWN)]
    assert worst(findings) is Level.WARN
    assert worst([*findings, Finding("f", Level.FAIL, "x", "y")]) is Level.FAIL
    assert worst(()) is Level.PASS
    assert worst(findings[1:]) is Level.UNKNOWN


def test_a_slice_is_named_by_its_own_uuid() -> None:
    assert LeasedDevice("GPU-1", 0, "H100").uuid == "GPU-1"
    assert LeasedDevice("GPU-1", 0, "H100", "MIG-2").uuid == "MIG-2"


def test_how_many_devices_are_wanted() -> None:
    assert [GpuRequest().wanted, GpuRequest(2).wanted, GpuRequest(devices=("0", "1", "3")).wanted] == [0, 2, 3]


@pytest.mark.parametrize(
    ("witness", "holder", "words"),
    [
        (Witness.RECORD, "anna, run r, pid 4", "card 0 is held by anna, run r, pid 4"),
        (Witness.FOREIGN_LOCK, "gpu_0.lock of ben", "card 0 is held by gpu_0.lock of ben"),
        (Witness.CARD, "unmanaged: pid 4", "card 0: unmanaged: pid 4"),
        (Witness.QUEUE, "anna, run r, waits for it and came first", "card 0: anna, run r, waits for it and came first"),
    ],
)
def test_a_card_is_held_where_its_witness_names_a_holder(witness: Witness, holder: str, words: str) -> None:
    assert BusyReason("GPU-1", witness, holder, index=0).words == words


def test_how_a_run_stands_is_said_as_a_verb() -> None:
    said = [say_condition(word) for word in ("succeeded", "timed_out", "running, unsupervised", "lost")]
    assert said == ["has succeeded", "has timed out", "is running, unsupervised", "is lost"]
    assert not [one.value for one in Outcome if "_" in say_condition(one.value)]
