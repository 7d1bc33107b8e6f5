"""Faults on the screen: the list with what this box can do, and how each one went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import clean, pairs, table

if TYPE_CHECKING:
    from holdfast.agent.doctor.faults import FaultList
    from holdfast.faults.spec import FaultReport


def print_list(found: FaultList) -> None:
    """The table of faults, and below it why some are not possible here."""
    rows = []
    by_reason: dict[str, list[str]] = {}
    for fault in found.faults:
        kind = "control" if fault.healthy else ("live" if fault.live else "ended")
        rows.append((fault.name, kind, "yes" if fault.possible else "no", " or ".join(fault.expects), fault.summary))
        if fault.reason:
            by_reason.setdefault(fault.reason, []).append(fault.name)
    table(("name", "kind", "here", "expected", "what happens"), rows)
    if by_reason:
        print("\nnot possible here:")
        pairs([(", ".join(names), reason) for reason, names in by_reason.items()], indent=2)


def print_report(report: FaultReport) -> None:
    """One line for each fault, and the evidence where that is needed to understand it."""
    said = report.said or "-"
    sure = f" ({report.confidence}, {report.detector})" if report.detector else ""
    words = f"expected {' or '.join(report.expected)}, said {said}{sure}"
    print(f"{report.judgement.value:<10}  {clean(report.name):<22}  {clean(words)}  {report.seconds:.1f} s", flush=True)
    if report.judgement.value != "right":
        details = [("not seen", "; ".join(report.unproven)), ("because", report.reason)]
        details += [("seen", "; ".join(report.proven)), *_evidence(report)]
        pairs([(key, value) for key, value in details if value], indent=12)
    if report.box:
        pairs([("kept", report.box)], indent=12)


def _evidence(report: FaultReport) -> list[tuple[str, str]]:
    rows = []
    for key, name in (("evidence_for", "for"), ("evidence_against", "against"), ("unknown", "unknown")):
        clues = report.verdict.get(key)
        texts = (
            [str(clue.get("text", "")) for clue in clues if isinstance(clue, dict)] if isinstance(clues, list) else []
        )
        rows.append((name, "\n".join(texts)))
    return rows


def summarise_faults(reports: Sequence[FaultReport]) -> str:
    """How many went how, in the order of the judgements."""
    kinds = type(reports[0].judgement) if reports else ()
    counts = {kind: sum(report.judgement is kind for report in reports) for kind in kinds}
    return ", ".join(f"{count} {kind.value.replace('_', ' ')}" for kind, count in counts.items() if count)
