"""Waiting for a change of an attempt: files and processes, without polling and without missing one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.changes import EVERYTHING, ChangeWatch
from holdfast.host.files import files
from tests.rundirs import dead_process, living_process
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_a_replaced_file_wakes_by_its_name(tmp_path: Path) -> None:
    with ChangeWatch(str(tmp_path)) as changes:
        files.commit(f"{tmp_path}/state.json", b"{}")
        assert "state.json" in changes.wait(LIMIT_S)
        assert changes.wait(0) == frozenset()


def test_appended_output_wakes(tmp_path: Path) -> None:
    files.append(f"{tmp_path}/output.log", b"one\n")
    with ChangeWatch(str(tmp_path)) as changes:
        files.append(f"{tmp_path}/output.log", b"two\n")
        assert changes.wait(LIMIT_S) == {"output.log"}


def test_the_end_of_a_process_wakes_once(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    identity = living_process(child.pid)
    with ChangeWatch(str(tmp_path)) as changes:
        changes.watch(identity, None, dead_process())
        changes.watch(identity)
        child.communicate(b"")
        assert changes.wait(LIMIT_S) == EVERYTHING
        changes.watch(identity)
        assert changes.wait(0) == frozenset()


def test_a_process_that_ended_between_the_look_and_the_watch_wakes_once(tmp_path: Path) -> None:
    with ChangeWatch(str(tmp_path)) as changes:
        changes.watch(dead_process())
        assert changes.wait() == EVERYTHING
        changes.watch(dead_process())
        assert changes.wait(0) == frozenset()


def test_a_wake_descriptor_ends_the_wait(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    with ChangeWatch(str(tmp_path), wake_fd=read_fd) as changes:
        os.write(write_fd, b"x")
        assert changes.wait(LIMIT_S) == frozenset()
    os.close(read_fd)
    os.close(write_fd)


@pytest.mark.slow
@pytest.mark.parametrize("local", [True, False])
def test_a_place_that_makes_no_events_is_looked_at_again(tmp_path: Path, local: bool) -> None:
    directory = str(tmp_path / "absent") if local else str(tmp_path)
    with ChangeWatch(directory, local=local) as changes:
        assert changes.wait(None) == EVERYTHING


@pytest.mark.slow
def test_a_directory_that_vanishes_ends_the_events_not_the_waiting(tmp_path: Path) -> None:
    place = tmp_path / "attempt"
    place.mkdir()
    with ChangeWatch(str(place)) as changes:
        place.rmdir()
        assert changes.wait(LIMIT_S) == EVERYTHING
        assert changes.wait(None) == EVERYTHING
