"""Faults on the screen: the list with what this box can do, and how each one went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults.spec import Judgement

from .render import clean, pairs, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults.needs import Needs
    from holdfast.faults.spec import Fault, Report

EXIT_WRONG = 1
"""A verdict was wrong, or a fault could not be shown to have happened."""
EXIT_IMPOSSIBLE = 78
"""This box can do none of the faults that were asked for (as a preflight that fails)."""


def judge_records(fault: Fault, path: str) -> Report:
    """What the reader of the kernel's log and the table of Xids make of records in its place."""
    from holdfast.diagnosis.evidence import Answer
    from holdfast.diagnosis.kernel.log import read_kernel_log
    from holdfast.diagnosis.kernel.xids import judge_xids
    from holdfast.faults.spec import Report
    from holdfast.model.verdict import FailureClass

    reading = read_kernel_log(source=path)
    events = reading.value.events if reading.value is not None else ()
    seen = {event.kind.value for event in events}
    missing = tuple(f"{proof.seen.value} {proof.value}" for proof in fault.proofs if proof.value not in seen)
    found = [item for item in judge_xids(events, pci=None) if item.answer is Answer.YES]
    hardware = [item for item in found if item.kind is FailureClass.HARDWARE]
    right = not missing and bool(hardware) == (FailureClass.HARDWARE in fault.expects)
    return Report(
        fault.name,
        Judgement.NOT_REAL if missing else (Judgement.RIGHT if right else Judgement.WRONG),
        expected=tuple(kind.value for kind in fault.expects) or ("prevented",),
        said=FailureClass.HARDWARE.value if hardware else "prevented",
        detector="Xid" if hardware else "",
        confidence=hardware[0].confidence.value if hardware else "",
        proven=tuple(f"{event.kind.value}: {event.text}" for event in events),
        unproven=missing,
        reason=reading.unread if missing else fault.prevented,
    )


def encode_fault(fault: Fault, needs: Needs) -> dict[str, object]:
    """One row of the list for programs."""
    reason = needs.lacking(fault)
    return {
        "name": fault.name,
        "summary": fault.summary,
        "expects": [kind.value for kind in fault.expects] or ["prevented"],
        "gotchas": list(fault.gotchas),
        "needs": [need.value for need in fault.needs],
        "live": fault.live,
        "healthy": fault.healthy,
        "slow": fault.slow,
        "possible": not reason,
        "reason": reason,
    }


def print_list(faults: Sequence[Fault], needs: Needs) -> None:
    """The table of faults, and below it why some are not possible here."""
    rows, reasons = [], {}
    for fault in faults:
        reason = needs.lacking(fault)
        if reason:
            reasons[fault.name] = reason
        kind = "control" if fault.healthy else ("live" if fault.live else "ended")
        rows.append((fault.name, kind, "no" if reason else "yes", describe_expected(fault), fault.summary))
    table(("name", "kind", "here", "expected", "what happens"), rows)
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    if by_reason:
        print("\nnot possible here:")
        pairs([(", ".join(names), reason) for reason, names in by_reason.items()], indent=2)


def describe_expected(fault: Fault) -> str:
    """The class that is right, in one word, or what is right besides."""
    return " or ".join(kind.value for kind in fault.expects) or "prevented"


def print_report(report: Report) -> None:
    """One line for each fault, and the evidence where that is needed to understand it."""
    said = report.said or "-"
    sure = f" ({report.confidence}, {report.detector})" if report.detector else ""
    words = f"expected {' or '.join(report.expected)}, said {said}{sure}"
    print(f"{report.judgement.value:<10}  {clean(report.name):<22}  {clean(words)}  {report.seconds:.1f} s", flush=True)
    if report.judgement is not Judgement.RIGHT:
        details = [("not seen", "; ".join(report.unproven)), ("because", report.reason)]
        details += [("seen", "; ".join(report.proven)), *_evidence(report)]
        pairs([(key, value) for key, value in details if value], indent=12)
    if report.box:
        pairs([("kept", report.box)], indent=12)


def _evidence(report: Report) -> list[tuple[str, str]]:
    rows = []
    for key, name in (("evidence_for", "for"), ("evidence_against", "against"), ("unknown", "unknown")):
        clues = report.verdict.get(key)
        texts = (
            [str(clue.get("text", "")) for clue in clues if isinstance(clue, dict)] if isinstance(clues, list) else []
        )
        rows.append((name, "\n".join(texts)))
    return rows


def summarise(reports: Sequence[Report]) -> str:
    """How many went how."""
    counts = {kind: sum(report.judgement is kind for report in reports) for kind in Judgement}
    return ", ".join(f"{count} {kind.value.replace('_', ' ')}" for kind, count in counts.items() if count)


def decide_exit(reports: Sequence[Report]) -> int:
    """0: all that this box can do went right; 1: something did not; 78: it can do none."""
    judged = [report.judgement for report in reports if report.judgement is not Judgement.IMPOSSIBLE]
    if not judged:
        return EXIT_IMPOSSIBLE
    return 0 if all(judgement is Judgement.RIGHT for judgement in judged) else EXIT_WRONG
