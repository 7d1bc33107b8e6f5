"""The queue's store among real processes: killed anywhere, locked, on a full disk, several at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.model.errors import StorageError
from holdfast.model.queue import JobState, OrderVerb
from holdfast.store.queue.queue import Queue
from tests.host.small_disk import fill, mount_small_disk
from tests.store.queueing import dump, finish, job, no_runs, order, states, submission
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process
S = JobState
SUBMIT = (
    "import sys; from holdfast.store.queue.queue import Queue; from tests.store.queueing import submission\n"
    "with Queue(sys.argv[1]) as q:\n"
    "    for i in range(int(sys.argv[3])): q.submit(submission(f'{sys.argv[2]}{i}', group=sys.argv[2][0]))\n"
)


def die_at(number: int, act: Callable[[], None]) -> bool:
    """Do it in a fork that is killed before its system call `number` that changes a file; whether it got that far."""
    pid = os.fork()
    if pid == 0:
        try:
            _count_calls(number)
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _count_calls(number: int) -> None:
    left = [number]

    def count(event: str, args: tuple[object, ...]) -> None:
        # Audit events come before the call. SQLite's own calls make none; the statements that commit do, below.
        if event in ("os.rename", "os.remove", "os.mkdir", "sqlite3.connect") or (event == "open" and args[1] is None):
            step()

    def step(*_: object) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    sys.addaudithook(count)
    real = sqlite3.connect

    def connect(*args: object, **options: object) -> sqlite3.Connection:
        db: sqlite3.Connection = real(*args, **options)  # type: ignore[call-overload]
        db.set_trace_callback(lambda statement: step() if statement.startswith(("COMMIT", "BEGIN")) else None)
        return db

    sqlite3.connect = connect  # type: ignore[assignment]
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        step()
        real_fsync(descriptor)
        step()

    os.fsync = fsync  # type: ignore[assignment]


@pytest.mark.requirement("QUEUE-01")
def test_killed_anywhere_an_act_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "queue"

    def hand_in() -> None:
        with Queue(str(path)) as queue:
            queue.submit(submission("a", job("b", "a")))
            queue.order(order(OrderVerb.CANCEL, 2))

    number = 0
    while die_at(number, hand_in):
        with Queue(str(path), find_runs=no_runs) as queue:
            assert states(queue) in ({}, {"a": S.QUEUED, "b": S.BLOCKED}, {"a": S.QUEUED, "b": S.CANCELLED})
            queue.submit(submission("a", job("b", "a")))
            seen = dump(queue)
        for name in os.listdir(path):
            if name.startswith("queue.") and ".db" in name:
                os.unlink(path / name)
        with Queue(str(path), find_runs=no_runs) as queue:
            assert dump(queue) == seen
        for directory, _, names in os.walk(path, topdown=False):
            for name in names:
                os.unlink(f"{directory}/{name}")
            os.rmdir(directory)
        number += 1
        assert number < 500
    assert number > 20


@pytest.mark.requirement("QUEUE-09")
def test_several_submit_while_jobs_are_moved_on(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with Queue(path) as worker:
        work = worker.submit(submission(*(f"w{i}" for i in range(20)), group="work"))
        command = [sys.executable, "-c", SUBMIT, path]
        others = [subprocess.Popen([*command, name, "15"]) for name in ("ax", "ay", "bz")]
        for each in work:
            finish(worker, each)
        assert [other.wait(timeout=LIMIT_S) for other in others] == [0, 0, 0]
        assert worker.counts() == {"work": {S.DONE: 20}, "a": {S.QUEUED: 30}, "b": {S.QUEUED: 15}}
        ids = [each.id for each in worker.jobs()]
        assert sorted(ids) == list(range(1, 66))
        assert len(os.listdir(f"{path}/journal")) == 46


def test_whoever_holds_the_queue_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "queue")
    monkeypatch.setattr("holdfast.store.queue.locks.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("holdfast.store.queue.database.BUSY_TIMEOUT_S", 0.05)
    with Queue(path) as queue:
        queue.submit(submission("a"))
        holder = (
            "import sqlite3, sys, fcntl, os; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "f = os.open(sys.argv[2], os.O_RDWR); fcntl.flock(f, fcntl.LOCK_EX) if sys.argv[3] == 'flock' else"
            " db.execute('BEGIN IMMEDIATE')\nprint('held', flush=True); sys.stdin.read()\n"
        )
        for kind in ("flock", "database"):
            command = [sys.executable, "-c", holder, queue.path, f"{path}/journal.lock", kind]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "held\n"
                with pytest.raises(StorageError, match=rf"locked for .* s by pid {process.pid} \(") as caught:
                    queue.submit(submission("b"))
                assert "kill -CONT" in caught.value.hint
                assert [each.name for each in queue.jobs()] == ["a"], "reading waits for nobody"
                process.communicate(timeout=LIMIT_S)
        queue.submit(submission("b"))
        assert len(os.listdir(f"{path}/journal")) == 2


def write_until_refused(queue: Queue, job_id: int) -> None:
    """Note something again and again, at most as long as a disk of 2 MiB can take it."""
    for number in range(3000):
        queue.move_on(job_id, S.CLAIMED, note=str(number) * 100)


def test_a_full_disk_takes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 2 << 20) as disk, Queue(f"{disk}/queue") as queue:
        first, _ = queue.submit(submission("a", "b"))
        for leave in (0, 8192, 40_000, 70_000):
            ballast = fill(disk, leave_bytes=leave)
            large = submission(*(job(f"c{i}", change={"command": ["x" * 400]}) for i in range(150)))
            with pytest.raises(StorageError):
                queue.submit(large)
            assert os.listdir(f"{queue.directory}/journal") == ["0000000001.jsonl"]
            assert states(queue) == {"a": S.QUEUED, "b": S.QUEUED}
            ballast.unlink()
        assert len(queue.submit(large)) == 150
        queue.move_on(first, S.CLAIMED, run_id="x")
        before = dump(queue)
        ballast = fill(disk)
        with pytest.raises(StorageError, match=r"full|I/O"):
            write_until_refused(queue, first)
        ballast.unlink()
        assert queue.find(["g/a"])[0].state is S.CLAIMED
        assert len(dump(queue)["jobs"]) == len(before["jobs"])


def test_a_reader_sees_an_act_once_it_is_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "queue")
    with Queue(path) as worker:
        other = subprocess.Popen([sys.executable, "-c", SUBMIT, path, "ax", "1"])
        # As the worker does: when something is in the journal's directory it catches up, which waits for the writer.
        wait_until(lambda: [name for name in os.listdir(f"{path}/journal") if name.endswith(".jsonl")])
        worker.catch_up()
        assert states(worker) == {"ax0": S.QUEUED}
        assert other.wait(timeout=LIMIT_S) == 0
