"""The doctor's findings on the screen, and what was left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.model.finding import Finding, Level
from holdfast.model.units import format_duration

from . import clean, heading, note, paint, table

if TYPE_CHECKING:
    from holdfast.agent.doctor.examine import Examination
    from holdfast.agent.doctor.reap import ReapReport
    from holdfast.agent.view.runs.leftovers import Leftovers


class SectionPrinter:
    """Prints sections as they come; several in a row may have one title."""

    def __init__(self) -> None:
        """Nothing was printed yet."""
        self._last = ""

    def __call__(self, title: str, findings: Sequence[Finding]) -> None:
        """Print one section, unless it found nothing."""
        if findings and title != self._last:
            heading(title)
            self._last = title
        for finding in findings:
            word = paint(finding.level.value) + " " * (7 - len(finding.level.value))
            evidence = f": {clean(finding.evidence)}" if finding.evidence else ""
            print(f"  {word}  {clean(finding.subject)}{evidence}", flush=True)
            if finding.remedy:
                print(f"           do: {clean(finding.remedy)}")


def print_counts(found: Examination) -> None:
    """The last line: how many of which level."""
    counts = {level: sum(finding.level is level for finding in found.findings) for level in Level}
    print(", ".join(f"{count} {level.value}" for level, count in counts.items() if count))


def print_leftovers(seen: Leftovers) -> None:
    """The processes that ended runs left behind, and those that are left alone."""
    if seen.found:
        rows = [
            (one.process.pid, one.run_id, one.ended_as, format_duration(one.age_s), one.command) for one in seen.found
        ]
        table(("pid", "run", "ended", "age", "command"), rows, right=(0,))
    else:
        print("no ended run of this account has a living process")
    for other in seen.spared:
        note(f"left alone: process {other.pid} with the marker of {other.run_id}: {other.why}")


def print_reaping(found: ReapReport) -> None:
    """What became of each."""
    for end in found.done:
        print(f"{end.leftover.process.pid}: {end.outcome}" + (f" ({clean(end.words)})" if end.words else ""))
