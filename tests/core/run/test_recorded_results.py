"""What the end recorded of results, and what is not that any more."""

from __future__ import annotations

import pytest

from holdfast.core.run.recorded_results import CHANGED, Change, find_change, has_proven, is_changed, list_recorded

pytestmark = pytest.mark.pure


def test_results_are_listed_by_their_path_and_what_is_no_record_is_none() -> None:
    good = {"name": "a.bin", "bytes": 4, "modified": 12.345}
    bad = ("no", {"name": "b", "bytes": "4", "modified": 1.0}, {"name": "c", "bytes": 4})
    assert list_recorded({"artifacts": [good, *bad]}) == {"artifacts/a.bin": (4, 12.345)}
    assert list_recorded({"artifacts": None}) == {} == list_recorded({})


def test_a_result_is_changed_by_its_size_or_its_time_to_the_millisecond() -> None:
    recorded = (4, 12.345)
    assert not is_changed(recorded, 4, 12.3454321)
    assert is_changed(recorded, 5, 12.345)
    assert is_changed(recorded, 4, 12.35)


def test_a_change_of_the_time_alone_is_told_apart() -> None:
    recorded = (4, 12.345)
    found = [find_change(recorded, size, at) for size, at in ((4, 12.345), (5, 12.345), (4, 13.0))]
    assert found == [None, Change.WRITTEN, Change.TOUCHED]
    assert Change.WRITTEN.words == CHANGED
    assert "has the size but not the time of the end" in Change.TOUCHED.words
    assert "is gone" in Change.GONE.words


def test_results_are_proven_at_an_end_that_succeeded_or_failed_by_their_copy_alone() -> None:
    assert has_proven({"outcome": "succeeded"})
    assert has_proven({"outcome": "failed", "failure_class": "sync_failed"})
    assert not has_proven({"outcome": "stopped", "failure_class": None})
