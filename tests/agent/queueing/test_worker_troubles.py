"""What may not lose, double or hang a cell: what people do to runs by hand, disks that do not answer, odd limits."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent import acting
from holdfast.agent.queueing import presence, starting, worker
from holdfast.agent.queueing.claiming import Answer
from holdfast.agent.queueing.starting import Made, Starter
from holdfast.agent.queueing.watching import Phase, Watch, look_at
from holdfast.agent.queueing.worker import Worker
from holdfast.model.errors import StorageError
from holdfast.model.queue import CellState, OrderVerb
from holdfast.model.run import Created, Outcome
from tests.agent.queueing.test_worker_starting import FakeQueue
from tests.agent.queueing.working import payload
from tests.rundirs import ended, make_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from holdfast.model.queue import Cell
    from tests.agent.queueing.working import Work

S = CellState
RUN = "20261120-100000-t-0a1b"


@pytest.mark.process
@pytest.mark.requirement("QUEUE-01")
def test_a_live_cell_that_is_restarted_by_hand_is_followed_to_its_new_end(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 0, "--until", go)})
    wait_until(stamps.exists, what="it runs")
    run_dir = str(work.wait_state("a", S.RUNNING).run_dir)
    assert acting.restart(run_dir, environ=work.environ, by="a test", wait_s=None, tell=lambda _: None) == 2
    wait_until(lambda: len(stamps.read_text().splitlines()) == 2, what="it runs again")
    go.touch()
    cell = work.wait_state("a", S.DONE, S.CANCELLED, S.FAILED)
    assert (cell.state, cell.attempts) == (S.DONE, 2)
    work.wait_left()


@pytest.mark.process
def test_without_slots_cells_without_cards_keep_no_worker(work: Work, tmp_path: Path) -> None:
    work.submit({"a": payload(tmp_path / "a", 0)}, start=False)
    work.order(OrderVerb.EDIT, values={"cpu_slots": 0})
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": S.QUEUED}


@pytest.mark.contract
def test_an_attempt_that_the_queue_has_not_counted_is_watched_and_not_repeated(tmp_path: Path) -> None:
    queue = FakeQueue(tmp_path)
    root = queue.submission.runs_root
    make_run(root, RUN, ended(Outcome.FAILED, 1))
    make_run(root, RUN, ended(), attempt=2)
    queue.cell = replace(queue.cell, run_id=RUN, runs_root=root, attempts=1)
    start = Starter(queue).start(queue.cell)  # type: ignore[arg-type]
    assert (start.made, start.cell.attempts) == (Made.STARTED, 2)
    assert sorted(os.listdir(f"{root}/{RUN}/attempts")) == ["1", "2"]


@pytest.mark.contract
@pytest.mark.parametrize("where", ["attempts", "attempts/1/state.json"])
def test_a_run_that_cannot_be_looked_at_is_not_made_anew(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = FakeQueue(tmp_path)
    run_dir = make_run(queue.submission.runs_root, RUN, ended())
    refuse(monkeypatch, f"{run_dir}/{where}")
    assert look_at(run_dir).phase is Phase.UNREADABLE
    monkeypatch.setattr(starting, "create_run", lambda *_, **__: pytest.fail("a second run"))
    queue.cell = replace(queue.cell, state=S.CLAIMED, run_id=RUN, runs_root=queue.submission.runs_root)
    Starter(queue).take_up(queue.cell)  # type: ignore[arg-type]
    monkeypatch.undo()
    assert look_at(run_dir).phase is Phase.OVER


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
    watch = Watch(str(tmp_path))
    try:
        run = watch.add(replace(FakeQueue(tmp_path).cell, run_id=RUN), run_dir, 1)
        watch.take_due()
        run.begun_s, run.restarts = 0.0, 4
        make_run(tmp_path, RUN, Created(), attempt=2)
        watch.postpone(run, -60.0)
        watch.take_due()
        assert (run.look.phase, run.look.attempt) == (Phase.UNTAKEN, 2)
        assert run.restarts == 0
        assert run.begun_s > 0.0, "its supervisor is given time to come up"
    finally:
        watch.close()


@pytest.mark.contract
def test_a_run_that_was_left_to_a_person_is_taken_up_where_it_stands(work: Work, monkeypatch: Any) -> None:
    work.submit({"a": ("true",)}, start=False)
    make_run(work.runs, RUN, Created())
    with work.open() as queue:
        (cell,) = queue.cells()
        queue.move_on(cell.id, S.CLAIMED, run_id=RUN, attempts=0)
        queue.move_on(cell.id, S.RUNNING, attempts=1)
        ours = Worker(queue)
        try:
            state = f"{work.runs}/{RUN}/attempts/1/state.json"
            whole = Path(state).read_bytes()
            Path(state).write_text("{")
            ours._take_stock()
            ours._follow_runs()
            assert queue.cells()[0].state is S.RUNNING, "what cannot be read for a moment says nothing"
            monkeypatch.setattr(worker, "DARK_S", 0.0)
            monkeypatch.setattr(worker, "COME_UP_S", 0.0)
            (run,) = ours._watch.runs.values()
            ours._watch.postpone(run, -60.0)
            ours._follow_runs()
            held = queue.cells()[0]
            assert (held.state, held.attempts) == (S.HELD, 0)
            Path(state).write_bytes(whole)
            make_run(f"{work.directory}/other", RUN, ended())
            for name in ("state.json", "exit.json"):
                os.replace(f"{work.directory}/other/{RUN}/attempts/1/{name}", f"{work.runs}/{RUN}/attempts/1/{name}")
            work.order(OrderVerb.RESUME, cells=(cell.key,))
            # It has ended well meanwhile: no second attempt is begun.
            start = ours._starter.start(queue.cells()[0])
            assert (start.made, start.cell.attempts) == (Made.STARTED, 1)
            assert os.listdir(f"{work.runs}/{RUN}/attempts") == ["1"]
        finally:
            ours.close()


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-12")
def test_a_cell_that_another_box_had_done_before_is_done_here(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.submit({"a": ("true",)}, start=False, claims=f"{work.directory}/claims")
    with work.open() as queue:
        starter = Starter(queue)
        monkeypatch.setattr(starter.shared, "claim", lambda *_: Answer(state=S.DONE, note="done on gpu2: /runs/x"))
        start = starter.start(queue.cells()[0])
        assert (start.made, start.cell.state) == (Made.ELSEWHERE, S.DONE)
        assert start.cell.run_id is None


@pytest.mark.contract
@pytest.mark.requirement("QUEUE-12")
def test_a_claims_directory_that_does_not_answer_is_asked_once_and_every_cell_has_its_turn(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.submit({f"c{n}": ("true",) for n in range(5)}, start=False, claims=f"{work.directory}/claims")
    monkeypatch.setattr(worker, "WINDOW", 2)
    with work.open() as queue:
        for cell in queue.cells():
            queue.move_on(cell.id, S.ELSEWHERE)
        ours = Worker(queue)
        ours._review_s = 0.0
        asked: list[str] = []

        def review(cell: Cell) -> Answer:
            asked.append(cell.name)
            return answer

        try:
            monkeypatch.setattr(ours._starter.shared, "review", review)
            answer = Answer(note="it does not answer")
            ours._review_elsewhere()
            assert asked == ["c0"]
            answer = Answer(state=S.ELSEWHERE)
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
def test_a_cell_whose_run_was_removed_is_let_go_by_name_only(work: Work) -> None:
    work.submit({"a": ("true",)}, start=False)
    make_run(work.runs, RUN, Created())
    with work.open() as queue:
        (cell,) = queue.cells()
        queue.move_on(cell.id, S.CLAIMED, run_id=RUN, attempts=0)
        queue.move_on(cell.id, S.RUNNING, attempts=1)
        ours = Worker(queue)
        try:
            ours._take_stock()
            shutil.rmtree(f"{work.runs}/{RUN}")
            (run,) = ours._watch.runs.values()
            ours._watch.postpone(run, -60.0)
            run.begun_s = -60.0
            ours._follow_runs()
        finally:
            ours.close()
        held = queue.cells()[0]
        assert (held.state, "may still be running" in held.note) == (S.HELD, True)
        # Its job may be at work: with the others it would be begun a second time beside it.
        work.order(OrderVerb.RESUME)
        assert queue.cells()[0].state is S.HELD
        work.order(OrderVerb.RESUME, cells=(cell.key,))
        assert queue.cells()[0].state is S.QUEUED


@pytest.mark.contract
def test_a_worker_that_goes_on_looks_at_the_queue_before_it_sleeps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with work.open() as queue:
        ours = Worker(queue)
        looked: list[str] = []
        monkeypatch.setattr(ours, "_start_cells", lambda: looked.append("looked"))
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
    worker.serve(both, both)  # type: ignore[arg-type]
    assert (both.ran, both.closed) == (2, True)
