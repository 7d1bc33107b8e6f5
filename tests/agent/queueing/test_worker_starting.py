"""What becomes of a cell that cannot be started: back in the queue when it passes, held when it does not."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.queueing import environment, presence, starting, watching, worker
from holdfast.agent.queueing.presence import WorkerLock, read_worker
from holdfast.agent.queueing.starting import Made, Starter, count_taken
from holdfast.agent.queueing.watching import Phase, Watch, look_at
from holdfast.agent.timers import LONGEST_DELAY_MS, Timers
from holdfast.host.inotify import Inotify
from holdfast.host.processes import identify_self
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.job import JobSpec
from holdfast.model.queue import Cell, CellState, NewCell, QueueSettings, Submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.contract


class FakeQueue:
    """What a `Starter` asks of a queue."""

    def __init__(self, directory: Path, **fields: Any) -> None:
        self.directory = str(directory)
        self.cell = Cell(1, "key", "g", "a", CellState.QUEUED)
        base = wire.encode(JobSpec("t", ("/bin/true",), "/"))
        name = environment.store({"PATH": "/usr/bin"}, directory=self.directory)
        known: dict[str, Any] = {"environment": name, **fields}
        self.submission = Submission(
            "g", base, (NewCell("a"),), f"{directory}/runs", "/", ("holdfast",), "a test", "", **known
        )
        self.moves: list[CellState] = []

    def settings(self) -> QueueSettings:
        return QueueSettings("q")

    def submission_of(self, cell_id: int) -> Submission:
        assert cell_id == self.cell.id
        return self.submission

    def move_on(self, cell_id: int, state: CellState, **facts: Any) -> Cell:
        assert cell_id == self.cell.id
        self.moves.append(state)
        self.cell = replace(self.cell, state=state, **facts)
        return self.cell


@pytest.fixture
def queue(tmp_path: Path) -> FakeQueue:
    return FakeQueue(tmp_path)


def starter(queue: FakeQueue) -> Starter:
    return Starter(queue)  # type: ignore[arg-type]  # it asks for no more than that


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(starting, "create_run", create)


def full_disk() -> StorageError:
    error = StorageError("runs: No space left on device")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


def test_a_full_disk_puts_the_cell_back_and_stops_the_others(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(full_disk(), monkeypatch)
    start = starter(queue).start(queue.cell)
    assert start.made is Made.BLOCKED
    assert queue.moves == [CellState.CLAIMED, CellState.QUEUED]
    assert "No space left" in queue.cell.note
    # The next try is of the same run: what was claimed once is never claimed under another id.
    assert queue.cell.run_id is not None
    before = queue.cell.run_id
    assert starter(queue).start(queue.cell).cell.run_id == before


def test_what_a_pause_does_not_mend_is_held(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(NotPermitted("runs belongs to root", hint="use your own"), monkeypatch)
    start = starter(queue).start(queue.cell)
    assert start.made is Made.HELD
    assert queue.cell.note == "runs belongs to root; use your own"


def test_an_environment_that_is_gone_makes_no_run(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path, environment="0" * 32)
    assert starter(queue).start(queue.cell).made is Made.HELD
    assert "environment" in queue.cell.note
    assert not (tmp_path / "runs").exists()


def test_a_job_that_is_none_is_held(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path)
    queue.submission = replace(queue.submission, base={"name": "t"})
    assert starter(queue).start(queue.cell).made is Made.HELD
    queue.submission = replace(queue.submission, base={"name": "../t"})
    queue.cell = replace(queue.cell, run_id=None)
    assert starter(queue).start(queue.cell).made is Made.HELD


def test_a_run_without_a_directory_has_no_attempt(tmp_path: Path) -> None:
    assert look_at(str(tmp_path / "none")).phase is Phase.MISSING
    assert count_taken(str(tmp_path / "none")) == 0


def test_a_state_that_cannot_be_read_is_neither_alive_nor_over(tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "state.json").write_text("{")
    found = look_at(str(tmp_path))
    assert found.phase is Phase.UNREADABLE
    assert "state.json" in found.note


def test_a_watch_without_inotify_says_that_anything_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(watching, "BLIND_POLL_S", 0.001)
    monkeypatch.setattr(Inotify, "__init__", refuse)
    watch = Watch(str(tmp_path))
    assert watch.wait(None) is True
    watch.close()


def test_a_watch_wakes_for_the_journal(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path))
    (tmp_path / "1.json").touch()
    assert watch.wait(None) is True
    assert watch.wait(0.0) is False
    watch.close()


def test_nobody_holds_a_lock_that_was_never_taken_and_its_own_process_is_told_apart(tmp_path: Path) -> None:
    assert read_worker(str(tmp_path)) is None
    lock = WorkerLock(str(tmp_path))
    assert read_worker(str(tmp_path)) is None
    assert not lock.is_stale()
    (tmp_path / presence.LOCK).unlink()
    assert lock.is_stale()
    lock.close()


def test_the_lock_names_its_holder_to_another_process(tmp_path: Path) -> None:
    """A record lock does not stand in the way of its own process, so a child looks."""
    import os

    lock = WorkerLock(str(tmp_path))
    assert lock.take()
    me = identify_self()
    child = os.fork()
    if child == 0:
        try:
            found = read_worker(str(tmp_path))
            os._exit(0 if found is not None and found.process == me and not WorkerLock(str(tmp_path)).take() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()
    assert read_worker(str(tmp_path)) is None
    lock.close()


def test_a_fault_of_ours_is_tried_again_and_left_to_the_log_when_it_stays(
    queue: FakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "MOST_FAULTS", 3)
    asked = []

    def fail(*_: object, **__: object) -> None:
        asked.append(1)
        raise RuntimeError("a bug")

    for name in ("active", "cells", "groups"):
        monkeypatch.setattr(FakeQueue, name, fail, raising=False)
    (tmp_path / "journal").mkdir()
    made = worker.Worker(queue)  # type: ignore[arg-type]
    try:
        with pytest.raises(RuntimeError, match="a bug"):
            made.run(lambda: len(asked) < 100)
    finally:
        made.close()
    assert len(asked) == 4
    assert capfd.readouterr().err.count("RuntimeError: a bug") == 3


def test_a_queue_that_was_removed_has_no_worker(tmp_path: Path) -> None:
    """Its lock file is gone with it; a worker that stayed would keep nobody from starting another."""
    lock = WorkerLock(str(tmp_path))
    assert lock.take()
    (tmp_path / presence.LOCK).unlink()
    asked: list[bool] = []

    class Idle:
        """A worker with nothing to do."""

        def run(self, stay: Callable[[], bool]) -> None:
            asked.append(stay())

        def close(self) -> None:
            asked.append(True)

    worker.serve(Idle(), lock)  # type: ignore[arg-type]
    assert asked == [True]


def test_a_deadline_far_away_fits_into_one_poll() -> None:
    timers = Timers()
    timers.arm("far", 365 * 86400.0, lambda: None)
    assert timers.next_delay_ms() == LONGEST_DELAY_MS < 1 << 31


def test_no_worker_is_started_inside_of_a_job(tmp_path: Path) -> None:
    assert presence.ensure_worker(str(tmp_path), {"HOLDFAST_RUN_ID": "20261120-104501-t-3fa2"}) is False
    assert not (tmp_path / presence.LOCK).exists()
    assert not (tmp_path / presence.LOG).exists()
