"""docs/faults.md names every fault, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.faults.table import FAULTS

pytestmark = pytest.mark.files

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "faults.md"


def test_the_page_lists_every_fault_once() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What there is")[2].partition("\n## ")[0]
    first_jobs = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for job in first_jobs for name in re.findall(r"`([a-z0-9-]+)`", job)]
    assert sorted(listed) == sorted(fault.name for fault in FAULTS)
