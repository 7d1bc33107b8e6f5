"""A worker that is killed anywhere: each cell runs once, and its end is the one that it had."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import observe
from holdfast.agent.create import create_run, next_attempt
from holdfast.agent.queueing.starting import build_spec
from holdfast.host import processes
from holdfast.model.job import Retries
from holdfast.model.queue import CLOSED_STATES, Cell, CellRef, CellState, OrderVerb
from holdfast.model.run import Ended, Outcome
from tests.agent.queueing.working import payload
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.identity import ProcessId
    from tests.agent.queueing.working import Work

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("HOLDFAST_SOAK_KILLS", "500"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", str(int.from_bytes(os.urandom(4), "big"))))
RUN_ID = "20261120-104501-t-3fa2"
LONGEST_GAP_S = 0.25
SLOTS = 2


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def campaign(work: Work, directory: Path, *, cells: int, kills: int, seed: int) -> None:
    """Kill the worker at random moments until so many are dead; then let the queue end and hold it to account."""
    draw = random.Random(seed)
    codes = {f"c{n}": n % 7 for n in range(cells)}
    # They must outlast the kills: what ends early leaves nobody to kill.
    longest_s = 3 * SLOTS * kills * LONGEST_GAP_S / cells
    seconds = {name: draw.uniform(0.0, longest_s) for name in codes}
    work.submit({name: payload(directory / name, codes[name], f"{seconds[name]:.3f}") for name in codes}, start=False)
    work.order(OrderVerb.EDIT, values={"cpu_slots": SLOTS})
    dead, end = 0, time.monotonic() + 60 + kills * 2
    while dead < kills and time.monotonic() < end:
        work.ensure()
        if set(work.states().values()) <= CLOSED_STATES:
            # It was faster than the kills.
            break
        work.wait_worker()
        time.sleep(draw.uniform(0.0, LONGEST_GAP_S))
        if work.worker() is None:
            break
        work.kill_worker()
        dead += 1
    work.ensure()
    work.wait_left(timeout_s=60 + kills)
    found = work.cells()
    left = [cell for cell in found.values() if cell.state not in CLOSED_STATES]
    assert not left, f"seed {seed}: {len(left)} are open after {dead} kills: {left[0]}; {work.log()}"
    assert {name: len(lines(directory / name)) for name in codes} == dict.fromkeys(codes, 1), f"seed {seed}"
    assert {name: found[name].exit_code for name in codes} == codes, f"seed {seed}"
    wrong = {
        name: found[name]
        for name, code in codes.items()
        if found[name].state is not (CellState.FAILED if code else CellState.DONE)
    }
    assert not wrong, f"seed {seed}: {wrong}"
    assert len(os.listdir(work.runs)) == cells
    assert dead >= min(kills, 3), f"seed {seed}: only {dead} workers were killed"


@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_each_cell_runs_once_whenever_the_worker_is_killed(work: Work, tmp_path: Path) -> None:
    campaign(work, tmp_path, cells=6, kills=5, seed=SEED)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_fifty_cells_and_five_hundred_dead_workers(work: Work, tmp_path: Path) -> None:
    campaign(work, tmp_path, cells=50, kills=KILLS, seed=SEED)


def claim(work: Work, command: tuple[str, ...]) -> Cell:
    """A cell that is CLAIMED under `RUN_ID`, by a worker that is no more."""
    (cell_id,) = work.submit({"a": command}, start=False)
    with work.open() as queue:
        return queue.move_on(cell_id, CellState.CLAIMED, run_id=RUN_ID, runs_root=work.runs, attempts=0)


def make_run(work: Work, cell: Cell) -> str:
    with work.open() as queue:
        submission, queue_id = queue.submission_of(cell.id), queue.settings().queue_id
    ref = CellRef(queue_id, cell.key, cell.group, cell.name)
    run_dir, _ = create_run(
        build_spec(submission), work.runs, argv=(), cwd="/", environ=work.environ, run_id=RUN_ID, cell=ref
    )
    return run_dir


def make_nothing(_work: Work, _cell: Cell) -> None:
    """Killed after the claim."""


def make_empty_directory(work: Work, _cell: Cell) -> None:
    """Killed after mkdir."""
    os.mkdir(f"{work.runs}/{RUN_ID}", 0o700)


def make_without_attempt(work: Work, cell: Cell) -> None:
    """Killed before the attempt's state was there."""
    os.unlink(f"{make_run(work, cell)}/attempts/1/state.json")


def make_whole(work: Work, cell: Cell) -> None:
    """Killed before the supervisor was forked."""
    make_run(work, cell)


def make_and_supervise(work: Work, cell: Cell) -> None:
    """Killed before RUNNING was committed."""
    from holdfast.agent.launch import start_supervisor

    start_supervisor(make_run(work, cell), 1, environ=work.environ)


@pytest.mark.parametrize(
    "made", [make_nothing, make_empty_directory, make_without_attempt, make_whole, make_and_supervise]
)
def test_a_claimed_cell_is_taken_up_wherever_its_worker_was_killed(work: Work, tmp_path: Path, made: object) -> None:
    stamps = tmp_path / "stamps"
    cell = claim(work, payload(stamps, 3))
    made(work, cell)  # type: ignore[operator]
    work.ensure()
    work.wait_left()
    found = work.cells()["a"]
    assert (found.state, found.exit_code, found.run_id) == (CellState.FAILED, 3, RUN_ID)
    assert len(lines(stamps)) == 1
    assert os.listdir(work.runs) == [RUN_ID]


def test_an_attempt_that_ended_before_its_start_was_noted_is_not_begun_again(work: Work, tmp_path: Path) -> None:
    """As `make_and_supervise`, but the run is over when the next worker comes."""
    stamps = tmp_path / "stamps"
    cell = claim(work, payload(stamps, 0))
    make_and_supervise(work, cell)
    wait_until(lambda: work.view("a").over, what="the run is over")
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": CellState.DONE}
    assert len(lines(stamps)) == 1


def test_a_further_attempt_that_was_made_and_not_started_is_started_once(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    work.submit({"a": payload(stamps, 4)})
    work.wait_left()
    cell = work.cells()["a"]
    assert cell.run_dir is not None
    with work.open() as queue:
        queue.move_on(cell.id, CellState.QUEUED)
        queue.move_on(cell.id, CellState.CLAIMED, attempts=1)
    next_attempt(cell.run_dir, "requeue")
    work.ensure()
    work.wait_left()
    assert (work.cells()["a"].state, work.cells()["a"].attempts) == (CellState.FAILED, 2)
    assert len(lines(stamps)) == 2


def test_a_run_that_was_killed_whole_is_begun_again(work: Work, tmp_path: Path) -> None:
    """Supervisor, keeper and job at once, as the end of a box would; lost with proof, so it may run again."""
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 0, "--until", go)}, retries=Retries(max=1, wait_s=0.2))
    wait_until(lambda: len(lines(stamps)) == 1, what="it runs")
    work.wait_state("a", CellState.RUNNING)
    work.kill_worker()
    view = work.view("a")
    state = view.state
    assert state is not None
    keeper, job = observe.recorded_processes(state.state)
    victims = [item for item in (state.supervisor, keeper, job, *processes.find_marked(view.run_id)) if item]
    for victim in victims:
        processes.send_signal(victim, signal.SIGKILL)
    wait_until(lambda: not any(map(processes.is_alive, victims)), what="all of it is dead")
    go.touch()
    work.ensure()
    work.wait_left(timeout_s=60)
    first = observe.observe(str(view.run_dir), attempt=1)
    assert isinstance(first.end, Ended)
    assert first.end.outcome is Outcome.LOST
    cell = work.cells()["a"]
    assert (cell.state, cell.attempts, cell.requeued) == (CellState.DONE, 2, 1)
    assert len(lines(stamps)) == 2


def test_a_run_whose_supervisor_was_killed_gets_another_and_its_job_is_not_touched(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 5, "--until", go)})
    wait_until(lambda: len(lines(stamps)) == 1, what="it runs")
    before = wait_until(lambda: found_supervisor(work), what="it is supervised")
    assert before is not None
    processes.send_signal(before, signal.SIGKILL)
    wait_until(lambda: found_supervisor(work) not in (None, before), what="another supervisor took it up")
    go.touch()
    work.wait_left()
    cell = work.cells()["a"]
    assert (cell.state, cell.exit_code, cell.attempts) == (CellState.FAILED, 5, 1)
    assert len(lines(stamps)) == 1


def found_supervisor(work: Work) -> ProcessId | None:
    state = work.view("a").state
    return None if state is None else state.supervisor


@pytest.mark.slow
def test_a_failed_cell_runs_again_when_somebody_asks_and_keeps_its_run(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    work.submit({"a": payload(stamps, 3)})
    work.wait_left()
    first = work.cells()["a"]
    work.order(OrderVerb.RETRY, cells=(first.key,))
    work.ensure()
    work.wait_left()
    again = work.cells()["a"]
    assert (again.state, again.attempts, again.run_id) == (CellState.FAILED, 2, first.run_id)
    assert len(lines(stamps)) == 2
