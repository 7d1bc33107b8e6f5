"""The terminal of whoever follows a run: who is woken, and what a standard error that takes nothing costs."""

from __future__ import annotations

import os
import select
import signal
import sys

import pytest

from holdfast.desk.route.screen import Screen
from holdfast.desk.terminal import listening, watch_reader
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.process


def test_who_is_woken_too_late_writes_into_no_other_file() -> None:
    """A question that outlives the following by a moment: its descriptor's number may be another file's by then."""
    with listening() as (_, heard):
        pass
    pipes = [os.pipe() for _ in range(4)]
    heard.wake()
    for read_fd, write_fd in pipes:
        os.close(write_fd)
        assert os.read(read_fd, 1) == b""
        os.close(read_fd)


def test_words_for_a_standard_error_that_takes_nothing_end_no_following(monkeypatch: pytest.MonkeyPatch) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        Screen(raw=True).err(b"a word\n")


def test_a_pipe_that_nobody_reads_any_more_is_heard_though_nothing_is_written() -> None:
    read_fd, write_fd = os.pipe()
    with listening() as (wake_fd, heard):
        watch_reader(write_fd, lambda: heard.hear(signal.SIGPIPE))
        assert select.select([wake_fd], [], [], 0.0)[0] == []
        os.close(read_fd)
        assert select.select([wake_fd], [], [], LIMIT_S)[0] == [wake_fd]
        assert list(heard) == [signal.SIGPIPE]
    os.close(write_fd)
