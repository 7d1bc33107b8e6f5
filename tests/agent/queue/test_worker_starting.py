"""What becomes of a job that cannot be started: back in the queue when it passes, held when it does not."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from holdfast.agent.launch import start_supervisor
from holdfast.agent.queue import presence, worker
from holdfast.agent.queue import watch as watching
from holdfast.agent.queue.change import start_worker
from holdfast.agent.queue.presence import WorkerLock, read_worker
from holdfast.agent.queue.start import count_taken
from holdfast.agent.queue.watch import RunPhase, RunWatch, look_at_run
from holdfast.agent.supervise.timers import LONGEST_DELAY_MS, Timers
from holdfast.host.files.inotify import Inotify
from holdfast.host.process.processes import identify_self
from holdfast.model.errors import StorageError
from holdfast.model.job import DiskNeeds
from holdfast.model.queue import JobState, NewJob
from holdfast.model.record import replace
from holdfast.store.queue.queue import Queue
from tests.agent.queue.working import payload
from tests.host.small_disk import fill, mount_small_disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.model.queue import JobGroup, QueuedJob
    from tests.agent.queue.working import Work

S = JobState


@pytest.mark.slow
@pytest.mark.process
def test_a_full_disk_keeps_the_job_queued_and_it_runs_under_the_same_id_when_there_is_room(
    work: Work, tmp_path: Path
) -> None:
    with mount_small_disk(tmp_path / "small", 256 * 1024) as disk:
        ballast = fill(disk)
        work.runs = str(disk / "runs")
        work.submit({"a": payload(tmp_path / "a", 0)}, disk=DiskNeeds(min_free_bytes=0, min_free_inodes=0))
        refused = wait_until(lambda: find_noted(work, "No space left"), what=f"the full disk is named; {work.log()}")
        assert refused is not None
        assert refused.state is S.QUEUED
        assert refused.run_id is not None
        assert not (tmp_path / "a").exists()
        ballast.unlink()
        # The next try is of the same run: what was claimed once is never claimed under another id.
        assert work.wait_state("a", S.DONE).run_id == refused.run_id
        work.wait_left()


def find_noted(work: Work, words: str) -> QueuedJob | None:
    """The job, once its note has these words."""
    (job,) = work.jobs().values()
    return job if words in job.note else None


@pytest.mark.process
def test_what_a_pause_does_not_mend_is_held(work: Work, tmp_path: Path) -> None:
    Path(work.runs).chmod(0o777)
    work.submit({"a": payload(tmp_path / "a", 0)})
    held = work.wait_state("a", S.HELD)
    assert "could be replaced by others" in held.note
    work.wait_left()
    assert not (tmp_path / "a").exists()


@pytest.mark.process
def test_an_environment_that_is_gone_makes_no_run(work: Work, tmp_path: Path) -> None:
    work.submit({"a": payload(tmp_path / "a", 0)}, environment="0" * 32)
    assert "environment" in work.wait_state("a", S.HELD).note
    work.wait_left()
    assert not os.path.exists(work.runs) or os.listdir(work.runs) == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("base", [{"name": "t"}, {"name": "../t"}], ids=["no command", "a name that leaves"])
def test_a_job_that_is_none_is_held(work: Work, tmp_path: Path, base: dict[str, object]) -> None:
    with work.open() as queue:
        queue.submit(replace(work.make({"a": ()}, {}), base=base, jobs=(NewJob("a"),)))
    work.ensure()
    assert "its job cannot be read" in work.wait_state("a", S.HELD).note
    work.wait_left()


@pytest.mark.contract
def test_a_run_without_a_directory_has_no_attempt(tmp_path: Path) -> None:
    assert look_at_run(str(tmp_path / "none")).phase is RunPhase.MISSING
    assert count_taken(str(tmp_path / "none")) == 0


@pytest.mark.contract
def test_a_state_that_cannot_be_read_is_neither_alive_nor_over(tmp_path: Path) -> None:
    attempt = tmp_path / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "state.json").write_text("{")
    found = look_at_run(str(tmp_path))
    assert found.phase is RunPhase.UNREADABLE
    assert "state.json" in found.note


@pytest.mark.contract
def test_a_watch_without_inotify_says_that_anything_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(watching, "BLIND_POLL_S", 0.001)
    monkeypatch.setattr(Inotify, "__init__", refuse)
    watch = RunWatch(str(tmp_path))
    assert watch.wait(None) is True
    watch.close()


@pytest.mark.contract
def test_a_watch_wakes_for_the_journal(tmp_path: Path) -> None:
    watch = RunWatch(str(tmp_path))
    (tmp_path / "1.json").touch()
    assert watch.wait(None) is True
    assert watch.wait(0.0) is False
    watch.close()


@pytest.mark.contract
def test_nobody_holds_a_lock_that_was_never_taken_and_its_own_process_is_told_apart(tmp_path: Path) -> None:
    assert read_worker(str(tmp_path)) is None
    lock = WorkerLock(str(tmp_path))
    assert read_worker(str(tmp_path)) is None
    assert not lock.is_stale()
    (tmp_path / presence.LOCK).unlink()
    assert lock.is_stale()
    lock.close()


@pytest.mark.contract
def test_the_lock_names_its_holder_to_another_process(tmp_path: Path) -> None:
    """A record lock does not stand in the way of its own process, so a child looks."""
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


class BrokenQueue(Queue):
    """A real queue with a bug: nothing can be read from it."""

    asked = 0

    def fail(self, *_: object, **__: object) -> NoReturn:
        self.asked += 1
        raise RuntimeError("a bug")

    active = jobs = groups = fail


@pytest.mark.contract
def test_a_fault_of_ours_is_tried_again_and_left_to_the_log_when_it_stays(
    work: Work, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "LONGEST_PAUSE_S", 0.001)
    monkeypatch.setattr(worker, "MOST_FAULTS", 3)
    with contextlib.closing(BrokenQueue(work.directory)) as queue:
        made = worker.QueueWorker(queue, start_supervisor)
        try:
            with pytest.raises(RuntimeError, match="a bug"):
                made.run(lambda: queue.asked < 100)
        finally:
            made.close()
        assert queue.asked == 4
    assert capfd.readouterr().err.count("RuntimeError: a bug") == 3


class SlowQueue(Queue):
    """A real queue; time passes while it is looked at what may start."""

    faults = 0

    def pass_time(self) -> None:
        raise NotImplementedError

    def candidates(self, **asked: Any) -> list[QueuedJob]:
        found = super().candidates(**asked)
        self.pass_time()
        return found

    def groups(self) -> dict[str, JobGroup]:
        if self.faults:
            self.faults -= 1
            raise StorageError("the database is locked")
        return super().groups()


def list_pauses(queue: Queue, monkeypatch: pytest.MonkeyPatch, number: int) -> list[float | None]:
    """The first pauses of a worker that is woken from each at once."""
    pauses: list[float | None] = []

    def wait(_: RunWatch, timeout_s: float | None) -> bool:
        pauses.append(timeout_s)
        return True

    monkeypatch.setattr(RunWatch, "wait", wait)
    with contextlib.closing(worker.QueueWorker(queue, start_supervisor)) as made:
        made.run(lambda: len(pauses) < number)
    return pauses


@pytest.mark.contract
def test_a_job_that_comes_due_while_the_worker_looks_is_not_slept_over(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = time.time() + 3600
    work.submit({"a": ("true",)}, start=False, each={"a": {"not_before": due}})
    clock = [due - 0.001]
    monkeypatch.setattr(worker, "epoch_s", lambda: clock[0])
    with contextlib.closing(SlowQueue(work.directory)) as queue:
        monkeypatch.setattr(queue, "pass_time", lambda: clock.__setitem__(0, due + 0.001))
        (pause,) = list_pauses(queue, monkeypatch, 1)
    assert pause is not None
    assert pause <= 0.1


@pytest.mark.contract
def test_a_worker_whose_pause_after_a_fault_ends_while_it_looks_looks_again_at_once(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit({"a": ("true",)}, start=False)
    clock = [1000.0]
    monkeypatch.setattr(worker, "monotonic_s", lambda: clock[0])
    with contextlib.closing(SlowQueue(work.directory)) as queue:
        queue.faults = 1
        monkeypatch.setattr(queue, "pass_time", lambda: clock.__setitem__(0, 1000.0 + worker.FIRST_PAUSE_S))
        pauses = list_pauses(queue, monkeypatch, 2)
    assert pauses == [worker.FIRST_PAUSE_S, 0.0]


@pytest.mark.contract
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

    worker.work_queue(Idle(), lock)  # type: ignore[arg-type]
    assert asked == [True]


@pytest.mark.contract
def test_a_deadline_far_away_fits_into_one_poll() -> None:
    timers = Timers()
    timers.arm("far", 365 * 86400.0, lambda: None)
    assert timers.next_delay_ms() == LONGEST_DELAY_MS < 1 << 31


@pytest.mark.contract
def test_no_worker_is_started_inside_of_a_job(tmp_path: Path) -> None:
    assert start_worker.ensure_worker(str(tmp_path), {"HOLDFAST_RUN_ID": "20261120-104501-t-3fa2"}) is False
    assert not (tmp_path / presence.LOCK).exists()
    assert not (tmp_path / presence.LOG).exists()
