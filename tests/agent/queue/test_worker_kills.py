"""A worker that is killed anywhere: each job runs once, and its end is the one that it had."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.control.create import create_run, next_attempt
from holdfast.agent.queue.start import build_spec
from holdfast.agent.view import observe, run_view
from holdfast.host.process import pidfd, processes
from holdfast.model.ids import is_run_id
from holdfast.model.job import Retries
from holdfast.model.queue import CLOSED_STATES, JobRef, JobState, OrderVerb, QueuedJob
from holdfast.model.run import Ended, Outcome
from tests.agent.queue.working import payload
from tests.budget import draw_seed
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.identity import ProcessId
    from tests.agent.queue.working import Work

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("HOLDFAST_SOAK_KILLS", "500"))
RUN_ID = "20261120-104501-t-3fa2"
LONGEST_GAP_S = 0.25
SLOTS = 2


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def campaign(work: Work, directory: Path, *, jobs: int, kills: int) -> None:
    """Kill the worker at random moments until so many are dead; then let the queue end and hold it to account."""
    seed = draw_seed()
    draw = random.Random(seed)
    codes = {f"c{n}": n % 7 for n in range(jobs)}
    longest_s = 3 * SLOTS * kills * LONGEST_GAP_S / jobs
    commands = {
        name: payload(directory / name, code, f"{draw.uniform(0.0, longest_s):.3f}") for name, code in codes.items()
    }
    # One outlasts the kills: without a job there is no worker to kill.
    codes["last"], go = 0, directory / "go"
    commands["last"] = payload(directory / "last", 0, "--until", go)
    work.submit(commands, start=False)
    work.order(OrderVerb.EDIT, values={"cpu_slots": SLOTS})
    for _ in range(kills):
        work.ensure()
        work.wait_worker()
        time.sleep(draw.uniform(0.0, LONGEST_GAP_S))
        work.kill_worker()
    go.touch()
    work.ensure()
    work.wait_left(timeout_s=LIMIT_S + kills)
    found = work.jobs()
    left = [job for job in found.values() if job.state not in CLOSED_STATES]
    assert not left, f"seed {seed}: {len(left)} are open: {left[0]}; {work.log()}"
    assert {name: len(lines(directory / name)) for name in codes} == dict.fromkeys(codes, 1), f"seed {seed}"
    assert {name: found[name].exit_code for name in codes} == codes, f"seed {seed}"
    wrong = {
        name: found[name]
        for name, code in codes.items()
        if found[name].state is not (JobState.FAILED if code else JobState.DONE)
    }
    assert not wrong, f"seed {seed}: {wrong}"
    # A maker that was killed leaves a hidden directory, which is nobody's run.
    assert len([name for name in os.listdir(work.runs) if is_run_id(name)]) == len(codes)


@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_each_job_runs_once_whenever_the_worker_is_killed(work: Work, tmp_path: Path) -> None:
    campaign(work, tmp_path, jobs=6, kills=5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.requirement("QUEUE-01")
def test_QUEUE_01_fifty_jobs_and_five_hundred_dead_workers(work: Work, tmp_path: Path) -> None:
    campaign(work, tmp_path, jobs=50, kills=KILLS)


def claim(work: Work, command: tuple[str, ...]) -> QueuedJob:
    """A job that is CLAIMED under `RUN_ID`, by a worker that is no more."""
    (job_id,) = work.submit({"a": command}, start=False)
    with work.open() as queue:
        return queue.move_on(job_id, JobState.CLAIMED, run_id=RUN_ID, runs_root=work.runs, attempts=0)


def make_run(work: Work, job: QueuedJob) -> str:
    with work.open() as queue:
        submission, queue_id = queue.submission_of(job.id), queue.settings().queue_id
    ref = JobRef(queue_id, job.key, job.group, job.name)
    run_dir, _ = create_run(
        build_spec(submission), work.runs, argv=(), cwd="/", environ=work.environ, run_id=RUN_ID, queued=ref
    )
    return run_dir


def make_nothing(_work: Work, _job: QueuedJob) -> None:
    """Killed after the claim."""


def make_empty_directory(work: Work, _job: QueuedJob) -> None:
    """Killed after mkdir."""
    os.mkdir(f"{work.runs}/{RUN_ID}", 0o700)


def make_without_attempt(work: Work, job: QueuedJob) -> None:
    """Killed before the attempt's state was there."""
    os.unlink(f"{make_run(work, job)}/attempts/1/state.json")


def make_whole(work: Work, job: QueuedJob) -> None:
    """Killed before the supervisor was forked."""
    make_run(work, job)


def make_and_supervise(work: Work, job: QueuedJob) -> None:
    """Killed before RUNNING was committed."""
    from holdfast.agent.launch import start_supervisor

    start_supervisor(make_run(work, job), 1, environ=work.environ)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made", [make_nothing, make_empty_directory, make_without_attempt, make_whole, make_and_supervise]
)
def test_a_claimed_job_is_taken_up_wherever_its_worker_was_killed(work: Work, tmp_path: Path, made: object) -> None:
    stamps = tmp_path / "stamps"
    job = claim(work, payload(stamps, 3))
    made(work, job)  # type: ignore[operator]
    work.ensure()
    work.wait_left()
    found = work.jobs()["a"]
    assert (found.state, found.exit_code, found.run_id) == (JobState.FAILED, 3, RUN_ID)
    assert len(lines(stamps)) == 1
    assert os.listdir(work.runs) == [RUN_ID]


@pytest.mark.slow
def test_an_attempt_that_ended_before_its_start_was_noted_is_not_begun_again(work: Work, tmp_path: Path) -> None:
    """As `make_and_supervise`, but the run is over when the next worker comes."""
    stamps = tmp_path / "stamps"
    job = claim(work, payload(stamps, 0))
    make_and_supervise(work, job)
    wait_until(lambda: work.view("a").over, what="the run is over")
    work.ensure()
    work.wait_left()
    assert work.states() == {"a": JobState.DONE}
    assert len(lines(stamps)) == 1


@pytest.mark.slow
def test_a_further_attempt_that_was_made_and_not_started_is_started_once(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    work.submit({"a": payload(stamps, 4)})
    work.wait_left()
    job = work.jobs()["a"]
    assert job.run_dir is not None
    with work.open() as queue:
        queue.move_on(job.id, JobState.QUEUED)
        queue.move_on(job.id, JobState.CLAIMED, attempts=1)
    next_attempt(job.run_dir, "requeue")
    work.ensure()
    work.wait_left()
    assert (work.jobs()["a"].state, work.jobs()["a"].attempts) == (JobState.FAILED, 2)
    assert len(lines(stamps)) == 2


@pytest.mark.slow
def test_a_run_that_was_killed_whole_is_begun_again(work: Work, tmp_path: Path) -> None:
    """Supervisor, keeper and job at once, as the end of a box would; lost with proof, so it may run again."""
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 0, "--until", go)}, retries=Retries(max=1, wait_s=0.2))
    wait_until(lambda: len(lines(stamps)) == 1, what="it runs")
    work.wait_state("a", JobState.RUNNING)
    work.kill_worker()
    view = work.view("a")
    state = view.state
    assert state is not None
    keeper, leader = run_view.recorded_processes(state.state)
    victims = [item for item in (state.supervisor, keeper, leader, *processes.find_marked(view.run_id)) if item]
    for victim in victims:
        pidfd.send_signal(victim, signal.SIGKILL)
    wait_until(lambda: not any(map(processes.is_alive, victims)), what="all of it is dead")
    go.touch()
    work.ensure()
    work.wait_left()
    first = observe.observe_run(str(view.run_dir), attempt=1)
    assert isinstance(first.end, Ended)
    assert first.end.outcome is Outcome.LOST
    job = work.jobs()["a"]
    assert (job.state, job.attempts, job.requeued) == (JobState.DONE, 2, 1)
    assert len(lines(stamps)) == 2


@pytest.mark.slow
def test_a_run_whose_supervisor_was_killed_gets_another_and_its_job_is_not_touched(work: Work, tmp_path: Path) -> None:
    stamps, go = tmp_path / "stamps", tmp_path / "go"
    work.submit({"a": payload(stamps, 5, "--until", go)})
    wait_until(lambda: len(lines(stamps)) == 1, what="it runs")
    before = wait_until(lambda: found_supervisor(work), what="it is supervised")
    assert before is not None
    pidfd.send_signal(before, signal.SIGKILL)
    wait_until(lambda: found_supervisor(work) not in (None, before), what="another supervisor took it up")
    go.touch()
    work.wait_left()
    job = work.jobs()["a"]
    assert (job.state, job.exit_code, job.attempts) == (JobState.FAILED, 5, 1)
    assert len(lines(stamps)) == 1


def found_supervisor(work: Work) -> ProcessId | None:
    state = work.view("a").state
    return None if state is None else state.supervisor


@pytest.mark.slow
def test_a_failed_job_runs_again_when_somebody_asks_and_keeps_its_run(work: Work, tmp_path: Path) -> None:
    stamps = tmp_path / "stamps"
    work.submit({"a": payload(stamps, 3)})
    work.wait_left()
    first = work.jobs()["a"]
    work.order(OrderVerb.RETRY, jobs=(first.key,))
    work.ensure()
    work.wait_left()
    again = work.jobs()["a"]
    assert (again.state, again.attempts, again.run_id) == (JobState.FAILED, 2, first.run_id)
    assert len(lines(stamps)) == 2
