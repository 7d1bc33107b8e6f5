"""Reading output while it grows and after its middle was cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.live.tail import CHUNK_BYTES, MISSED, TailReader, find_last_lines
from holdfast.host.job.output import OutputFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

CAP = 64 * 1024


def take(follower: TailReader) -> bytes:
    return b"".join(follower.read())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[OutputFile]:
    """The log of a job as the keeper writes it, capped."""
    output = OutputFile(str(tmp_path / "output.log"), CAP)
    yield output
    output.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[TailReader]:
    follower = TailReader(str(tmp_path / "output.log"))
    yield follower
    follower.close()


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %06d of the output\n" % number for number in range(first, last))


def test_every_byte_is_answered_once_as_it_comes(log: OutputFile, follower: TailReader) -> None:
    assert take(follower) == b""
    for number in range(50):
        log.write(b"part %d, no newline;" % number)
        assert take(follower) == b"part %d, no newline;" % number
    assert take(follower) == b""


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    follower = TailReader(str(tmp_path / "later.log"))
    assert take(follower) == b""
    (tmp_path / "later.log").write_bytes(b"now")
    assert take(follower) == b"now"
    follower.close()


@pytest.mark.requirement("OBS-13")
def test_a_follower_that_keeps_up_sees_every_byte_through_many_cuts(log: OutputFile, follower: TailReader) -> None:
    seen, number = b"", 0
    while number < 20_000:
        log.write(lines(number, number + 100))
        number += 100
        seen += take(follower)
    assert seen + b"".join(follower.read_rest()) == lines(0, 20_000)


@pytest.mark.requirement("OBS-13")
def test_a_follower_that_fell_behind_a_cut_says_that_it_missed_something(log: OutputFile, follower: TailReader) -> None:
    log.write(lines(0, 100))
    assert take(follower) == lines(0, 100)
    # The head holds what was seen; then more than the cap passes by unseen, twice.
    log.write(lines(100, 1500))
    take(follower)
    for start in range(1500, 12_000, 500):
        log.write(lines(start, start + 500))
    rest = take(follower) + b"".join(follower.read_rest())
    assert MISSED in rest
    assert rest.endswith(lines(11_900, 12_000))
    assert take(follower) == b""


def test_a_writer_between_cutting_and_writing_the_tail_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(lines(0, 1000))
    follower = TailReader(str(path))
    assert take(follower) == lines(0, 1000)
    os.truncate(path, 5000)
    assert take(follower) == b""
    with open(path, "ab") as file:
        file.write(b"\n[holdfast: 1000 bytes were cut here, output is capped]\n" + lines(800, 1000))
    assert take(follower) == b""
    with open(path, "ab") as file:
        file.write(lines(1000, 1010))
    assert take(follower) == lines(1000, 1010)
    follower.close()


def test_a_hole_is_skipped_not_shown_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    with open(path, "wb") as file:
        file.write(b"head\n")
        file.seek(1 << 20)
        file.write(b"tail\n")
    follower = TailReader(str(path))
    seen = take(follower)
    follower.close()
    assert seen.startswith(b"head\n")
    assert seen.endswith(b"tail\n")
    assert len(seen) < 16384


@pytest.mark.parametrize(
    ("content", "count", "expected"),
    [
        (b"", 3, b""),
        (b"one", 1, b"one"),
        (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
        (b"one\ntwo\nthree", 2, b"two\nthree"),
        (b"one\n", 5, b"one\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one\ntwo\n", 0, b""),
        (b"x" * CHUNK_BYTES + b"\n" + b"y" * CHUNK_BYTES + b"\nend\n", 2, b"y" * CHUNK_BYTES + b"\nend\n"),
        (b"a\n" * CHUNK_BYTES, CHUNK_BYTES - 1, b"a\n" * (CHUNK_BYTES - 1)),
    ],
)
def test_the_last_lines_are_found(tmp_path: Path, content: bytes, count: int, expected: bytes) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(content)
    assert content[find_last_lines(str(path), count) :] == expected


def test_following_from_the_last_lines_goes_on_with_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(lines(0, 100))
    follower = TailReader(str(path), find_last_lines(str(path), 2))
    assert take(follower) == lines(98, 100)
    with open(path, "ab") as file:
        file.write(lines(100, 101))
    assert take(follower) == lines(100, 101)
    follower.close()
