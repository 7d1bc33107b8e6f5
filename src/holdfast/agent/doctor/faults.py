"""Runs faults on request: which of them this box can do, and how each one went."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.diagnosis.evidence import Answer
from holdfast.diagnosis.kernel.log import read_kernel_log
from holdfast.diagnosis.kernel.xids import judge_xids
from holdfast.faults.engine import run_fault
from holdfast.faults.needs import NeedTests
from holdfast.faults.spec import Fault, FaultJudgement, FaultReport
from holdfast.faults.table import FAULTS, find_fault
from holdfast.model.errors import UsageError
from holdfast.model.record import record
from holdfast.model.verdict import FailureClass

EXIT_WRONG = 1
"""A verdict was wrong, or a fault could not be shown to have happened."""
EXIT_IMPOSSIBLE = 78
"""This box can do none of the faults that were asked for (as a preflight that fails)."""


@record
class FaultLine:
    """One fault; `expects` is what is right to say of it, `reason` why this box cannot do it (empty when it can)."""

    name: str
    summary: str
    expects: tuple[str, ...]
    gotchas: tuple[str, ...]
    needs: tuple[str, ...]
    live: bool
    healthy: bool
    slow: bool
    possible: bool
    reason: str


@record
class FaultList:
    """All faults."""

    faults: tuple[FaultLine, ...]


@record
class FaultExercise:
    """How the faults went that were asked for. Exit code 1: one went wrong; 78: this box can do none of them."""

    faults: tuple[FaultReport, ...]
    exit_code: int


def list_faults(nvml_library: str | None) -> FaultList:
    """Every fault, and whether this box can do it: what each needs is tried."""
    needs = NeedTests(nvml_library)
    return FaultList(tuple(_describe(fault, needs) for fault in FAULTS))


def _describe(fault: Fault, needs: NeedTests) -> FaultLine:
    reason = needs.lacking(fault)
    return FaultLine(
        name=fault.name,
        summary=fault.summary,
        expects=tuple(kind.value for kind in fault.expects) or ("prevented",),
        gotchas=tuple(fault.gotchas),
        needs=tuple(need.value for need in fault.needs),
        live=fault.live,
        healthy=fault.healthy,
        slow=fault.slow,
        possible=not reason,
        reason=reason,
    )


def list_names() -> dict[str, str]:
    """The names of all faults, with what happens."""
    return {fault.name: fault.summary for fault in FAULTS}


def choose_faults(names: Sequence[str], *, everything: bool, quick: bool) -> tuple[Fault, ...]:
    """The faults of those names, or all of them; with `quick` without the slow ones.

    Raises:
        UsageError: neither is asked for, or both, or there is no such fault.
    """
    if everything == bool(names):
        both = "faults are named, and --all is given" if names else "no fault is named"
        raise UsageError(both, hint="name some of those that `holdfast fault list` shows, or give --all")
    if not everything:
        return tuple(find_fault(name) for name in names)
    return tuple(fault for fault in FAULTS if not (quick and fault.slow))


def run_faults(
    chosen: Sequence[Fault],
    *,
    keep: bool,
    nvml_library: str | None,
    interrupted: Callable[[], bool],
    hear: Callable[[FaultReport], None],
) -> FaultExercise:
    """Do one after the other; `hear` gets each report as it comes."""
    needs = NeedTests(nvml_library)
    reports = []
    for fault in chosen:
        report = run_fault(
            fault, needs, keep=keep, nvml_library=nvml_library, interrupted=interrupted, judge_records=judge_records
        )
        reports.append(report)
        hear(report)
    return FaultExercise(tuple(reports), decide_exit(reports))


def judge_records(fault: Fault, path: str) -> FaultReport:
    """What the reader of the kernel's log and the table of Xids make of records in its place."""
    reading = read_kernel_log(source=path)
    events = reading.value.events if reading.value is not None else ()
    seen = {event.kind.value for event in events}
    missing = tuple(f"{proof.seen.value} {proof.value}" for proof in fault.proofs if proof.value not in seen)
    found = [item for item in judge_xids(events, pci=None) if item.answer is Answer.YES]
    hardware = [item for item in found if item.kind is FailureClass.HARDWARE]
    right = not missing and bool(hardware) == (FailureClass.HARDWARE in fault.expects)
    return FaultReport(
        fault.name,
        FaultJudgement.NOT_REAL if missing else (FaultJudgement.RIGHT if right else FaultJudgement.WRONG),
        expected=tuple(kind.value for kind in fault.expects) or ("prevented",),
        said=FailureClass.HARDWARE.value if hardware else "prevented",
        detector="Xid" if hardware else "",
        confidence=hardware[0].confidence.value if hardware else "",
        proven=tuple(f"{event.kind.value}: {event.text}" for event in events),
        unproven=missing,
        reason=reading.unread if missing else fault.prevented,
    )


def decide_exit(reports: Sequence[FaultReport]) -> int:
    """0: all that this box can do went right; 1: something did not; 78: it can do none."""
    judged = [report.judgement for report in reports if report.judgement is not FaultJudgement.IMPOSSIBLE]
    if not judged:
        return EXIT_IMPOSSIBLE
    return 0 if all(judgement is FaultJudgement.RIGHT for judgement in judged) else EXIT_WRONG
