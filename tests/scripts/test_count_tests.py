"""The number of tests in each tier is held: one test less is told, and so is one more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.count_tests import compare, find_tier, read_tiers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_test_belongs_to_the_first_tier_that_it_is_marked_for() -> None:
    assert find_tier(["process", "requirement"]) == "gate"
    assert find_tier(["slow", "process"]) == "slow"
    assert find_tier(["slow", "soak"]) == "soak"


def test_more_and_fewer_are_told_apart() -> None:
    assert compare({"gate": 3, "slow": 1}, {"gate": 3, "slow": 1}) == []
    (fewer,) = compare({"gate": 2, "slow": 1}, {"gate": 3, "slow": 1})
    assert "gate: 2 tests, 3 in tests/tiers.tsv" in fewer
    assert "say why" in fewer
    (more,) = compare({"gate": 4, "slow": 1}, {"gate": 3, "slow": 1})
    assert "say why" not in more
    (unknown,) = compare({"gate": 4}, {"gate": 4, "gone": 3})
    assert unknown.startswith("gone: 0 tests, 3 in")


def test_the_list_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiers.tsv"
    path.write_text("# words\ntier\ttests\ngate\t7\nslow\t0\n")
    assert read_tiers(path) == {"gate": 7, "slow": 0}
    path.write_text("tier\ttests\ngate seven\n")
    with pytest.raises(ValueError, match="a tier and a number"):
        read_tiers(path)
