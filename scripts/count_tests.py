"""Hold the number of tests in each tier: what pytest collects against tests/tiers.tsv.

A test that nobody collects any more (a renamed file, a parameter that is gone) fails nothing. So each number is
written down, and a smaller one is seen in the change that makes it so, which says why.

Usage: count_tests.py
Exit: 0 the numbers agree, 1 they differ, 2 not all tests can be collected.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).resolve().parent.parent
TIERS = ROOT / "tests/tiers.tsv"
MARKERS = ("cluster", "soak", "slow")
"""A test belongs to the tier of the first of these markers that it has; without one it is of the gate."""
GATE = "gate"


class Count:
    """A plugin of pytest: the tests of each tier, and the files that cannot be counted for want of what they import."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter(dict.fromkeys((GATE, *MARKERS), 0))
        self.left_out: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that skips itself."""
        if report.skipped:
            self.left_out.append(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Put each test into its tier."""
        self.tests.update(find_tier(mark.name for mark in item.iter_markers()) for item in session.items)


def find_tier(markers: Iterable[str]) -> str:
    """The tier of a test with these markers."""
    own = set(markers)
    return next((name for name in MARKERS if name in own), GATE)


def read_tiers(path: Path) -> dict[str, int]:
    """The numbers that are written down.

    Raises:
        ValueError: A line is not a tier and a number.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    if any(len(row) != 2 or not row[1].isdecimal() for row in rows):
        raise ValueError(f"{path}: each line has a tier and a number, separated by a tab")
    return {tier: int(tests) for tier, tests in rows}


def compare(counted: Mapping[str, int], written: Mapping[str, int]) -> list[str]:
    """What is wrong, for people; nothing when both agree."""
    wrong = []
    for tier in sorted({*counted, *written}):
        now, before = counted.get(tier, 0), written.get(tier, 0)
        if now != before:
            remedy = "write the new number there"
            if now < before:
                remedy = "were they meant to go? Then write the new number there, and say why in the commit"
            wrong.append(f"{tier}: {now} tests, {before} in tests/tiers.tsv; {remedy}")
    return wrong


def main() -> int:
    """Count, print, compare."""
    count, said = Count(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", "--quiet", "-p", "no:randomly"], plugins=[count])
    if status != pytest.ExitCode.OK:
        print(said.getvalue())
        return 2
    gate, slow = count.tests[GATE], count.tests["slow"]
    print(
        f"tests: {gate} in `make test`, {gate + slow} in `make test-all`, {count.tests['soak']} in `make soak`, "
        f"{count.tests['cluster']} on a cluster"
    )
    if count.left_out:
        print(f"not compared with tests/tiers.tsv: what they import is not installed: {', '.join(count.left_out)}")
        return 0
    wrong = compare(count.tests, read_tiers(TIERS))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
