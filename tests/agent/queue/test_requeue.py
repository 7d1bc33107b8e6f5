"""Another attempt of a job's run, begun by the queue: with real runs, after real ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.agent.control.create import next_attempt
from holdfast.agent.control.stop import stop_run
from holdfast.agent.launch import start_supervisor
from holdfast.agent.queue.requeue import begin_again, settle_requeue
from holdfast.agent.view.retries import read_requeue
from holdfast.core.queue.requeue import MOST_IN_A_ROW
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.errors import StillAlive
from holdfast.model.gpu import GpuRequest
from holdfast.model.job import GpuOptions, OutOfMemory, Retries
from holdfast.model.requeue import AttemptPlacement, RequeueAction
from holdfast.model.run import Outcome, RequestKind, RunRequest
from tests.agent.queue.trees import end_run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.agent.driving import Drive, Driven

pytestmark = [pytest.mark.process, pytest.mark.requirement("QUEUE-07", "FAIL-16")]


TWICE = (
    "import os, sys, time\n"
    "if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
    "    print('ready', flush=True)\n"
    "    time.sleep(60)\n"
    "print(os.environ['HOLDFAST_REASON'])\n"
)
"""Hangs (within bounds) the first time, ends at once the second time."""
FULL = (
    "import os, sys\n"
    "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
    "if os.environ['HOLDFAST_ATTEMPT'] == '1':\n"
    "    sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"
    " of 23.64 GiB of which 1.06 GiB is free.')\n"
)


def hash_of(run: Driven) -> str:
    return str(json.loads(Path(run.run_dir, wire.RUN).read_text())["job_sha256"])


def lose(run: Driven) -> None:
    """Kill everything of a run at once, as a loss of power does for those who come after."""
    job = run.ready().job.process
    victims = [run.supervisor(), *run.marked(), job]
    keeper = run.running().keeper
    for victim in (run.supervisor(), keeper, *victims):
        pidfd.send_signal(victim, signal.SIGKILL)
    run.assert_gone()


def goes_on(run: Driven) -> Driven:
    """The next attempt, begun by the queue."""
    run.attempt = begin_again(run.run_dir, environ=run.environ, start_supervisor=start_supervisor)
    return run


@pytest.mark.slow
@pytest.mark.requirement("FAIL-02")
def test_a_run_that_was_lost_is_begun_again_as_it_was(drive: Drive) -> None:
    run = drive(sys.executable, "-c", TWICE, retries=Retries(wait_s=0.01))
    lose(run)
    before = hash_of(run)
    run.adopt()
    assert run.ended().outcome is Outcome.LOST
    found = settle_requeue(run.run_dir)
    assert found.kind is RequeueAction.SAME
    assert goes_on(run).attempt == 2
    assert run.ended().exit_code == 0
    assert run.output() == b"requeue\n"
    assert hash_of(run) == before
    assert run.read(wire.MANIFEST)["reason"] == "requeue"
    assert sorted(os.listdir(f"{run.run_dir}/{wire.ATTEMPTS}")) == ["1", "2"]


@pytest.mark.slow
def test_a_run_with_living_processes_is_left_alone(drive: Drive) -> None:
    run = drive(sys.executable, "-c", TWICE, retries=Retries())
    run.ready()
    assert not settle_requeue(run.run_dir).again
    assert begin_again(run.run_dir, environ=run.environ, start_supervisor=start_supervisor) == 1
    run.kill_supervisor()
    with pytest.raises(StillAlive):
        begin_again(run.run_dir, environ=run.environ, start_supervisor=start_supervisor)
    run.adopt()
    run.ask(RequestKind.STOP_NOW)
    run.ended()


def end(drive: Drive, outcome: Outcome = Outcome.PREEMPTED, **fields: Any) -> Driven:
    """A run whose first attempt ended so, as far as its records say."""
    fields.setdefault("retries", Retries())
    run = drive.create(sys.executable, "-c", "import os; print(os.environ['HOLDFAST_REASON'])", **fields)
    end_run(run.run_dir, outcome)
    return run


def test_what_was_decided_is_on_disk_before_it_is_done(drive: Drive) -> None:
    run = end(drive, retries=Retries(wait_s=7))
    found = settle_requeue(run.run_dir)
    assert read_requeue(run.run_dir, 1) == found
    assert json.loads(Path(run.path(wire.REQUEUE)).read_text())["job_sha256"] == hash_of(run)
    assert settle_requeue(run.run_dir) == found
    assert found.wait_s >= 7


def test_a_crash_on_the_way_makes_no_second_attempt(drive: Drive) -> None:
    run = end(drive)
    settle_requeue(run.run_dir)
    Path(run.run_dir, wire.ATTEMPTS, "2").mkdir()
    assert goes_on(run).attempt == 2, "an empty directory says nothing, and is replaced"
    assert run.ended().exit_code == 0
    assert run.output() == b"requeue\n"


def test_an_attempt_that_nobody_took_up_is_taken_up(drive: Drive) -> None:
    run = drive.create("true")
    assert goes_on(run).attempt == 1
    assert run.ended().exit_code == 0


def test_what_a_person_asks_for_is_a_restart(drive: Drive) -> None:
    run = end(drive, Outcome.FAILED)
    assert not settle_requeue(run.run_dir).again
    goes_on(run).ended()
    assert run.output() == b"restart\n"


def test_a_request_to_stop_outlives_the_loss(drive: Drive) -> None:
    run = end(drive)
    request = RunRequest(RequestKind.STOP, by="anna", at="2026-11-20T10:00:00.000Z")
    Path(run.run_dir, wire.DESIRED).write_bytes(wire.to_bytes(request))
    assert not settle_requeue(run.run_dir).again


@pytest.mark.slow
def test_a_stop_between_two_attempts_ends_the_second_as_it_begins(drive: Drive) -> None:
    run = drive(sys.executable, "-c", TWICE, retries=Retries(wait_s=0.01))
    mark_as_queued(run)
    lose(run)
    run.adopt()
    assert run.ended().outcome is Outcome.LOST
    assert settle_requeue(run.run_dir).again
    stopped = stop_run(run.run_dir, force=False, reason="enough", wait_s=10, tell=lambda _view: None)
    assert (stopped.already_ended, stopped.next_attempt, stopped.exit_code) == (True, 2, 0)
    assert goes_on(run).ended().outcome is Outcome.STOPPED
    assert not Path(run.path("output.log")).exists()
    # Somebody who asks for it gets it all the same.
    assert settle_requeue(run.run_dir).kind is RequeueAction.NOTHING
    assert goes_on(run).ended().outcome is Outcome.SUCCEEDED
    after = stop_run(run.run_dir, force=False, reason="", wait_s=10, tell=lambda _view: None)
    assert (after.already_ended, after.next_attempt) == (True, 0)


def mark_as_queued(run: Driven) -> None:
    """Name a queue's job in the run's record, as a worker's start does."""
    path = Path(run.run_dir, wire.RUN)
    queued = {"queue": "q", "key": "k", "group": "g", "name": "n"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "queued": queued}))


def test_a_changed_configuration_is_not_begun_again(drive: Drive, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("lr: 1\n")
    run = end(drive, config=str(config))
    config.write_text("lr: 2\n")
    found = settle_requeue(run.run_dir)
    assert (found.again, f"{config} was changed" in found.why) == (False, True)


def test_a_job_that_allows_no_attempt_of_ours_gets_none(drive: Drive) -> None:
    run = end(drive, retries=Retries(max=0))
    assert not settle_requeue(run.run_dir).again


def test_losses_without_progress_are_bounded_and_progress_begins_anew(drive: Drive) -> None:
    run = end(drive)
    for attempt in range(1, MOST_IN_A_ROW + 1):
        assert settle_requeue(run.run_dir).again, attempt
        run.attempt = next_attempt(run.run_dir, "requeue")
        end_run(run.run_dir, Outcome.LOST, run.attempt, status=None)
    Path(run.path(wire.HEARTBEAT)).write_text(json.dumps({"step": 0}))
    assert not settle_requeue(run.run_dir).again
    Path(run.path(wire.HEARTBEAT)).write_text(json.dumps({"step": 500, "last_durable_step": 400}))
    assert settle_requeue(run.run_dir).again


CARDS = {
    "cards": [
        {"uuid": "GPU-small", "name": "Simulated GPU", "memory_total": "24GiB"},
        {"uuid": "GPU-large", "name": "Simulated GPU", "memory_total": "80GiB"},
    ]
}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box with a small and a large card; the file says what is on them."""
    path = tmp_path / "cards.json"
    path.write_text(json.dumps(CARDS))
    monkeypatch.setenv("HOLDFAST_SIMULATED_GPUS", str(path))
    return path


def fill(drive: Drive, policy: OutOfMemory, *, share: bool = False) -> Driven:
    """A run that ended because its card, the small one, was full."""
    retries = Retries(wait_s=0.01, out_of_memory=policy)
    gpu = GpuOptions(share=share, idle_window_s=0.0, wait_s=600.0)
    run = drive(
        sys.executable,
        "-c",
        FULL,
        retries=retries,
        gpus=GpuRequest(count=1),
        gpu=gpu,
        environ={"HOLDFAST_SIMULATED_GPUS": os.environ["HOLDFAST_SIMULATED_GPUS"]},
    )
    assert run.ended().exit_code == 1, run.log()
    assert run.read(wire.EXIT)["failure_class"] == "gpu_out_of_memory"
    assert run.output().startswith(b"GPU-small\n")
    return run


@pytest.mark.slow
@pytest.mark.requirement("FAIL-05")
def test_a_full_card_is_not_tried_again_by_default(drive: Drive, box: Path) -> None:
    run = fill(drive, OutOfMemory.NEVER)
    assert not settle_requeue(run.run_dir).again
    assert box.exists()


@pytest.mark.slow
@pytest.mark.requirement("FAIL-05")
def test_a_full_card_is_left_for_a_larger_one_once(drive: Drive, box: Path) -> None:
    run = fill(drive, OutOfMemory.LARGER)
    before = hash_of(run)
    found = settle_requeue(run.run_dir)
    assert (found.kind, found.placement) == (
        RequeueAction.LARGER,
        AttemptPlacement(min_total_bytes=24 * 1024**3, why=found.why),
    )
    goes_on(run)
    assert run.ended().exit_code == 0
    assert run.output() == b"GPU-large\n"
    assert json.loads(Path(run.path(wire.PLACEMENT)).read_text())["min_total_bytes"] == 24 * 1024**3
    assert hash_of(run) == before
    end_run(run.run_dir, Outcome.FAILED, 2, failure="gpu_out_of_memory")
    assert "tried once" in settle_requeue(run.run_dir).why
    assert box.exists()


@pytest.mark.slow
@pytest.mark.requirement("FAIL-05")
def test_without_a_larger_card_it_is_left_to_a_person(drive: Drive, box: Path) -> None:
    run = fill(drive, OutOfMemory.LARGER)
    box.write_text(json.dumps({"cards": CARDS["cards"][:1]}))
    found = settle_requeue(run.run_dir)
    assert (found.again, "no card here has more than 24" in found.why) == (False, True)


@pytest.mark.slow
@pytest.mark.requirement("FAIL-05")
def test_a_run_that_shared_its_card_is_given_one_alone(drive: Drive, box: Path) -> None:
    run = fill(drive, OutOfMemory.ALONE, share=True)
    assert run.read(wire.MANIFEST)["share"] is True
    assert settle_requeue(run.run_dir).kind is RequeueAction.ALONE
    goes_on(run)
    assert run.ended().exit_code == 0
    assert run.read(wire.MANIFEST)["share"] is False
    wait_until(lambda: not run.alive(), what="nothing of it lives")
    assert box.exists()
