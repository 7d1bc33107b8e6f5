"""Two boxes, one shared directory: every job runs once, and a box that dies loses its jobs to the other, once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.host.files import claims
from holdfast.host.process import pidfd, processes
from holdfast.model.job import OrphanPolicy
from holdfast.model.queue import JobState
from tests.agent.queue.working import Work, payload
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.requirement("QUEUE-12"), pytest.mark.timeout(300)]

EXPIRY_S = 12.0
"""Long enough that no box looks dead because the machine is busy."""
LEFT = (JobState.DONE, JobState.FAILED)


@pytest.fixture
def other(work: Work, tmp_path: Path) -> Iterator[Work]:
    """A second box: a queue, runs and a worker of its own."""
    directory, runs = tmp_path / "queue2", tmp_path / "runs2"
    directory.mkdir(mode=0o700)
    runs.mkdir(mode=0o700)
    made = Work(str(directory), str(runs), work.workdir, {**work.environ, "HOLDFAST_QUEUE": str(directory)})
    yield made
    made.clear()


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """The directory of claims that both see."""
    return claims.open_directory(str(tmp_path / "claims"), expiry_s=EXPIRY_S).path


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def share(boxes: tuple[Work, ...], directory: Path, shared: str, *, number: int) -> None:
    """Hand the same jobs in on each box, and wait until both know the end of each."""
    jobs = {f"c{n}": payload(directory / f"c{n}", n % 3, 0.02) for n in range(number)}
    for box in boxes:
        box.submit(jobs, claims=shared, on_supervisor_death=OrphanPolicy.KILL)
    for box in boxes:
        wait_until(
            lambda box=box: set(box.states().values()) <= set(LEFT),  # type: ignore[misc]
            LIMIT_S + number,
            what=f"every job has ended; {box.states()} {box.log()}",
        )
    for n in range(number):
        assert count_lines(directory / f"c{n}") == 1, n
        wanted = JobState.FAILED if n % 3 else JobState.DONE
        assert {box.states()[f"c{n}"] for box in boxes} == {wanted}


@pytest.mark.requirement("QUEUE-21")
def test_two_boxes_share_the_jobs_and_each_runs_once(work: Work, other: Work, shared: str, tmp_path: Path) -> None:
    share((work, other), tmp_path, shared, number=4)


@pytest.mark.soak
def test_fifty_jobs_on_two_boxes_run_once_each(work: Work, other: Work, shared: str, tmp_path: Path) -> None:
    share((work, other), tmp_path, shared, number=50)
    ran = [sum(os.path.isdir(f"{box.runs}/{job.run_id}") for job in box.jobs().values()) for box in (work, other)]
    assert min(ran) > 0, ran


@pytest.mark.soak
def test_a_box_that_dies_loses_its_job_to_the_other(work: Work, other: Work, shared: str, tmp_path: Path) -> None:
    mark, go = tmp_path / "ran", tmp_path / "go"
    command = {"c": payload(mark, 0, "--until", go)}
    work.submit(command, claims=shared, on_supervisor_death=OrphanPolicy.KILL)
    wait_until(lambda: count_lines(mark) == 1, what=f"the first box runs it; {work.log()}")
    other.submit(command, claims=shared, on_supervisor_death=OrphanPolicy.KILL)
    assert "claimed by" in other.wait_state("c", JobState.ELSEWHERE).note
    # The box dies: its worker, then its supervisor, with which the job goes.
    work.kill_worker()
    state = work.view("c").state
    assert state is not None
    assert state.supervisor is not None
    run_id = state.run_id
    pidfd.send_signal(state.supervisor, signal.SIGKILL)
    wait_until(lambda: not processes.find_marked(run_id), what="nothing of its run lives")
    go.touch()
    other.wait_state("c", JobState.DONE)
    assert count_lines(mark) == 2
    # When it is back it finds that the job is done, and does not run it again.
    work.ensure()
    work.wait_state("c", *LEFT, JobState.HELD)
    work.wait_left()
    assert count_lines(mark) == 2
