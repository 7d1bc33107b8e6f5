"""The number of tests in each tier is held: one test less is told, and so is one more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.count_tests import compare, find_ids, find_tier, read_tiers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_test_belongs_to_the_first_tier_that_it_is_marked_for() -> None:
    assert find_tier(["process", "requirement"]) == "gate"
    assert find_tier(["slow", "process"]) == "slow"
    assert find_tier(["slow", "soak"]) == "soak"


def test_the_requirements_in_a_name() -> None:
    assert find_ids("test_LEASE_02_POST_01_the_card_is_free") == {"LEASE-02", "POST-01"}
    assert find_ids("test_PROC_15_23_a_job_goes_on") == {"PROC-15", "PROC-23"}
    assert find_ids("test_B_20a_a_reset_is_asked_for") == {"B-20a"}
    assert find_ids("test_LEASE_01_of_48_starters_at_once") == {"LEASE-01"}


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
