"""Findings for people: the table of checks, gravest last, with evidence and remedy."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.finding import Finding, Level, rank

from . import clean, paint


def print_findings(findings: Sequence[Finding], *, strict: bool = False) -> None:
    """One line per check; under it the remedy. Mild ones first, so that the last line is the gravest."""
    print_levels(findings)
    print(_summarise(findings, strict=strict))


def print_levels(findings: Sequence[Finding]) -> None:
    """The lines of `print_findings` without the last one, for findings that are not about a job."""
    order = list(Level)
    for finding in sorted(findings, key=lambda finding: order.index(finding.level)):
        level = finding.level.value
        word = paint(level) + " " * (7 - len(level))
        subject = clean(finding.subject)
        on = subject if subject.startswith(finding.id) else f"{finding.id} {subject}".rstrip()
        evidence = f": {clean(finding.evidence)}" if finding.evidence else ""
        print(f"{word}  {on}{evidence}")
        if finding.remedy:
            print(f"         do: {clean(finding.remedy)}")


def _summarise(findings: Sequence[Finding], *, strict: bool) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    words = ", ".join(f"{count} {level.value}" for level, count in counts.items() if count) or "no checks"
    grave = rank(findings, strict=strict)
    verdict = "would not start" if grave is Level.FAIL else "would start"
    return f"{words}: the job {verdict}"
