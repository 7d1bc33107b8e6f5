"""docs/reference.md names every variable of ours that the source reads or sets, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.files

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r"HOLDFAST_[A-Z0-9]+(?:_[A-Z0-9]+)*")
PREFIXES = {"HOLDFAST_SIMULATED"}
"""What the source looks for as the beginning of a name."""


def test_every_variable_is_on_the_page_and_none_that_is_not_there() -> None:
    source = {
        name
        for path in (ROOT / "src" / "holdfast").rglob("*.py")
        for name in NAME.findall(path.read_text())
        if not name.startswith("HOLDFAST_PARAM")
    }
    page = (ROOT / "docs" / "reference.md").read_text()
    named = {name for name in NAME.findall(page) if not name.startswith("HOLDFAST_PARAM")}
    assert "HOLDFAST_PARAM_" in page
    assert source - PREFIXES - named == set(), "in the source, and not in docs/reference.md"
    assert named - source == set(), "in docs/reference.md, and not in the source"
