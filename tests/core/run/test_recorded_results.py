"""What the end recorded of results, and what is not that any more."""

from __future__ import annotations

import pytest

from holdfast.core.run.recorded_results import is_changed, list_recorded

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
