"""What takes the room: real places behind links, bounded walks, nothing read as empty."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.diagnosis.storage import consumers
from holdfast.diagnosis.storage.consumers import MeasuredPath, find_consumers, list_caches
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.storage.consumers import Consumer

pytestmark = pytest.mark.process


def fill(directory: Path, size: int, files: int = 1) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (directory / f"f{number}").write_bytes(b"x" * (size // files))
    return directory


def found(*places: MeasuredPath) -> tuple[Consumer, ...]:
    reading = find_consumers(places)
    assert reading.value is not None, reading.unread
    return reading.value


@pytest.mark.requirement("STOR-02")
def test_STOR_02_a_cache_behind_a_link_is_first_and_named_by_its_real_place(tmp_path: Path) -> None:
    real = fill(tmp_path / "other/disk", 50_000)
    (tmp_path / "hf").symlink_to(real)
    large = fill(tmp_path / "large", 500_000, files=3)
    first, second = found(MeasuredPath("runs", str(large)), MeasuredPath("HF_HOME", str(tmp_path / "hf")))
    assert (first.name, first.linked, first.real_path) == ("HF_HOME", True, str(real))
    assert first.size_bytes >= 50_000
    assert first.mount_point == second.mount_point != "?"
    assert (second.name, second.linked, second.files) == ("runs", False, 3)


def test_the_larger_comes_first_and_what_is_absent_is_left_out(tmp_path: Path) -> None:
    places = [MeasuredPath(name, str(fill(tmp_path / name, size))) for name, size in (("a", 10_000), ("b", 90_000))]
    assert [one.name for one in found(*places, MeasuredPath("c", str(tmp_path / "absent")))] == ["b", "a"]


def test_links_inside_and_hard_links_are_counted_once(tmp_path: Path) -> None:
    place = fill(tmp_path / "a", 40_000)
    os.link(place / "f0", place / "again")
    (place / "loop").symlink_to(place)
    (one,) = found(MeasuredPath("a", str(place)))
    assert one.size_bytes < 60_000


def test_a_walk_that_is_cut_short_says_so(tmp_path: Path) -> None:
    place = fill(tmp_path / "many", 4000, files=40)
    reading = find_consumers([MeasuredPath("many", str(place))], most_entries=10)
    assert reading.value is not None
    assert not reading.value[0].whole
    assert 0 < reading.value[0].files <= 10


def test_places_that_do_not_answer_are_unread_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "_measure", lambda *_: wait_until(lambda: False))
    reading = find_consumers([MeasuredPath("a", str(tmp_path))], within_s=-1.8)
    assert reading.value is None
    assert "no answer" in reading.unread


def test_caches_are_where_their_variables_say() -> None:
    places = {place.name: place.path for place in list_caches({"HOME": "/home/a", "HF_HOME": "/data/hf"})}
    assert places["HF_HOME"] == "/data/hf"
    assert places["PIP_CACHE_DIR"] == "/home/a/.cache/pip"
    assert "HF_HUB_CACHE" not in places
