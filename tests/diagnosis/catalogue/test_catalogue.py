"""The catalogue of gotchas: whole, worded, and nothing in it without code and a test, or a reason."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from holdfast.diagnosis.catalogue import Gotcha, Mode, all_gotchas, find, search
from scripts.gotchas import find_problems, read_shown

pytestmark = pytest.mark.contract

IDS = [
    *(f"U{number}" for number in range(1, 45)),
    *(f"GEN{number}" for number in range(1, 9)),
    *(f"SLURM{number}" for number in range(1, 6)),
    *(f"K8S{number}" for number in range(1, 7)),
    *(f"NB{number}" for number in range(1, 6)),
]


def test_every_gotcha_is_there_once_and_in_order() -> None:
    assert [row.id for row in all_gotchas()] == IDS


def test_every_handled_row_has_code_and_a_test_and_every_other_a_reason() -> None:
    assert list(find_problems(all_gotchas(), read_shown())) == []


def test_a_row_without_code_or_test_is_found() -> None:
    row = all_gotchas()[0]
    bare = replace(row, code=("no_such_module",))
    problems = list(find_problems((bare,), {"U1": ["tests/conftest.py::test_nothing"], "U99": []}))
    assert any("no module holdfast.no_such_module" in problem for problem in problems)
    assert any("no test tests/conftest.py::test_nothing" in problem for problem in problems)
    assert any("U99" in problem for problem in problems)
    assert any("shown by no test" in problem for problem in find_problems((bare,), {}))


@pytest.mark.parametrize("row", all_gotchas(), ids=lambda row: row.id)
def test_a_row_says_all_there_is_to_say(row: Gotcha) -> None:
    for name in ("title", "symptom", "cause", "signals", "remedy", "source", "keywords"):
        assert getattr(row, name).strip(), name
    assert row.modes
    assert bool(row.does) is (Mode.LATER not in row.modes)
    assert re.fullmatch(r"20\d\d-\d\d", row.checked)
    assert not row.title.endswith(".")


def test_ids_are_found_in_any_case() -> None:
    assert find("u11") is find(" U11 ") is not None
    assert find("U99") is None


def test_a_search_finds_rows_with_all_words_headlines_first() -> None:
    found = [row.id for row in search("inode")]
    assert found[0] == "U7"
    assert {"U6", "U7", "U25"} <= set(found)
    assert search("no such word anywhere") == ()
    assert search("  ") == ()
    assert [row.id for row in search("nohup TORCHRUN")] == ["GEN2"]
