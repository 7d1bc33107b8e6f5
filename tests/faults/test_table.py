"""The list of faults is sound: what it names exists, and nothing is judged that is not shown to have happened."""

from __future__ import annotations

import json

import pytest

from holdfast.diagnosis import catalogue
from holdfast.faults.spec import Fault, FaultAct, FaultJudgement, FaultReport, Need, Stage
from holdfast.faults.table import FAULTS, find_fault
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.record import replace
from holdfast.model.verdict import HANGS, FailureClass, LiveClass

pytestmark = pytest.mark.pure

BY_NAME = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def test_names_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)


@BY_NAME
def test_every_fault_is_shown_to_have_happened(fault: Fault) -> None:
    assert fault.proofs or fault.needs == (Need.USER_MODE_LINUX,), "without a proof a right verdict proves nothing"


@BY_NAME
def test_every_fault_has_one_thing_that_is_right(fault: Fault) -> None:
    assert bool(fault.expects) != bool(fault.prevented)
    kinds = {type(kind) for kind in fault.expects}
    assert len(kinds) <= 1, "a run is either live or over when it is judged"


@BY_NAME
def test_every_fault_has_something_to_run(fault: Fault) -> None:
    assert bool(fault.payload or fault.command) != bool(fault.records)
    assert bool(fault.records) == (fault.stage is Stage.KERNEL_LOG)


@BY_NAME
def test_gotchas_are_of_the_catalogue(fault: Fault) -> None:
    known = {gotcha.id for gotcha in catalogue.all_gotchas()}
    assert set(fault.gotchas) <= known


@BY_NAME
def test_what_mounts_needs_a_namespace(fault: Fault) -> None:
    if fault.stage not in (Stage.PLAIN, Stage.CARD, Stage.KERNEL_LOG):
        assert Need.MOUNT_NAMESPACE in fault.needs
    assert (fault.stage is Stage.CARD) == (Need.NVML_LIBRARY in fault.needs)
    assert (fault.act is FaultAct.FREEZE) == (fault.stage is Stage.FROZEN_DISK)


@pytest.mark.requirement("FAIL-01")
def test_every_way_to_hang_and_to_fail_that_a_box_can_show_is_among_them() -> None:
    shown = {kind for fault in FAULTS for kind in fault.expects}
    # A zombie's leader is what the keeper reaps; nobody can show it under holdfast.
    assert set(HANGS) - shown == {LiveClass.ZOMBIE}
    needed = {
        FailureClass.OUT_OF_MEMORY, FailureClass.SHARED_MEMORY, FailureClass.RESOURCE_LIMIT, FailureClass.DISK_FULL,
        FailureClass.STORAGE_FAULT, FailureClass.HARDWARE, FailureClass.BUG, FailureClass.NATIVE_CRASH,
        FailureClass.KILLED, FailureClass.HANG_UP, FailureClass.REBOOT, FailureClass.ENVIRONMENT,
        FailureClass.SUSPICIOUS_FINISH, FailureClass.DIVERGED, FailureClass.TRANSIENT, FailureClass.REFUSED,
        FailureClass.GPU_OUT_OF_MEMORY,
    }  # fmt: skip
    assert needed <= shown


def test_there_are_healthy_controls() -> None:
    controls = [fault for fault in FAULTS if fault.healthy]
    assert len(controls) >= 3
    assert {kind for fault in controls for kind in fault.expects} == {LiveClass.PROGRESSING, LiveClass.STARTING}


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError) as raised:
        find_fault("disk-ful")
    assert "disk-full" in raised.value.hint


def test_a_report_survives_the_pipe() -> None:
    report = FaultReport(
        "killed", FaultJudgement.WRONG, ("killed",), "bug", "V12", "likely", proven=("signal 9",), seconds=1.5
    )
    report = replace(report, verdict={"kind": "bug", "evidence_for": [{"text": "x"}]})
    assert wire.decode(FaultReport, json.loads(json.dumps(wire.encode(report)))) == report
