"""One run writes into a directory; the second is refused by name, and nobody who does not write holds the lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.model import wire
from holdfast.training.errors import DirectoryBusy
from holdfast.training.storage.directory_lock import DirectoryLock
from tests.training.faults.driving import start
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.training.faults.driving import Trainer

__all__ = ["start"]
pytestmark = pytest.mark.process
OTHER = "20261129-204500-first-0a1b"


@pytest.mark.requirement("MN-08")
def test_a_second_run_is_refused_and_the_first_is_named(start: Callable[..., Trainer], tmp_path: Path) -> None:
    first = start(tmp_path / "c")
    first.resumed()
    second = start(tmp_path / "c")
    wait_until(lambda: second.process.poll() is not None, what="the second ends")
    assert second.said(f"is written by another run (process {first.process.pid} on ")
    assert second.said("give this one a directory of its own, or wait for that one or stop it")
    assert second.process.returncode != 0
    first.save()
    assert first.saved()["path"].endswith("step-1")
    assert first.quit() == 0
    third = start(tmp_path / "c")
    assert third.resumed()["resumed"] == 1
    assert third.quit() == 0


def test_what_a_trainer_forked_does_not_keep_the_next_one_out(start: Callable[..., Trainer], tmp_path: Path) -> None:
    first = start(tmp_path / "c")
    first.resumed()
    first.save()
    first.saved()
    first.fork()
    first.kill()
    second = start(tmp_path / "c")
    assert second.resumed()["resumed"] == 1
    assert second.quit() == 0


def test_a_child_that_forks_after_the_lock_does_not_release_it_either(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path), print)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(DirectoryBusy):
        DirectoryLock(str(tmp_path), print, wait_s=0.0)
    lock.release()
    DirectoryLock(str(tmp_path), print, wait_s=0.0).release()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"pid": "x", "host": 3}'])
def test_a_holder_that_left_no_name_is_a_holder_all_the_same(content: bytes, tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path), print)
    (tmp_path / ".lock").write_bytes(content)
    said: list[str] = []
    with pytest.raises(DirectoryBusy, match="a process that left no name"):
        DirectoryLock(str(tmp_path), said.append, wait_s=0.1)
    assert len(said) == 1
    lock.release()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        DirectoryLock(str(tmp_path), print)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_without_locks_a_word_is_said_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    said: list[str] = []
    DirectoryLock(str(tmp_path), said.append).release()
    assert "without locks" in said[0]


def test_another_error_of_the_lock_is_not_taken_for_having_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"):
        DirectoryLock(str(tmp_path), print)


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({}, True),
        ({"pid": 2**22 + 1}, False),
        ({"start": "1"}, False),
        ({"boot": "before the restart"}, False),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "boot": "other"}, False),
        ({"host": "another-container", "pid": 2**22 + 1}, False),
    ],
)
def test_a_holder_that_is_known_to_be_alive_is_not_waited_for(
    change: dict[str, object], alive: bool, tmp_path: Path
) -> None:
    lock = DirectoryLock(str(tmp_path), print)
    who = json.loads((tmp_path / ".lock").read_text())
    (tmp_path / ".lock").write_text(json.dumps({**who, **change}))
    said: list[str] = []
    with pytest.raises(DirectoryBusy, match="is written by another run"):
        DirectoryLock(str(tmp_path), said.append, wait_s=0.1)
    assert bool(said) != alive
    lock.release()


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        ((True, "running", ""), False),
        ((True, "running", OTHER), True),
        ((True, "stopping", ""), True),
        ((False, "running", ""), True),
    ],
    ids=["goes-on", "an-attempt-before", "is-ending", "lost"],
)
def test_another_run_that_goes_on_is_named_at_once_and_one_that_ends_is_waited_for(
    how: tuple[bool, str, str], waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised, condition, own = how
    monkeypatch.setenv("HOLDFAST_RUN_ID", own)
    lock = DirectoryLock(str(tmp_path), print)
    who = json.loads((tmp_path / ".lock").read_text())
    # Contained jobs count their processes by themselves.
    other = {"run": OTHER, "run_dir": str(tmp_path / OTHER), "attempt": "1", "space": "pid:[1]", "pid": 2}
    (tmp_path / ".lock").write_text(json.dumps({**who, **other}))
    (attempt := Path(wire.attempt_dir(str(tmp_path / OTHER), 1))).mkdir(parents=True)
    (attempt / wire.STATE).write_text(json.dumps({"state": {"kind": condition}}))
    supervisor = (tmp_path / OTHER / wire.SUPERVISOR_LOCK).open("w")
    if supervised:
        fcntl.flock(supervisor, fcntl.LOCK_EX)
    said: list[str] = []
    named = f"{tmp_path} is written by run {OTHER} on .*; give this one .* \\(holdfast wait {OTHER}\\)$"
    with pytest.raises(DirectoryBusy, match=named):
        DirectoryLock(str(tmp_path), said.append, wait_s=0.1)
    assert bool(said) == waits
    assert not any("process 2" in words for words in said)
    supervisor.close()
    lock.release()


def test_the_holder_says_of_which_run_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ID", OTHER), ("DIR", "/runs/x")):
        monkeypatch.setenv(f"HOLDFAST_RUN_{name}", value)
    monkeypatch.setenv("HOLDFAST_ATTEMPT", "2")
    lock = DirectoryLock(str(tmp_path), print)
    who = json.loads((tmp_path / ".lock").read_text())
    assert (who["run"], who["run_dir"], who["attempt"]) == (OTHER, "/runs/x", "2")
    lock.release()
