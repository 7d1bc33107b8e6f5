"""docs/failure-rules.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.diagnosis.logs.bounds import LONGEST_PATTERN, WIDEST
from holdfast.diagnosis.logs.pattern import LONGEST_LINE
from holdfast.diagnosis.logs.patterns import PATTERNS
from holdfast.diagnosis.logs.rules import MOST_RULES, parse_failure_rules
from holdfast.diagnosis.logs.scan import BLOCK_BYTES
from holdfast.diagnosis.logs.search import MOST_TRIES
from holdfast.host.files.rules_file import LARGEST_BYTES

pytestmark = [pytest.mark.files, pytest.mark.requirement("FAIL-15")]

PAGE = (Path(__file__).parents[3] / "docs" / "failure-rules.md").read_text(encoding="utf-8")


def test_the_page_lists_every_rule_with_role_and_class() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w, ]+) \| `?(\w+)`? \| ([\w, ]*) \| `", PAGE, re.MULTILINE)
    expected = [
        (
            pattern.id,
            pattern.role.value + (", passing" if pattern.passing else "") + (", unsure" if pattern.unsure else ""),
            "none" if pattern.kind is None else pattern.kind.value,
            ", ".join(pattern.gotchas),
        )
        for pattern in PATTERNS
    ]
    assert [(name, role, kind, more.strip()) for name, role, kind, more in rows] == expected


def test_the_pages_own_rules_can_be_loaded() -> None:
    text = PAGE.partition("```toml\n")[2].partition("```")[0]
    assert [rule.id for rule in parse_failure_rules(text, "page")] == ["user.licence", "user.loader"]


def test_the_pages_numbers_are_those_of_the_code() -> None:
    for number in (LONGEST_PATTERN, WIDEST, LONGEST_LINE, MOST_RULES, MOST_TRIES):
        assert str(number) in PAGE
    assert f"{LARGEST_BYTES // 1024} KiB" in PAGE
    assert f"{BLOCK_BYTES // 1024} KiB" in PAGE
