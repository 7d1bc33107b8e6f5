"""The job's output: its own bytes; a cap keeps head, tail and the first error; a full disk costs only output."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.host.files import fallback
from holdfast.host.job.output import FIRST_ERROR_BYTES, PIECE_BYTES, TRACEBACK, OutputFile, read_lost_output
from holdfast.model import wire
from holdfast.model.identity import LostOutput
from holdfast.model.record import replace
from tests.budget import examples
from tests.host.small_disk import PAGE_BYTES, fill, mount_small_disk
from tests.rundirs import own_run_id

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

CAP = 64 * 1024
CUT = re.compile(rb"\n\[holdfast: (\d+) bytes were cut here, output is capped\]\n")
LOST = re.compile(rb"\n\[holdfast: (\d+) bytes of output were lost here, the disk refused them\]\n")


def build_line(number: int) -> bytes:
    return b"line %07d %s\n" % (number, b"." * 80)


def write_all(path: Path, *pieces: bytes, cap: int = CAP) -> bytes:
    output = OutputFile(str(path), cap)
    for piece in pieces:
        output.write(piece)
    output.close()
    return path.read_bytes()


def test_up_to_the_cap_the_bytes_are_the_jobs_own(tmp_path: Path) -> None:
    data = bytes(range(256)) * (CAP // 256)
    assert write_all(tmp_path / "output.log", data[:1000], b"", data[1000:]) == data


def test_a_new_keeper_goes_on_with_the_same_file(tmp_path: Path) -> None:
    write_all(tmp_path / "output.log", b"one\n")
    assert write_all(tmp_path / "output.log", b"two\n") == b"one\ntwo\n"


def test_a_pipe_in_its_place_takes_nothing_and_stops_nobody(tmp_path: Path) -> None:
    """A job may put it there; a new keeper would wait for a reader as soon as it is full."""
    path = tmp_path / "output.log"
    os.mkfifo(path)
    output = OutputFile(str(path), CAP)
    output.write(bytes(1 << 20))
    path.unlink()
    output.write(b"on\n")
    output.close()
    assert path.read_bytes() == b"\n[holdfast: 1048576 bytes of output were lost here, the disk refused them]\non\n"


def test_OBS_13_beyond_the_cap_head_and_tail_are_kept_and_the_middle_is_counted(tmp_path: Path) -> None:
    lines = [build_line(number) for number in range(20_000)]
    found = write_all(tmp_path / "output.log", *lines)
    assert len(found) <= CAP
    whole = b"".join(lines)
    head, cut, tail = CUT.split(found)
    assert len(head) == CAP // 4
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert tail.startswith(b"line ")
    assert len(head) + int(cut) + len(tail) == len(whole)


@given(st.lists(st.integers(1, 150_000), min_size=1, max_size=8), st.booleans())
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_is_unaccounted_for(tmp_path: Path, sizes: list[int], lined: bool) -> None:
    path = tmp_path / "output.log"
    path.unlink(missing_ok=True)
    whole = b"".join(build_line(number) for number in range(sum(sizes) // 94 + 1))[: sum(sizes)]
    whole = whole if lined else whole.replace(b"\n", b" ")
    pieces, position = [], 0
    for size in sizes:
        pieces.append(whole[position : position + size])
        position += size
    found = write_all(path, *pieces)
    parts = CUT.split(found)
    assert len(found) <= CAP
    assert whole.startswith(parts[0])
    assert whole.endswith(parts[-1])
    assert len(parts) in (1, 3)
    assert len(parts[0]) + (int(parts[1]) + len(parts[2]) if len(parts) == 3 else 0) == len(whole)


def test_whoever_follows_the_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    output = OutputFile(str(path), CAP)
    output.write(b"first\n")
    with path.open("rb") as follower:
        for number in range(5_000):
            output.write(build_line(number))
        assert os.fstat(follower.fileno()).st_ino == path.stat().st_ino
        assert follower.read(6) == b"first\n"
    output.close()


def test_OBS_13_the_first_traceback_of_what_goes_is_kept(tmp_path: Path) -> None:
    filler = [build_line(number) for number in range(2_000)]
    first = TRACEBACK + b":\n  ...\nValueError: the first\n"
    second = TRACEBACK + b":\n  ...\nValueError: the second\n"
    pieces = [*filler[:400], first, *filler[:50], second, *filler]
    found = write_all(tmp_path / "output.log", *pieces)
    assert b"ValueError" not in found
    kept = (tmp_path / "first_error.txt").read_bytes()
    assert kept.startswith(first)
    assert len(kept) <= FIRST_ERROR_BYTES


@pytest.mark.parametrize("shift", [-len(TRACEBACK), -5, -1, 0, 1])
def test_a_traceback_across_two_pieces_of_the_search_is_found(tmp_path: Path, shift: int) -> None:
    head = CAP // 4
    data = b"x" * (head + PIECE_BYTES + shift) + TRACEBACK + b":\nKeyError\n" + b"y" * CAP
    write_all(tmp_path / "output.log", data)
    assert (tmp_path / "first_error.txt").read_bytes().startswith(TRACEBACK + b":\nKeyError\n")


def test_a_traceback_that_stays_needs_no_copy(tmp_path: Path) -> None:
    error = TRACEBACK + b":\nKeyError\n"
    data = write_all(tmp_path / "output.log", error, b"x" * (3 * CAP), b"\n" + error)
    assert data.count(TRACEBACK) == 2
    assert not (tmp_path / "first_error.txt").exists()


def test_the_first_error_is_not_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "first_error.txt").symlink_to(victim)
    data = b"x" * CAP + TRACEBACK + b"\n" + b"y" * CAP
    assert len(write_all(tmp_path / "output.log", data)) <= CAP
    assert not victim.exists()


@pytest.mark.requirement("OBS-11")
def test_OBS_11_a_full_disk_costs_output_which_is_counted(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "output.log"
        output = OutputFile(str(path), 10 << 20)
        output.write(b"before\n")
        ballast = fill(disk)
        lines = [build_line(number) for number in range(1_000)]
        for line in lines:
            output.write(line)
        ballast.unlink()
        output.write(b"after\n")
        output.close()
        before, lost, after = LOST.split(path.read_bytes())
        whole = b"before\n" + b"".join(lines)
        assert whole.startswith(before)
        assert len(before) + int(lost) == len(whole)
        assert after == b"after\n"


@pytest.mark.requirement("OBS-11")
def test_OBS_11_what_was_lost_is_said_at_the_end_at_the_latest(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "output.log"
        output = OutputFile(str(path), 10 << 20)
        ballast = fill(disk)
        output.write(b"gone\n")
        ballast.unlink()
        output.close()
        assert LOST.fullmatch(path.read_bytes())


@pytest.mark.requirement("OBS-11")
def test_OBS_11_what_was_lost_is_on_record_at_once_and_counted_on_by_the_next_writer(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path, attempt = disk / "output.log", (own_run_id(), 1)
        try:
            first = OutputFile(str(path), 10 << 20, attempt)
            first.write(b"before\n")
            assert read_lost_output(*attempt, str(disk)) is None
            fill(disk)
            page = PAGE_BYTES - len(b"before\n")
            first.write(bytes(page + 100))
            lost = read_lost_output(*attempt, str(disk))
            assert lost is not None
            assert (lost.offset, lost.lost_bytes, lost.error) == (PAGE_BYTES, 100, os.strerror(errno.ENOSPC))
            first.close()
            second = OutputFile(str(path), 10 << 20, attempt)
            second.write(bytes(50))
            second.close()
            assert read_lost_output(*attempt, str(disk)) == replace(lost, lost_bytes=150)
        finally:
            fallback.clear(*attempt)


def test_a_full_disk_is_asked_to_take_the_record_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def commit(run_id: str, attempt: int, path: str, data: bytes, *, durable: bool) -> bool:
        told.append(wire.from_bytes(LostOutput, data, path).lost_bytes)
        return True

    monkeypatch.setattr(fallback, "commit", commit)
    output = OutputFile(str(tmp_path / "gone" / "output.log"), CAP, (own_run_id(), 1))
    for _ in range(1000):
        output.write(b"x")
    output.close()
    assert told == [*(1 << power for power in range(10)), 1000]


def test_a_disk_that_stays_full_is_no_error(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        output = OutputFile(str(disk / "output.log"), 10 << 20)
        fill(disk)
        output.write(b"gone\n")
        output.close()
        assert (disk / "output.log").read_bytes() == b""


def test_a_capped_log_on_a_full_disk_still_says_what_is_missing(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "output.log"
        output = OutputFile(str(path), CAP)
        fill(disk, leave_bytes=CAP // 2)
        whole = b"".join(build_line(number) for number in range(3_000))
        for start in range(0, len(whole), 1000):
            output.write(whole[start : start + 1000])
        output.close()
        found = path.read_bytes()
        assert len(found) <= CAP
        assert whole.startswith(LOST.split(found)[0])


def test_a_directory_that_comes_late(tmp_path: Path) -> None:
    path = tmp_path / "later" / "output.log"
    output = OutputFile(str(path), CAP)
    output.write(b"lost\n")
    path.parent.mkdir()
    output.write(b"kept\n")
    output.close()
    assert path.read_bytes() == b"\n[holdfast: 5 bytes of output were lost here, the disk refused them]\nkept\n"


def test_a_directory_that_never_comes(tmp_path: Path) -> None:
    output = OutputFile(str(tmp_path / "gone" / "output.log"), CAP)
    output.write(b"lost\n")
    output.close()
    assert not (tmp_path / "gone").exists()


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "output.log").symlink_to(victim)
    output = OutputFile(str(tmp_path / "output.log"), CAP)
    output.write(b"x")
    output.close()
    assert victim.read_bytes() == b"precious"


@pytest.mark.requirement("OBS-13")
@pytest.mark.parametrize("torn", ["truncated", "half the note", "half the tail", "nothing yet"])
def test_a_writer_killed_in_the_middle_of_a_cut_loses_no_tail(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "output.log"
    head, tail = b"h" * 100, b"t" * 300
    note = b"\n[holdfast: 5000 bytes were cut here, output is capped]\n"
    left = {
        "truncated": b"",
        "half the note": note[:20],
        "half the tail": note + tail[:99],
        "nothing yet": b"m" * 5000 + tail,
    }
    path.write_bytes(head + left[torn])
    (tmp_path / "output.log.tail").write_bytes(b"100 5000\n" + tail)
    log = OutputFile(str(path), 1 << 20)
    log.write(b"more\n")
    log.close()
    assert path.read_bytes() == head + note + tail + b"more\n"
    assert not (tmp_path / "output.log.tail").exists()


def test_a_damaged_tail_is_put_away(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"kept\n")
    (tmp_path / "output.log.tail").write_bytes(b"\xff no numbers\n")
    log = OutputFile(str(tmp_path / "output.log"), 1 << 20)
    log.close()
    assert (tmp_path / "output.log").read_bytes() == b"kept\n"
    assert not (tmp_path / "output.log.tail").exists()
