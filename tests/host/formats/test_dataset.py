"""A write to declared data is seen, also when its times were set back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.host.formats.dataset import MOST_FILES, compare_surveys, survey_data
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("RAIL-07")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "sub").mkdir(parents=True)
    for number in range(5):
        (directory / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    (directory / "sub" / "big.bin").write_bytes(b"x" * 300_000)
    # The kernel's clock for files moves in ticks: wait for the next one, so that a change is later than the baseline.
    probe, first = tmp_path / "tick", (directory / "sub").stat().st_mtime_ns
    wait_until(lambda: (probe.write_text(""), probe.stat().st_mtime_ns > first)[1])
    return directory


def test_RAIL_07_untouched_data_are_unchanged(data: Path) -> None:
    before = survey_data((str(data),))
    assert before.complete
    assert len(before.entries) == 8
    (data / "0.bin").read_bytes()
    assert compare_surveys(before, survey_data((str(data),))) == ()


def test_RAIL_07_every_kind_of_change_is_named(data: Path) -> None:
    before = survey_data((str(data),))
    (data / "0.bin").write_bytes(b"longer" * 1000)
    facts = (data / "1.bin").stat()
    (data / "1.bin").write_bytes(b"\xff" * 1000)
    os.utime(data / "1.bin", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (data / "2.bin").unlink()
    (data / "new.bin").write_bytes(b"")
    changes = compare_surveys(before, survey_data((str(data),)))
    text = "\n".join(changes)
    assert "0.bin was 1000 bytes and is 6000" in text
    assert "1.bin has other content" in text
    assert "2.bin is gone" in text
    assert "new.bin is new" in text
    assert "3.bin" not in text
    assert "big.bin" not in text


def test_RAIL_07_a_write_in_the_end_of_a_large_file_is_seen(data: Path) -> None:
    before = survey_data((str(data),))
    facts = (data / "sub" / "big.bin").stat()
    with (data / "sub" / "big.bin").open("r+b") as file:
        file.seek(299_999)
        file.write(b"y")
    os.utime(data / "sub" / "big.bin", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert compare_surveys(before, survey_data((str(data),))) == (
        f"{os.path.realpath(data)}/sub/big.bin has other content",
    )


def test_a_large_set_is_a_sample_and_says_so(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 10):
        (tmp_path / f"{number:05d}").touch()
    look = survey_data((str(tmp_path),))
    assert not look.complete
    assert len(look.entries) == MOST_FILES
    assert compare_surveys(look, survey_data((str(tmp_path),))) == ()
    assert not survey_data((str(tmp_path),), within_s=0.0).complete


def test_what_cannot_be_looked_at_is_stated(tmp_path: Path) -> None:
    assert survey_data((str(tmp_path / "none"),)).unreadable == (str(tmp_path / "none"),)
