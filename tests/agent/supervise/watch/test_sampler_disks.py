"""Disks that may not answer are asked beside the loop, and a silence is no answer."""

from __future__ import annotations

import os
import select
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.agent.supervise.timers import Timers
from holdfast.agent.supervise.watch import disks as disk_watch
from holdfast.agent.supervise.watch.disks import DiskWatch, find_disks
from holdfast.host.process.offload import Offload
from holdfast.model.job import DiskNeeds, JobSpec
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext

pytestmark = [pytest.mark.process, pytest.mark.requirement("STOR-01", "MON-10")]


HARDLY_ANY = DiskNeeds(min_free_bytes=1, min_free_inodes=1)


class Box:
    """As much of a supervisor as a watch of disks needs; its loop is turned by hand."""

    def __init__(self, run_dir: Path, needs: DiskNeeds = HARDLY_ANY) -> None:
        self.timers = Timers()
        self.calls: dict[int, Callable[[], None]] = {}
        self.alerts: list[str] = []
        self.context = SimpleNamespace(
            run_dir=str(run_dir),
            spec=JobSpec("t", ("x",), str(run_dir), disk=needs),
            environ={"HF_HOME": f"{run_dir}/not-there-yet", "TMPDIR": "relative"},
            loop=SimpleNamespace(timers=self.timers, add=self.calls.__setitem__, remove=self.calls.__delitem__),
            helpers=set[int](),
        )
        self.watch = DiskWatch(cast("SupervisorContext", self.context), lambda event, **_: self.alerts.append(event))

    def turn(self) -> None:
        for descriptor in select.select(list(self.calls), [], [], 0)[0]:
            self.calls[descriptor]()
        self.timers.run_due()

    def settle(self) -> None:
        """Until no question is open."""

        def turn() -> bool:
            self.turn()
            return not self.context.helpers

        wait_until(turn, what="the answer")

    def read(self) -> list[dict[str, Any]]:
        return self.watch.read()


def test_each_file_system_is_found_once_and_read(tmp_path: Path) -> None:
    box = Box(tmp_path)
    assert box.read() == [], "which they are is being found out"
    assert len(box.context.helpers) == 1, "by a child that is known as none of the job's"
    box.settle()
    disks = box.read()
    assert disks
    assert all("free_bytes" in disk for disk in disks)
    assert len({disk["mount_point"] for disk in disks}) == len(disks)
    box.watch.close()


def test_a_slow_disk_is_read_in_a_child_and_its_answer_comes_with_the_next_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {**find_disks([str(tmp_path)])[0], "slow": True}
    monkeypatch.setattr(disk_watch, "find_disks", lambda _: [facts])
    box = Box(tmp_path)
    box.read()
    box.settle()
    assert "free_bytes" not in box.read()[0]
    box.settle()
    assert box.read()[0]["free_bytes"] > 0
    box.watch.close()
    assert not box.context.helpers
    assert not box.calls


@pytest.mark.slow
def test_a_disk_that_does_not_answer_is_unread_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {**find_disks([str(tmp_path)])[0], "slow": True}
    monkeypatch.setattr(disk_watch, "find_disks", lambda _: [facts])
    monkeypatch.setattr(disk_watch, "_measure_or_say", lambda _: time.sleep(600))
    monkeypatch.setattr(disk_watch, "ANSWER_S", 0.2)
    box = Box(tmp_path)

    def is_unread() -> bool:
        box.turn()
        return [disk.get("unread") for disk in box.read()] == ["no answer within 0.2 s"]

    wait_until(is_unread, what="the end of the patience")
    assert box.alerts == []
    box.watch.close()
    assert not box.context.helpers


def test_nobody_is_sent_after_a_child_that_is_held_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    class Held(Offload):
        """One that outlives being given up, as in uninterruptible sleep."""

        def __init__(self, work: Callable[[], Any]) -> None:
            super().__init__(work)
            sent.append(self.pid)

        def abandon(self) -> None:
            self._finish(block=False)

    facts = {**find_disks([str(tmp_path)])[0], "slow": True}
    monkeypatch.setattr(disk_watch, "find_disks", lambda _: [facts])
    monkeypatch.setattr(disk_watch, "ANSWER_S", 0.1)
    box = Box(tmp_path)
    box.read()
    box.settle()
    monkeypatch.setattr(disk_watch, "Offload", Held)
    monkeypatch.setattr(disk_watch, "_measure_or_say", lambda _: time.sleep(600))
    box.read()

    def turn() -> bool:
        box.turn()
        return "unread" in box.read()[0]

    wait_until(turn, what="it is given up")
    for _ in range(5):
        assert "no answer" in box.read()[0]["unread"]
    assert len(sent) == 1
    assert box.context.helpers == {sent[0]}, "it is still known as none of the job's"
    os.kill(sent[0], signal.SIGKILL)
    monkeypatch.undo()
    wait_until(lambda: (box.read(), box.context.helpers - {sent[0]})[1], what="the next is sent")
    box.settle()
    assert box.read()[0]["free_bytes"] > 0
    box.watch.close()


def test_a_place_that_does_not_tell_is_unread_and_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = {"path": f"{tmp_path}/gone", "mount_point": "/gone", "kind": "unknown", "slow": True, "in_memory": False}
    monkeypatch.setattr(disk_watch, "find_disks", lambda _: [silent])
    box = Box(tmp_path)
    box.read()
    box.settle()
    box.read()
    box.settle()
    assert box.read()[0]["unread"] == "No such file or directory"
    box.watch.close()


def test_a_question_that_fails_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> list[dict[str, object]]:
        raise RuntimeError("no mount table")

    monkeypatch.setattr(disk_watch, "find_disks", fail)
    box = Box(tmp_path)
    for _ in range(2):
        assert box.read() == []
        box.settle()
    monkeypatch.undo()
    box.read()
    box.settle()
    assert box.read()


@pytest.mark.parametrize(
    ("frees", "alerts"),
    [
        ([10e9] * 12, []),
        ([10e9, 10e9, 10e9, 10e9, 10e9, 0.9e9, 0.9e9, 1.1e9, 0.9e9, 0.9e9], ["disk_filling"]),
        ([10e9, 0.9e9, 5e9, 0.9e9], ["disk_filling"]),
        ([0.5e9] * 12, []),
    ],
    ids=["room", "too little, around the limit", "one checkpoint", "never had room"],
)
def test_too_little_room_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frees: list[float], alerts: list[str]
) -> None:
    """The needed gigabyte was there at first; what never had it has been told by preflight."""
    here = {**find_disks([str(tmp_path)])[0], "in_memory": False}
    monkeypatch.setattr(disk_watch, "find_disks", lambda _: [here])
    box = Box(tmp_path, DiskNeeds(min_free_bytes=10**9, min_free_inodes=1))
    box.read()
    box.settle()
    now = [0.0]
    monkeypatch.setattr(disk_watch, "monotonic_s", lambda: now[0])
    for free in frees:
        now[0] += 86_400.0
        facts = {"free_bytes": int(free), "total_bytes": 10**11, "free_inodes": None, "total_inodes": None}
        monkeypatch.setattr(disk_watch, "_measure", lambda _, facts=facts: dict(facts))
        box.read()
    assert box.alerts == alerts
    box.watch.close()
