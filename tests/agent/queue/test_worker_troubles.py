"""What may not lose, double or hang a job: what people do to runs by hand, disks that do not answer, odd limits."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.restart import restart_run
from holdfast.agent.launch import start_supervisor
from holdfast.agent.queue import presence, worker
from holdfast.agent.queue.shared_jobs import ClaimAnswer
from holdfast.agent.queue.start import JobStarter, StartOutcome
from holdfast.agent.queue.watch import RunPhase, RunWatch, look_at_run
from holdfast.agent.queue.worker import QueueWorker
from holdfast.model.errors import StorageError
from holdfast.model.queue import JobState, OrderVerb, QueuedJob
from holdfast.model.record import replace
from holdfast.model.run import Created, Outcome
from tests.agent.queue.working import payload
from tests.rundirs import ended, make_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.queue.working import Work

S = JobState
RUN = "20261120-100000-t-0a1b"


@pytest.mark.process
@pytest.mark.requirement("QUEUE-01")
def test_a_live_job_that_is_restarted_by_hand_is_followed_to_its_new_end(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 0, "--until", go)})
    wait_until(stamps.exists, what="it runs")
    run_dir = str(work.wait_state("a", S.RUNNING).run_dir)
    assert restart_run(run_dir, environ=work.environ, by="a test", wait_s=None, tell=lambda _: None).attempt == 2
    wait_until(lambda: len(stamps.read_text().splitlines()) == 2, what="it runs again")
    go.touch()
    job = work.wait_state("a", S.DONE, S.CANCELLED, S.FAILED)
    assert (job.state, job.attempts) == (S.DONE, 2)
    work.wait_left()


@pytest.mark.process
def test_without_slots_jobs_without_cards_keep_no_worker(work: Work, tmp_path: Path) -> None:
    work.submit({"a": payload(tmp_path / "a", 0)}, start=False)
    work.order(OrderVerb.EDIT, values={"cpu_slots": 0})
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": S.QUEUED}


@pytest.mark.contract
def test_an_attempt_that_the_queue_has_not_counted_is_watched_and_not_repeated(work: Work, tmp_path: Path) -> None:
    work.submit({"a": payload(tmp_path / "a", 0)}, start=False)
    make_run(work.runs, RUN, ended(Outcome.FAILED, 1))
    make_run(work.runs, RUN, ended(), attempt=2)
    with work.open() as queue:
        (job,) = queue.jobs()
        start = JobStarter(queue, start_supervisor).start(replace(job, run_id=RUN, attempts=1))
    assert (start.made, start.job.attempts) == (StartOutcome.STARTED, 2)
    assert sorted(os.listdir(f"{work.runs}/{RUN}/attempts")) == ["1", "2"]


@pytest.mark.contract
def test_of_what_a_job_needed_a_worker_looks_for_the_runs_below_its_own_directory_alone(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit({name: payload(tmp_path / name, 0) for name in "abc"}, start=False)
    with work.open() as queue:
        *needs, job = queue.jobs()
        roots = (str(tmp_path), str(work.runs))
        gone = [replace(need, run_id=RUN, runs_root=root) for need, root in zip(needs, roots, strict=True)]
        monkeypatch.setattr(queue, "done_needs", lambda _: gone)
        monkeypatch.setattr(JobStarter, "resume_start", lambda _, claimed: claimed)
        claimed: Any = JobStarter(queue, start_supervisor).start(job)
    assert claimed.note == "needs what was done and whose run was removed since: g/b", "the root of a may hang"


@pytest.mark.contract
@pytest.mark.parametrize("where", ["attempts", "attempts/1/state.json"])
def test_a_run_that_cannot_be_looked_at_is_not_made_anew(
    where: str, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = work.submit({"a": payload(tmp_path / "a", 0)}, start=False)
    run_dir = make_run(work.runs, RUN, ended())
    before = sorted(Path(run_dir).rglob("*"))
    with work.open() as queue:
        claimed = queue.move_on(job_id, S.CLAIMED, run_id=RUN, attempts=0)
        with monkeypatch.context() as broken:
            refuse(broken, f"{run_dir}/{where}")
            assert look_at_run(run_dir).phase is RunPhase.UNREADABLE
            JobStarter(queue, start_supervisor).resume_start(claimed)
    assert look_at_run(run_dir).phase is RunPhase.OVER
    assert sorted(Path(run_dir).rglob("*")) == before
    assert os.listdir(work.runs) == [RUN]


def refuse(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """As a file server that has lost its disk for a moment: EIO for this path alone."""

    def guard(function: Any) -> Any:
        def act(name: Any, *rest: Any, **named: Any) -> Any:
            if name == path:
                raise OSError(errno.EIO, "Input/output error", path)
            return function(name, *rest, **named)

        return act

    for name in ("listdir", "lstat", "stat", "open"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))


@pytest.mark.contract
def test_attempts_that_a_run_begins_by_itself_are_no_lost_supervisors(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, RUN, ended(Outcome.FAILED, 1))
    watch = RunWatch(str(tmp_path))
    try:
        run = watch.add(QueuedJob(1, "key", "g", "a", S.QUEUED, run_id=RUN), run_dir, 1)
        watch.take_due()
        run.begun_s, run.restarts = 0.0, 4
        make_run(tmp_path, RUN, Created(), attempt=2)
        watch.postpone(run, -60.0)
        watch.take_due()
        assert (run.look.phase, run.look.attempt) == (RunPhase.UNTAKEN, 2)
        assert run.restarts == 0
        assert run.begun_s > 0.0, "its supervisor is given time to come up"
    finally:
        watch.close()


@pytest.mark.contract
def test_a_run_that_was_left_to_a_person_is_taken_up_where_it_stands(work: Work, monkeypatch: Any) -> None:
    work.submit({"a": ("true",)}, start=False)
    make_run(work.runs, RUN, Created())
    with work.open() as queue:
        (job,) = queue.jobs()
        queue.move_on(job.id, S.CLAIMED, run_id=RUN, attempts=0)
        queue.move_on(job.id, S.RUNNING, attempts=1)
        ours = QueueWorker(queue, start_supervisor)
        try:
            state = f"{work.runs}/{RUN}/attempts/1/state.json"
            whole = Path(state).read_bytes()
            Path(state).write_text("{")
            ours._take_stock()
            ours._follow_runs()
            assert queue.jobs()[0].state is S.RUNNING, "what cannot be read for a moment says nothing"
            monkeypatch.setattr(worker, "DARK_S", 0.0)
            monkeypatch.setattr(worker, "COME_UP_S", 0.0)
            (run,) = ours._watch.runs.values()
            ours._watch.postpone(run, -60.0)
            ours._follow_runs()
            held = queue.jobs()[0]
            assert (held.state, held.attempts) == (S.HELD, 0)
            Path(state).write_bytes(whole)
            make_run(f"{work.directory}/other", RUN, ended())
            for name in ("state.json", "exit.json"):
                os.replace(f"{work.directory}/other/{RUN}/attempts/1/{name}", f"{work.runs}/{RUN}/attempts/1/{name}")
            work.order(OrderVerb.RESUME, jobs=(job.key,))
            # It has ended well meanwhile: no second attempt is begun.
            start = ours._starter.start(queue.jobs()[0])
            assert (start.made, start.job.attempts) == (StartOutcome.STARTED, 1)
            assert os.listdir(f"{work.runs}/{RUN}/attempts") == ["1"]
        finally:
            ours.close()


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-12")
def test_a_job_that_another_box_had_done_before_is_done_here(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.submit({"a": ("true",)}, start=False, claims=f"{work.directory}/claims")
    with work.open() as queue:
        starter = JobStarter(queue, start_supervisor)
        monkeypatch.setattr(starter.shared, "claim", lambda *_: ClaimAnswer(state=S.DONE, note="done on gpu2: /runs/x"))
        start = starter.start(queue.jobs()[0])
        assert (start.made, start.job.state) == (StartOutcome.ELSEWHERE, S.DONE)
        assert start.job.run_id is None


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-12")
def test_a_claims_directory_that_does_not_answer_is_asked_once_and_every_job_has_its_turn(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit({f"c{n}": ("true",) for n in range(5)}, start=False, claims=f"{work.directory}/claims")
    monkeypatch.setattr(worker, "WINDOW", 2)
    with work.open() as queue:
        for job in queue.jobs():
            queue.move_on(job.id, S.ELSEWHERE)
        ours = QueueWorker(queue, start_supervisor)
        ours._review_s = 0.0
        asked: list[str] = []

        def review(job: QueuedJob) -> ClaimAnswer:
            asked.append(job.name)
            return answer

        try:
            monkeypatch.setattr(ours._starter.shared, "review", review)
            answer = ClaimAnswer(note="it does not answer")
            ours._review_elsewhere()
            assert asked == ["c0"]
            answer = ClaimAnswer(state=S.ELSEWHERE)
            for _ in range(3):
                ours._review_elsewhere()
            assert set(asked) == {f"c{n}" for n in range(5)}
        finally:
            ours.close()


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-01")
def test_a_log_that_cannot_be_written_ends_no_worker(tmp_path: Path) -> None:
    # The queue's disk is full: just then there is something to say, and where it would go has no room either.
    child = os.fork()
    if not child:
        try:
            read, write = os.pipe()
            os.close(read)
            os.dup2(write, 2)
            presence.log_line("no room")
            presence.log_line("no room")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-16")
def test_a_job_whose_run_was_removed_is_let_go_by_name_only(work: Work) -> None:
    work.submit({"a": ("true",)}, start=False)
    make_run(work.runs, RUN, Created())
    with work.open() as queue:
        (job,) = queue.jobs()
        queue.move_on(job.id, S.CLAIMED, run_id=RUN, attempts=0)
        queue.move_on(job.id, S.RUNNING, attempts=1)
        ours = QueueWorker(queue, start_supervisor)
        try:
            ours._take_stock()
            shutil.rmtree(f"{work.runs}/{RUN}")
            (run,) = ours._watch.runs.values()
            ours._watch.postpone(run, -60.0)
            run.begun_s = -60.0
            ours._follow_runs()
        finally:
            ours.close()
        held = queue.jobs()[0]
        assert (held.state, "may still be running" in held.note) == (S.HELD, True)
        # Its job may be at work: with the others it would be begun a second time beside it.
        work.order(OrderVerb.RESUME)
        assert queue.jobs()[0].state is S.HELD
        work.order(OrderVerb.RESUME, jobs=(job.key,))
        assert queue.jobs()[0].state is S.QUEUED


@pytest.mark.contract
def test_a_worker_that_goes_on_looks_at_the_queue_before_it_sleeps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with work.open() as queue:
        ours = QueueWorker(queue, start_supervisor)
        looked: list[str] = []
        monkeypatch.setattr(ours, "_start_jobs", lambda: looked.append("looked"))
        # Nothing sleeps here: a worker that would wait for an event that has been is the mistake.
        monkeypatch.setattr(ours._watch, "wait", lambda _: pytest.fail("it sleeps"))
        try:
            for _ in range(2):
                ours.run(lambda: True)
            assert looked == ["looked"] * 2
        finally:
            ours.close()


class Locked:
    """A lock that can be taken, and a worker whose queue cannot be read once."""

    def __init__(self) -> None:
        self.ran = 0
        self.closed = False

    def is_stale(self) -> bool:
        return False

    def take(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def run(self, stay: Any) -> None:
        assert stay()
        self.ran += 1

    def has_work(self) -> bool:
        if self.ran == 1:
            raise StorageError("the database has been locked for 5 s")
        return False


@pytest.mark.contract
def test_a_worker_that_cannot_tell_whether_anything_is_left_stays() -> None:
    both = Locked()
    worker.work_queue(both, both)  # type: ignore[arg-type]
    assert (both.ran, both.closed) == (2, True)
