"""How much room a run needs, and what is said when it is not there."""

from __future__ import annotations

import pytest

from holdfast.core.job.disk_budget import DiskUse, checkpoint_budget, judge_disk
from holdfast.model.finding import Level
from holdfast.model.job import DiskNeeds
from holdfast.model.record import replace

pytestmark = pytest.mark.pure

GIB = 1024**3
USE = DiskUse("/data", "ext4", ("run directory",), 50 * GIB, 100 * GIB, 100_000, takes_checkpoints=True)
NEEDS = DiskNeeds(min_free_bytes=0, checkpoint_bytes=10 * GIB, keep=3)


@pytest.mark.requirement("PRE-07", "STOR-10")
def test_PRE_07_the_budget_has_room_for_the_one_being_written() -> None:
    assert checkpoint_budget(NEEDS) == 40 * GIB
    assert {item.level for item in judge_disk(replace(USE, free_bytes=40 * GIB), NEEDS)} == {Level.PASS}
    short = judge_disk(replace(USE, free_bytes=39 * GIB), NEEDS)
    assert [(item.id, item.level) for item in short] == [("disk.bytes", Level.FAIL), ("disk.inodes", Level.PASS)]
    assert "needs 40 GiB" in short[0].evidence
    assert "1 GiB short" in short[0].evidence


@pytest.mark.requirement("PRE-07")
def test_PRE_07_the_floor_is_on_top_of_the_budget() -> None:
    assert judge_disk(replace(USE, free_bytes=40 * GIB), replace(NEEDS, min_free_bytes=1))[0].level is Level.FAIL
    other = replace(USE, free_bytes=GIB, takes_checkpoints=False)
    assert judge_disk(other, replace(NEEDS, min_free_bytes=GIB))[0].level is Level.PASS


@pytest.mark.requirement("PRE-06", "RAIL-10")
def test_RAIL_10_inodes_are_a_gate_too() -> None:
    few = judge_disk(replace(USE, free_inodes=9), NEEDS)[1]
    assert (few.id, few.level) == ("disk.inodes", Level.FAIL)
    assert len(judge_disk(replace(USE, free_inodes=None), NEEDS)) == 1


def test_an_optional_place_only_warns_and_a_read_only_one_fails() -> None:
    assert judge_disk(replace(USE, free_bytes=0, optional=True), NEEDS)[0].level is Level.WARN
    found = judge_disk(replace(USE, read_only=True), NEEDS)
    assert [(item.id, item.level) for item in found] == [("disk.read_only", Level.FAIL)]


@pytest.mark.gotcha("U25")
@pytest.mark.requirement("STOR-08")
def test_STOR_08_more_files_than_inodes_are_refused_where_they_will_be_made() -> None:
    use = DiskUse("/d", "ext4", ("run directory",), 10**12, 10**12, 5000, takes_checkpoints=True)
    needs = DiskNeeds(min_free_inodes=1000, expected_files=4000)
    assert [item.level for item in judge_disk(use, needs)] == [Level.PASS, Level.PASS]
    found = judge_disk(use, replace(needs, expected_files=4001))
    assert found[1].level is Level.FAIL
    assert "will make 4001 files" in found[1].evidence
    assert "shards" in found[1].remedy
    elsewhere = replace(use, takes_checkpoints=False)
    assert judge_disk(elsewhere, replace(needs, expected_files=10**9))[1].level is Level.PASS
    uncounted = replace(use, free_inodes=None)
    assert len(judge_disk(uncounted, replace(needs, expected_files=10**9))) == 1
