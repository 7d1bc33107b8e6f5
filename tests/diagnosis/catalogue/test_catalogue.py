"""The catalogue of gotchas: whole, worded, and nothing in it without code and a test, or a reason."""

from __future__ import annotations

import re

import pytest

from holdfast.diagnosis.catalogue import Gotcha, GotchaMode, all_gotchas, find_gotcha, search_gotchas
from holdfast.model.record import replace
from scripts.gotchas import find_problems, find_shown
from tests.each import each

pytestmark = pytest.mark.files

IDS = [
    *(f"U{number}" for number in range(1, 45)),
    *(f"GEN{number}" for number in range(1, 9)),
    *(f"SLURM{number}" for number in range(1, 6)),
    *(f"K8S{number}" for number in range(1, 7)),
    *(f"NB{number}" for number in range(1, 6)),
]


@pytest.mark.requirement("DOC-02", "DOC-10")
def test_every_gotcha_is_there_once_and_in_order() -> None:
    assert [row.id for row in all_gotchas()] == IDS


@pytest.mark.slow
def test_every_handled_row_has_code_and_a_test_and_every_other_a_reason() -> None:
    assert list(find_problems(all_gotchas(), find_shown())) == []


def test_a_row_without_code_or_test_is_found() -> None:
    row = all_gotchas()[0]
    bare = replace(row, code=("no_such_module",))
    problems = list(find_problems((bare,), {"U99": {"tests/test_x.py::test_x"}}))
    assert "U1: there is no module holdfast.no_such_module" in problems
    assert "U1 is shown by no test" in problems
    assert "tests/test_x.py::test_x carries U99, which is not in the catalogue" in problems
    assert list(find_problems((replace(row, code=()),), {"U1": {"x"}})) == ["U1 names no code"]


def test_a_row_that_is_not_handled_has_a_reason_and_no_test() -> None:
    later = replace(all_gotchas()[0], modes=(GotchaMode.LATER,), reason="because")
    assert list(find_problems((later,), {})) == []
    assert list(find_problems((later,), {"U1": {"a test"}})) == ["U1 is not handled, and a test carries it"]
    assert list(find_problems((replace(later, reason=""),), {})) == ["U1 is not handled and does not say why"]


@each("row", all_gotchas(), ids=lambda row: row.id)
def test_a_row_says_all_there_is_to_say(row: Gotcha) -> None:
    for name in ("title", "symptom", "cause", "signals", "remedy", "source", "keywords"):
        assert getattr(row, name).strip(), name
    assert row.modes
    assert bool(row.does) is (GotchaMode.LATER not in row.modes)
    assert re.fullmatch(r"20\d\d-\d\d", row.checked)
    assert not row.title.endswith(".")


def test_ids_are_found_in_any_case() -> None:
    assert find_gotcha("u11") is find_gotcha(" U11 ") is not None
    assert find_gotcha("U99") is None


def test_a_search_finds_rows_with_all_words_headlines_first() -> None:
    found = [row.id for row in search_gotchas("inode")]
    assert found[0] == "U7"
    assert {"U6", "U7", "U25"} <= set(found)
    assert search_gotchas("no such word anywhere") == ()
    assert search_gotchas("  ") == ()
    assert [row.id for row in search_gotchas("nohup TORCHRUN")] == ["GEN2"]
