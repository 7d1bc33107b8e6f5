"""The kernel's events about real files."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import inotify
from tests.host.lease_support import Child, Line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def queue() -> Iterator[inotify.Inotify]:
    made = inotify.Inotify()
    yield made
    made.close()


def readable(queue: inotify.Inotify, timeout_s: float) -> bool:
    return bool(select.select([queue], [], [], timeout_s)[0])


def test_nothing_happened_is_no_event(queue: inotify.Inotify, tmp_path: Path) -> None:
    queue.add(str(tmp_path), inotify.CREATE)
    assert queue.read() == ()
    assert not readable(queue, 0)


def test_names_in_a_directory_arrive_in_order(queue: inotify.Inotify, tmp_path: Path) -> None:
    watch = queue.add(str(tmp_path), inotify.CREATE | inotify.MOVED_TO | inotify.DELETE)
    (tmp_path / "a").touch()
    os.rename(tmp_path / "a", tmp_path / "å name")
    os.unlink(tmp_path / "å name")
    assert readable(queue, 10)
    assert [(event.watch, event.mask, event.name) for event in queue.read()] == [
        (watch, inotify.CREATE, "a"),
        (watch, inotify.MOVED_TO, "å name"),
        (watch, inotify.DELETE, "å name"),
    ]


def test_last_close_of_a_killed_process_is_an_event(queue: inotify.Inotify, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()

    def work(line: Line) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        line.send(descriptor)
        line.receive(600)

    with Child(work) as child:
        child.receive()
        queue.add(str(path), inotify.CLOSE_NOWRITE)
        assert queue.read() == ()
        child.kill()
        assert readable(queue, 10)
        assert [event.mask for event in queue.read()] == [inotify.CLOSE_NOWRITE]


def test_a_removed_watch_tells_nothing_more(queue: inotify.Inotify, tmp_path: Path) -> None:
    watch = queue.add(str(tmp_path), inotify.CREATE)
    queue.remove(watch)
    (tmp_path / "a").touch()
    assert [event.mask for event in queue.read()] == [inotify.IGNORED]


def test_whoever_makes_events_faster_than_they_are_read_keeps_nobody(queue: inotify.Inotify) -> None:
    endless = os.open("/dev/zero", os.O_RDONLY)
    os.dup2(endless, queue.fileno())
    os.close(endless)
    assert len(queue.read()) > 16_384


def test_what_cannot_be_watched_is_an_error_with_its_path(queue: inotify.Inotify, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        queue.add(str(tmp_path / "none"), inotify.CREATE)
    assert str(caught.value.filename) == str(tmp_path / "none")


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    queue = inotify.Inotify()
    queue.close()
    queue.close()
    assert queue.fileno() == -1
