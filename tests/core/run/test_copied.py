"""What the copy of its results makes of how a run is seen."""

from __future__ import annotations

import pytest

from holdfast.core.run.copied import MADE_GOOD, describe_copy, is_copy_wanted, make_good, may_have_copy
from holdfast.model.run import Created, Ended, Finalizing, Outcome

pytestmark = pytest.mark.pure

FAILED = {"failure_class": "sync_failed", "exit_code": 73, "outcome": "failed"}
END = Ended("e", Outcome.FAILED, 73, "training succeeded (exit code 0); results were not copied")


def test_only_a_run_that_copies_or_failed_by_that_is_asked_for_a_copy() -> None:
    assert may_have_copy({"results": {"to": "/x"}}, {})
    assert may_have_copy({}, FAILED)
    assert not may_have_copy({"results": {"to": None}}, {"failure_class": "bug"})
    assert not may_have_copy({"results": "torn"}, {})


@pytest.mark.parametrize(("state", "wanted"), [("failed", True), ("copying", True), ("copied", False), (None, False)])
def test_a_copy_is_wanted_until_it_is_made(state: str | None, wanted: bool) -> None:
    assert is_copy_wanted(FAILED, {"state": state}) is wanted
    assert not is_copy_wanted({"failure_class": "bug"}, {"state": state})


@pytest.mark.requirement("FAIL-10")
def test_FAIL_10_a_copy_makes_good_what_failed_by_a_copy_and_nothing_else() -> None:
    told = {"state": "copied", "training": "exit code 0", "at": "later", "to": "/lasting/x"}
    found = make_good(END, FAILED, told)
    assert found is not None
    end, record = found
    assert (end.outcome, end.exit_code) == (Outcome.SUCCEEDED, 0)
    assert "copied later" in end.evidence
    assert (record["outcome"], record["exit_code"], record["failure_class"]) == ("succeeded", 0, None)
    assert record[MADE_GOOD] is True
    assert make_good(END, FAILED, {**told, "state": "failed"}) is None
    assert make_good(END, {**FAILED, "failure_class": "bug"}, told) is None


def test_how_far_a_copy_is() -> None:
    copying = Finalizing("f", emptied=True, copying="c")
    numbers = {"files_done": 1, "files_total": 3, "bytes_done": 1024, "bytes_total": 3072, "to": "/lasting/x"}
    assert describe_copy(copying, numbers).endswith("copied to /lasting/x: 1 of 3 files, 1 KiB of 3 KiB")
    assert describe_copy(copying, {"files_total": "torn"}).endswith("copied to where they last: begun")
    assert describe_copy(Finalizing("f"), numbers) == ""
    assert describe_copy(Created(), numbers) == ""
