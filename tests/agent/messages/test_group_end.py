"""The end of a queue's group: told at least once, when nothing of it goes on by itself, if its jobs ask for that."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.messages import group_end
from holdfast.agent.messages.group_end import GroupMessages, ToldGroups, find_untold, read_told
from holdfast.agent.messages.tries import MOST_TRIES, Undelivered, describe_untold, find_pause_s
from holdfast.host.clock import epoch_s
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.job import JobSpec, Notify
from holdfast.model.queue import JobGroup, JobState, QueuedJob
from tests.agent.messages.endpoints import make_program
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("MON-17")]


class _Queue:
    """As much of a queue as is asked here: groups, at first `lr` alone; of each the job of this run ended last."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = str(directory)
        self.now: dict[JobState, int] = {JobState.DONE: 2, JobState.FAILED: 1, JobState.HELD: 0}
        self.names: tuple[str, ...] = ("lr",)
        self.attempts = 1
        self.ended_at = epoch_s()
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        self.ask(Notify(command=command, on=("group",)))

    def ask(self, notify: Notify) -> None:
        """Have the job say who is told."""
        spec = JobSpec("x", ("true",), "/", notify=notify)
        (self.run_dir / wire.RUN).write_text(json.dumps({"job": wire.encode(spec)}), encoding="utf-8")

    def counts(self) -> dict[str, dict[JobState, int]]:
        return dict.fromkeys(self.names, self.now)

    def groups(self) -> dict[str, JobGroup]:
        return {name: JobGroup(name) for name in self.names}

    def last_end(self, group: str) -> QueuedJob:
        root, run_id = os.path.split(str(self.run_dir))
        ended = {"run_id": run_id, "runs_root": root, "attempts": self.attempts, "ended_at": self.ended_at}
        return QueuedJob(1, "1", group, "a", JobState.DONE, **ended)  # type: ignore[arg-type]  # its fields by name


def messages(queue: _Queue, said: list[str]) -> GroupMessages:
    """Those of a worker that has just begun; nothing wakes it."""
    made = GroupMessages(
        queue,  # type: ignore[arg-type]  # a queue as far as it is asked
        said.append,
        listen=lambda _: None,
        ignore=lambda _: None,
    )
    made.begin()
    return made


def work(queue: _Queue) -> list[str]:
    """A worker comes, finds nothing to do but to tell, and goes; what it said."""
    said: list[str] = []
    messages(queue, said).close()
    return said


@pytest.fixture
def queue(tmp_path: Path) -> _Queue:
    """A queue whose job has a program told, which keeps what it gets."""
    return _Queue(
        tmp_path,
        make_program(
            tmp_path / "hook", f"exec 9>> {tmp_path}/lock; flock 9; cat >> {tmp_path}/got; echo >> {tmp_path}/got"
        ),
    )


def heard(queue: _Queue) -> list[dict[str, Any]]:
    path = f"{queue.directory}/got"
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_the_end_of_a_group_is_told_once_it_is_one(queue: _Queue) -> None:
    said: list[str] = []
    queue.now = {JobState.DONE: 1, JobState.RUNNING: 1}
    worker = messages(queue, said)
    worker.tell("lr", str(queue.run_dir))
    assert worker.under_way == {}
    queue.now = {JobState.DONE: 2, JobState.FAILED: 1, JobState.HELD: 0}
    worker.tell("lr", str(queue.run_dir))
    worker.close()
    (got,) = heard(queue)
    assert got["text"].startswith("group lr: nothing goes on: 2 done, 1 failed\n")
    assert got["counts"] == {"done": 2, "failed": 1, "held": 0}
    worker.tell("lr", str(queue.run_dir))
    assert work(queue) == said == []
    assert len(heard(queue)) == 1
    # Another end of the same group is told, too.
    queue.attempts = 2
    assert work(queue) == []
    assert len(heard(queue)) == 2


def test_who_does_not_ask_is_not_told_nor_of_what_ended_long_ago(queue: _Queue) -> None:
    queue.ended_at -= group_end.RECENT_S + 1
    assert work(queue) == []
    queue.ended_at = epoch_s()
    queue.ask(Notify(command=("false",)))
    assert work(queue) == []
    assert heard(queue) == []


@pytest.mark.parametrize(
    ("module", "name", "times"),
    [(group_end, "Offload", 1), (GroupMessages, "_note", 2)],
    ids=["before it is sent", "taken and not noted"],
)
def test_a_worker_that_is_killed_while_it_tells_loses_nothing(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch, module: object, name: str, times: int
) -> None:
    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        monkeypatch.setattr(module, name, die)
        work(queue)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [end.group for end in find_untold(queue, read_told(queue))] == ["lr"]  # type: ignore[arg-type]  # as above
    assert work(queue) == work(queue) == []
    assert len(heard(queue)) == times


def test_what_nobody_took_is_tried_so_often_with_pauses(queue: _Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    now = queue.ended_at
    monkeypatch.setattr(group_end, "epoch_s", lambda: now)
    queue.ask(Notify(command=("false",), on=("group",)))
    said = work(queue)
    assert said == ["the end of the group lr was not told: command: false ended with 1"]
    assert work(queue) == []
    for tries in range(1, MOST_TRIES):
        now += find_pause_s(tries)
        queue.ended_at = now
        assert len(work(queue)) == 1
    now += find_pause_s(MOST_TRIES)
    queue.ended_at = now
    assert work(queue) == []
    assert read_told(queue).untold["lr"].tries == MOST_TRIES  # type: ignore[arg-type]  # as above


def test_a_note_that_cannot_be_read_or_written_tells_again_and_no_sooner(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "commit", refuse)
        said: list[str] = []
        queue.now = {JobState.RUNNING: 1}
        worker = messages(queue, said)
        queue.now = {JobState.DONE: 1}
        worker.tell("lr", str(queue.run_dir))
        worker.close()
        worker.look()
        worker.close()
    assert len(heard(queue)) == 1
    assert "cannot be noted: " in said[0]
    with open(f"{queue.directory}/{group_end.TOLD}", "w", encoding="utf-8") as file:
        file.write("{")
    assert work(queue) == []
    assert len(heard(queue)) == 2


@pytest.mark.parametrize("tries", [0, -5])
def test_a_damaged_count_of_tries_holds_nothing_up(queue: _Queue, tries: int) -> None:
    kept = {"lr": Undelivered("run 1", tries, queue.ended_at)}
    with open(f"{queue.directory}/{group_end.TOLD}", "wb") as file:
        file.write(wire.to_bytes(ToldGroups(untold=kept)))
    assert describe_untold(kept["lr"], queue.ended_at)
    work(queue)
    queue.attempts = 2
    assert work(queue) == []
    assert len(heard(queue)) == 1


def test_where_nothing_can_be_noted_only_the_worker_that_saw_the_end_tells_it(queue: _Queue) -> None:
    os.mkdir(f"{queue.directory}/{group_end.TOLD}")
    said: list[str] = []
    queue.now = {JobState.RUNNING: 1}
    worker = messages(queue, said)
    queue.now = {JobState.DONE: 1}
    for _ in range(3):
        worker.tell("lr", str(queue.run_dir))
        worker.close()
    assert len(heard(queue)) == 1
    for _ in range(3):
        assert "cannot be noted" in work(queue)[0]
    assert len(heard(queue)) == 1
    os.rmdir(f"{queue.directory}/{group_end.TOLD}")
    assert work(queue) == work(queue) == []
    assert len(heard(queue)) == 2


def test_a_worker_that_is_killed_each_time_that_it_tells_tells_so_often(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(MOST_TRIES + 2):
        child = os.fork()
        if not child:
            monkeypatch.setattr(GroupMessages, "_note", die)
            work(queue)
            os._exit(0)
        os.waitpid(child, 0)
    assert len(heard(queue)) == MOST_TRIES


def test_of_many_groups_so_many_are_told_at_once(queue: _Queue) -> None:
    queue.names = tuple(f"g{number}" for number in range(group_end.MOST_AT_ONCE + 3))
    worker = messages(queue, [])
    assert len(worker.under_way) == group_end.MOST_AT_ONCE
    wait_until(lambda: (worker.take_through(), worker.under_way)[1] == {}, what="all are told")
    assert {got["group"] for got in heard(queue)} == set(queue.names)
    assert len(heard(queue)) == len(queue.names)


def test_what_nobody_took_is_tried_again_by_a_worker_that_is_busy_with_something_else(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = queue.ended_at
    monkeypatch.setattr(group_end, "epoch_s", lambda: now)
    queue.ask(Notify(command=("false",), on=("group",)))
    worker = messages(queue, [])
    worker.close()
    assert worker.find_wait_s() == find_pause_s(1)
    worker.take_through()
    assert worker.under_way == {}
    now += find_pause_s(1)
    assert worker.find_wait_s() == 0.0
    worker.take_through()
    assert list(worker.under_way) == ["lr"]
    worker.close()
    assert worker.find_wait_s() == find_pause_s(2)
    # It goes on by now: there is nothing to tell.
    queue.now = {JobState.RUNNING: 1}
    now += find_pause_s(2)
    worker.take_through()
    assert (worker.under_way, worker.find_wait_s()) == ({}, None)
