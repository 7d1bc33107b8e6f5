"""Hold the number of tests in each tier: what pytest collects against tests/tiers.tsv.

A test that nobody collects any more (a renamed file, a parameter that is gone) fails nothing. So each number is
written down, and a smaller one is seen in the change that makes it so, which says why. "vital" counts those of the
gate that are about what must never happen.

A file that skips itself hides its tests, so that is a fault, too. Where torch was left out on purpose (TORCH=skip, as
for `make`), it is none, and nothing is compared.

Usage: count_tests.py
Exit: 0 the numbers agree, 1 they differ or a file skips itself, 2 not all tests can be collected.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.claims import find_ids  # noqa: E402 - after the path

TIERS = ROOT / "tests/tiers.tsv"
MARKERS = ("soak", "cluster", "slow")
"""A test belongs to the tier of the first of these markers that it has; without one it is of the gate."""
GATE = "gate"
# What must never happen has its tests in the gate: a lost result, a card granted twice, a signal to a process that is
# not ours, a wrong checkpoint loaded without a word.
VITAL = "vital"
VITAL_IDS = frozenset(
    (
        *("B-01", "B-25", "B-50", "B-70", "CKPT-05", "CKPT-06", "CKPT-07", "LIB-06", "OBS-03", "POST-05", "POST-10"),
        *("PROC-05", "PROC-14", "PROC-15"),
        *("B-02", "B-08", "B-10", "LEASE-01", "LEASE-02", "LEASE-03", "LEASE-10", "LEASE-16", "LEASE-18", "LEASE-19"),
        *("QUEUE-01", "QUEUE-11", "QUEUE-12"),
        *("B-03", "B-21", "B-69", "B-73", "PRE-22", "PROC-03", "PROC-08", "PROC-18"),
        *("B-53", "B-54", "B-57", "B-74", "CKPT-02", "CKPT-03", "CKPT-04", "CKPT-11", "CKPT-13"),
    )
)
"""The requirements that say so, in the order of the four."""


class Count:
    """A plugin of pytest: the tests of each tier, and the files that skip themselves, each with its reason."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter(dict.fromkeys((GATE, *MARKERS, VITAL), 0))
        self.left_out: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that skips itself."""
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
            self.left_out.append(f"{report.nodeid}: {reason}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Put each test into its tier."""
        for item in session.items:
            tier = find_tier(mark.name for mark in item.iter_markers())
            self.tests[tier] += 1
            self.tests[VITAL] += tier == GATE and is_vital(item)


def find_tier(markers: Iterable[str]) -> str:
    """The tier of a test with these markers."""
    own = set(markers)
    return next((name for name in MARKERS if name in own), GATE)


def is_vital(item: pytest.Item) -> bool:
    """Whether a test covers one of the vital requirements, by its name or by a marker."""
    marked = {name for mark in item.iter_markers("requirement") for name in mark.args}
    return not VITAL_IDS.isdisjoint(marked | find_ids(item.name.partition("[")[0]))


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
    # Whoever counts may have options of pytest of his own: they are for other runs.
    os.environ.pop("PYTEST_ADDOPTS", None)
    status: object = "a file ended the process"
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        status = pytest.main(["--collect-only", "-qq", "-p", "no:randomly"], plugins=[count])
    if status != pytest.ExitCode.OK:
        print(f"{said.getvalue()}not all tests can be collected: {status}")
        return 2
    gate, slow, cluster = (count.tests[name] for name in (GATE, "slow", "cluster"))
    print(
        f"tests: {gate} in `make test` ({count.tests[VITAL]} of them of what must never happen), "
        f"{gate + slow + cluster} in `make test-all` ({cluster} of them on a Slurm of their own), "
        f"{count.tests['soak']} in `make soak`"
    )
    if count.left_out:
        print("\n".join(count.left_out))
        if os.environ.get("TORCH") == "skip":
            print("not compared with tests/tiers.tsv: torch was left out (TORCH=skip)")
            return 0
        print("no file may skip itself; if .venv was made with TORCH=skip: rm .venv/.frameworks && make setup")
        return 1
    wrong = compare(count.tests, read_tiers(TIERS))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
