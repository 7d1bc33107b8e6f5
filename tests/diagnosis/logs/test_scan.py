"""Logs as files: large, binary, endless lines, cut while they are read; what is missed is said."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis.logs import scan, search
from holdfast.diagnosis.logs.scan import classify_text, read_log, read_tail
from holdfast.host.job.output import OutputFile

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.evidence import LogFacts

pytestmark = [pytest.mark.files, pytest.mark.requirement("DIAG-06")]

TRACE = b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    f()\n'
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def read(tmp_path: Path, data: bytes, **options: int) -> LogFacts:
    log = tmp_path / "output.log"
    log.write_bytes(data)
    reading = read_log(str(log), **options)  # type: ignore[arg-type]  # limit_bytes is the only option
    assert reading.known
    assert reading.value is not None
    return reading.value


def ids(facts: LogFacts) -> list[str]:
    return [match.pattern for match in facts.matches]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 8192)


def test_an_empty_log_says_nothing_and_is_whole(tmp_path: Path) -> None:
    facts = read(tmp_path, b"")
    assert (facts.matches, facts.whole, facts.binary, facts.tail, facts.exception) == ((), True, False, "", "")


def test_what_is_no_file_is_unread(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "output.log")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "output.log").write_bytes(OOM)
    for name, why in [
        ("absent", "No such file"),
        ("link", "cannot be opened"),
        ("pipe", "not a regular"),
        (".", "not a regular"),
    ]:
        reading = read_log(str(tmp_path / name))
        assert not reading.known
        assert reading.value is None
        assert why in reading.unread


def test_offsets_are_bytes_of_the_file(tmp_path: Path) -> None:
    before = "préparation\n".encode() * 50
    facts = read(tmp_path, before + OOM)
    assert [match.offset for match in facts.matches] == [len(before)]


def test_a_traceback_is_kept_from_its_header_to_its_exception(tmp_path: Path) -> None:
    facts = read(tmp_path, b"a\n" + TRACE + b"KeyError: 'lr'\nafter\n" + TRACE + b"ValueError: x\n  note\nafter\n")
    assert facts.exception == "ValueError: x"
    assert facts.traceback == TRACE.decode() + "ValueError: x"


def test_tracebacks_of_ranks_that_write_at_once_are_kept_apart(tmp_path: Path) -> None:
    lines = [b"[rank%d]: " % (number % 2) + line for line in TRACE.splitlines(keepends=True) for number in range(2)]
    facts = read(tmp_path, b"".join(lines) + b"[rank1]: KeyError: 1\n[rank0]: KeyError: 0\n")
    assert [(match.line, match.rank) for match in facts.matches] == [("KeyError: 1", 1), ("KeyError: 0", 0)]
    assert "rank1" not in facts.traceback


def test_a_traceback_without_an_end_is_no_exception(tmp_path: Path) -> None:
    facts = read(tmp_path, b"step\n" + TRACE)
    assert (facts.exception, facts.matches) == ("", ())
    assert facts.traceback.startswith("Traceback")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [0, 8100, 8150, 8190, 8192, 8200, 16384 - 30])
def test_a_line_across_the_edge_of_a_block_is_found(tmp_path: Path, before: int) -> None:
    data = b"x" * (before - 1) + b"\n" if before else b""
    facts = read(tmp_path, data + OOM + b"y\n" * 9000)
    assert ids(facts) == ["vram"]
    assert facts.matches[0].offset == before


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", range(8000, 8400, 37))
def test_words_in_an_endless_line_are_found_at_every_place(tmp_path: Path, before: int) -> None:
    words = b" error: [Errno 28] No space left on device: 'x' "
    assert "disk" in ids(read(tmp_path, b"x" * before + words + b"y" * 30000))


@pytest.mark.slow
def test_a_line_of_ten_megabytes_costs_no_more_than_its_bytes(tmp_path: Path) -> None:
    facts = read(tmp_path, b"a" * 10_000_000 + b"\n" + OOM + b"b" * 10_000_000)
    assert ids(facts) == ["vram"]
    assert facts.whole
    assert len(facts.tail) < 300_000


@pytest.mark.usefixtures("small_blocks")
def test_of_a_progress_bar_only_the_last_state_counts(tmp_path: Path) -> None:
    states = b"".join(b"\r%3d%%|###   | loss=nan, MemoryError: x" % number for number in range(1000))
    assert ids(read(tmp_path, states + b"\r100%|######| done\n")) == []
    assert ids(read(tmp_path, states + b"\rMemoryError: x\n")) == ["ram"]
    assert ids(read(tmp_path, states + b"\rMemoryError: x\r\n")) == ["ram"]
    assert ids(read(tmp_path, states + b"\rMemoryError: x")) == ["ram"]


def test_binary_data_is_said_and_never_an_error(tmp_path: Path) -> None:
    facts = read(tmp_path, bytes(range(256)) * 500)
    assert facts.binary
    assert facts.matches == ()
    facts = read(tmp_path, b"\0" * 5000 + b"\n" + OOM)
    assert ids(facts) == ["vram"]
    assert not read(tmp_path, "läuft ✓ ████ 100 %\n".encode() * 500).binary


def test_invalid_text_hides_nothing(tmp_path: Path) -> None:
    assert ids(read(tmp_path, b"\xff\xfe\x80 caf\xe9\n" + OOM + b"\xf0\x9f")) == ["vram"]


def test_a_repeated_line_is_kept_a_few_times_from_both_ends(tmp_path: Path) -> None:
    facts = read(tmp_path, b"".join(b"step %d loss nan\n" % number for number in range(50_000)))
    steps = [match.line for match in facts.matches]
    assert steps[:4] == [f"step {number} loss nan" for number in range(4)]
    assert steps[4:] == [f"step {number} loss nan" for number in range(49_996, 50_000)]


def test_lines_that_were_not_looked_at_are_said(tmp_path: Path) -> None:
    near = b"[Errno 280] something else No space left on devices\n"
    assert read(tmp_path, near * (search.MOST_TRIES // 2)).whole
    facts = read(tmp_path, near * (3 * search.MOST_TRIES))
    assert facts.matches == ()
    assert not facts.whole, "what was passed over is not clean"


def test_a_limit_looks_at_both_ends(tmp_path: Path) -> None:
    data = OOM + b"x\n" * 10_000 + b"MemoryError\n" + b"y\n" * 10_000 + b"Killed\n"
    facts = read(tmp_path, data, limit_bytes=4000)
    assert ids(facts) == ["vram", "killed"]
    assert not facts.whole
    assert read(tmp_path, data, limit_bytes=len(data)).whole


@pytest.mark.usefixtures("small_blocks")
def test_a_log_that_is_cut_while_it_is_read_is_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(OOM + b"x\n" * 50_000)
    real = os.pread
    calls: list[int] = []

    def cutting(descriptor: int, count: int, offset: int) -> bytes:
        if not calls:
            calls.append(offset)
            data = real(descriptor, count, offset)
            os.truncate(log, 5000)
            return data
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", cutting)
    reading = read_log(str(log))
    assert reading.value is not None
    assert ids(reading.value) == ["vram"]
    assert not reading.value.whole


@pytest.mark.usefixtures("small_blocks")
def test_a_log_that_grows_while_it_is_read_ends_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"x\n" * 10_000)
    real = os.pread

    def growing(descriptor: int, count: int, offset: int) -> bytes:
        with log.open("ab") as stream:
            stream.write(b"more\n" * 5000)
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", growing)
    reading = read_log(str(log))
    assert reading.value is not None
    assert reading.value.size_bytes == 20_000
    assert reading.value.whole


def test_the_first_error_of_a_middle_that_was_cut_counts(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    output = OutputFile(str(log), 64 * 1024)
    output.write(b"start\n" * 4000)
    output.write(TRACE + b"torch.OutOfMemoryError: CUDA out of memory.\n")
    for _ in range(40):
        output.write(b"retrying\n" * 1000)
    output.write(TRACE + b"RuntimeError: Connection reset by peer\n")
    output.close()
    assert (tmp_path / "first_error.txt").exists()
    reading = read_log(str(log))
    assert reading.value is not None
    assert [name for name in ids(reading.value) if name != "exception"] == ["vram", "collective.aftermath"]
    assert reading.value.exception == "RuntimeError: Connection reset by peer"
    assert not reading.value.whole, "the middle is missing"


def test_a_first_error_beside_a_log_that_was_not_cut_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "first_error.txt").write_bytes(TRACE + OOM)
    assert ids(read(tmp_path, b"fine\n[holdfast: forged note]\n")) == []


def test_a_report_of_several_lines_is_found_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 100)
    report = (
        b"Root Cause (first observed failure):\n[0]:\n  time      : x\n  host      : n1\n  rank      "
        b": 4 (local_rank: 0)\n"
        b"  exitcode  : -9 (pid: 5)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 5\n"
    )
    facts = read(tmp_path, b"line\n" * 33 + report)
    found = next(match for match in facts.matches if match.pattern == "elastic.root")
    assert (found.rank, found.values["exitcode"]) == (4, "-9")


def test_POST_03_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    data = b"".join(b"line %d\n" % number for number in range(500))
    assert read(tmp_path, data).tail.splitlines() == [f"line {number}" for number in range(300, 500)]
    assert read_tail(str(tmp_path / "output.log"), 2) == "line 498\nline 499"
    assert read_tail(str(tmp_path / "absent")) == ""


@pytest.mark.slow
@given(st.text())
def test_any_text_can_be_classified(text: str) -> None:
    classify_text(text)


PARTS = [
    TRACE,
    OOM,
    b"\r",
    b"\n",
    b"\0\xff",
    b"[rank1]: ",
    b"KeyError: 'x'",
    b"\x1b[31m",
    b"Killed",
    b"Root Cause (first observed failure):",
]


@given(st.lists(st.sampled_from(PARTS) | st.binary(max_size=40)), st.integers(1, 200))
def test_any_bytes_can_be_read_in_any_blocks(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], size: int
) -> None:
    log = tmp_path_factory.getbasetemp() / "anything.log"
    log.write_bytes(b"".join(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK_BYTES", size)
        small = read_log(str(log))
    assert small.known
    assert read_log(str(log)).known
