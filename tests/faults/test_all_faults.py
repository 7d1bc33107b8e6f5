"""Every fault, for real, with its verdict: 100 % of what this box can do. About eight minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.agent.doctor.faults import judge_records
from holdfast.faults.engine import run_fault
from holdfast.faults.needs import NeedTests
from holdfast.faults.spec import FaultJudgement
from holdfast.faults.table import FAULTS

if TYPE_CHECKING:
    from holdfast.faults.spec import Fault

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(240)]


@pytest.mark.requirement("DIAG-02", "DIAG-03", "DIAG-04", "DIAG-10", "DIAG-11", "FAIL-01", "FAIL-09", "FAIL-14")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_verdict_is_right(fault: Fault, nvml_library: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_fault(fault, NeedTests(nvml_library), nvml_library=nvml_library, judge_records=judge_records)
    if report.judgement is FaultJudgement.IMPOSSIBLE:
        pytest.skip(report.reason)
    with capsys.disabled():
        expected, said = " or ".join(report.expected), f"{report.said} ({report.confidence} {report.detector})"
        times = f"{report.seconds:5.1f} s, asked {report.verdict_seconds:.1f} s"
        print(f"\n{report.judgement.value:<9} {fault.name:<22} {expected:<22} {said:<40} {times}", end="")
    assert report.judgement is FaultJudgement.RIGHT, report
