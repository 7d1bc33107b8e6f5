"""`each`: all rows are looked at, all offenders are named, and the test's fixtures still come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.each import each

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files


def test_all_offenders_are_named_and_every_row_is_looked_at() -> None:
    seen = []

    @each("number, name", [(1, "one"), (2, "two"), (3, "three"), (4, "four")], ids=str)
    def look(number: int, name: str) -> None:
        seen.append(number)
        assert number != 2, f"{name} is bad"
        if number == 3:
            raise KeyError(name)

    with pytest.raises(pytest.fail.Exception) as failed:
        look()
    assert seen == [1, 2, 3, 4]
    first, second, third = str(failed.value).splitlines()[0], *str(failed.value).splitlines()[1::2][:2]
    assert first == "2 of 4:"
    assert second.startswith("2-two: two is bad")
    assert "KeyError('three')" in str(failed.value)
    assert third


def test_a_row_that_raises_nothing_where_it_should_is_an_offender() -> None:
    @each("text", ["1", "x"])
    def look(text: str) -> None:
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(pytest.fail.Exception, match=r"^1 of 2:\n'1': DID NOT RAISE"):
        look()


def test_a_row_that_is_skipped_is_an_offender_and_hides_no_other() -> None:
    seen = []

    @each("number", [1, 2, 3])
    def look(number: int) -> None:
        seen.append(number)
        if number == 2:
            pytest.skip("no such thing here")
        raise AssertionError(f"{number} is bad")

    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as failed:
        look()
    assert failed.type is pytest.fail.Exception, "the whole test was skipped"
    assert seen == [1, 2, 3]
    rows = [line.partition(" (line")[0] for line in str(failed.value).splitlines()]
    assert rows == ["3 of 3:", "1: 1 is bad", "2: skipped: no such thing here", "3: 3 is bad"]


def test_an_empty_table_proves_nothing() -> None:
    @each("row", [])
    def look(row: int) -> None: ...

    with pytest.raises(AssertionError, match="empty"):
        look()


@each("outer", [1, 2])
@each("inner", [10, 20])
def test_tables_are_stacked_and_fixtures_come(outer: int, inner: int, tmp_path: Path) -> None:
    assert outer < inner
    assert tmp_path.is_dir()
