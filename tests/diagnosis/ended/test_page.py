"""docs/diagnosis.md has every detector and every class, in the order and the words of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.diagnosis.catalogue import find_gotcha
from holdfast.diagnosis.ended.detect.table import LADDER
from holdfast.diagnosis.remedies import REMEDIES
from holdfast.model.verdict import FailureClass
from tests.each import each

pytestmark = pytest.mark.files

PAGE = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text(encoding="utf-8")


@pytest.mark.requirement("DIAG-02")
def test_the_page_lists_the_ladder_in_its_order() -> None:
    table = PAGE.partition("## How an end is judged")[2].partition("## Classes")[0]
    assert re.findall(r"^\| ([A-Z]\w*) \|", table, re.MULTILINE) == list(LADDER)


def test_every_gotcha_that_a_detector_names_can_be_explained() -> None:
    sources = (Path(__file__).parents[3] / "src" / "holdfast" / "diagnosis" / "ended").rglob("*.py")
    named = {word for source in sources for word in re.findall(r'"(U\d+)"', source.read_text(encoding="utf-8"))}
    assert len(named) >= 5
    assert all(find_gotcha(gotcha) is not None for gotcha in named), named


@pytest.mark.requirement("FAIL-01")
@each("kind", list(FailureClass))
def test_FAIL_01_the_page_says_what_to_do_about_each_class(kind: FailureClass) -> None:
    remedy = REMEDIES[kind]
    assert f"| `{kind.value}` | {remedy.retry.value} | {remedy.render({})} |" in PAGE
