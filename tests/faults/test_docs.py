"""docs/faults.md names every fault, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.faults.table import FAULTS

pytestmark = pytest.mark.contract

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "faults.md"


def test_the_page_lists_every_fault_once() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## What there is")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for cell in first_cells for name in re.findall(r"`([a-z0-9-]+)`", cell)]
    assert sorted(listed) == sorted(fault.name for fault in FAULTS)
