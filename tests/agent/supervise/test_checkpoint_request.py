"""A request for a checkpoint on its way: asked once, passed on once, answered by what is durable."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.agent.control.checkpoints import await_answer
from holdfast.agent.control.checkpoints.await_answer import RequestPhase
from holdfast.agent.requests import PASSED_ON, REFUSED
from holdfast.agent.supervise.checkpoint_request import CheckpointRequests
from holdfast.agent.supervise.recorder import Recorder
from holdfast.host.files import files
from holdfast.host.process import pidfd
from holdfast.model import wire
from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.identity import JobProcess, ProcessId
from holdfast.model.run import CheckpointRequest, Finalizing, Preflight, RequestKind, Running, Waiting
from tests.agent.driving import Drive, Driven, job
from tests.agent.test_leaving import library
from tests.rundirs import dead_process, ended, make_run, running
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.model.run import State

pytestmark = pytest.mark.process

NOBODY = ProcessId(1, 1, "boot")
RUNS = Running("now", (), NOBODY, JobProcess(NOBODY, 1, 1, 1))
WAIT_S = LIMIT_S


class Desk:
    """The supervisor's side alone, over files."""

    def __init__(self, root: Path) -> None:
        os.makedirs(wire.attempt_dir(f"{root}/run", 1))
        self.recorder = Recorder(f"{root}/run", "20261120-104501-t-3fa2", 1)
        self.successor()

    def successor(self) -> None:
        self.requests = CheckpointRequests(cast("SupervisorContext", SimpleNamespace(recorder=self.recorder)))

    def want(self, request_id: str, state: State = RUNS) -> None:
        request = CheckpointRequest(request_id, "anna", "2026-11-20T10:00:00.000Z")
        files.commit(self.recorder.path(wire.CHECKPOINT_WANTED), wire.to_bytes(request))
        self.requests.look(state)

    @property
    def request(self) -> dict[str, object]:
        try:
            return wire.parse_object(files.read_bytes(self.recorder.path(wire.CHECKPOINT_REQUEST)), "")
        except FileNotFoundError:
            return {}

    def events(self) -> list[tuple[str, str]]:
        lines = files.read_last_lines(self.recorder.path(wire.EVENTS))
        return [(event["event"], event["data"]["id"]) for event in (wire.parse_object(line, "") for line in lines)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_request_becomes_the_jobs_request_once(desk: Desk) -> None:
    desk.want("00000001")
    at = "2026-11-20T10:00:00.000Z"
    assert desk.request == {"schema": 1, "reason": "operator", "at": at, "by": "anna", "id": "00000001"}
    os.unlink(desk.recorder.path(wire.CHECKPOINT_REQUEST))
    desk.requests.look(RUNS)
    assert desk.request == {}, "an answered request is not repeated"
    desk.successor()
    desk.requests.look(RUNS)
    assert desk.request == {}, "and not by the next supervisor"
    desk.want("00000002")
    assert desk.request["id"] == "00000002"
    assert desk.events() == [(PASSED_ON, "00000001"), (PASSED_ON, "00000002")]


def test_wishes_that_come_before_the_job_looked_are_one(desk: Desk) -> None:
    for number in range(1, 4):
        desk.want(f"0000000{number}")
    assert desk.request["id"] == "00000001"
    assert [request_id for _, request_id in desk.events()] == ["00000001", "00000002", "00000003"]


def test_a_request_that_died_with_its_supervisor_is_passed_on_by_the_next(desk: Desk) -> None:
    request = CheckpointRequest("00000001", "anna", "now")
    files.commit(desk.recorder.path(wire.CHECKPOINT_WANTED), wire.to_bytes(request))
    desk.successor()
    desk.requests.look(RUNS)
    assert desk.request["id"] == "00000001"


@pytest.mark.parametrize("state", [Preflight("now"), Waiting("now"), Finalizing("now")])
def test_a_job_that_does_not_run_is_not_asked(desk: Desk, state: State) -> None:
    desk.want("00000001", state)
    assert desk.request == {}
    assert desk.events() == [(REFUSED, "00000001")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": 7}', b"\xff" * 100])
def test_a_damaged_request_is_no_request(desk: Desk, content: bytes) -> None:
    files.commit(desk.recorder.path(wire.CHECKPOINT_WANTED), content)
    desk.requests.look(RUNS)
    assert desk.request == {}


# --- the asker's side ----------------------------------------------------------------------------------------------


def ask(run: Driven, wait_s: float = WAIT_S) -> await_answer.CheckpointProgress:
    asked = await_answer.request_checkpoint(run.run_dir, by="a test")
    return await_answer.wait_saved(asked, wait_s=wait_s, tell=lambda _: None)


@pytest.fixture
def training(drive: Drive) -> Driven:
    run = drive(*library("train"))
    run.ready()
    wait_until(lambda: os.path.exists(run.path(wire.HEARTBEAT)))
    return run


def end(run: Driven) -> None:
    run.ask(RequestKind.STOP_NOW)
    run.ended()


@pytest.mark.slow
@pytest.mark.requirement("LIB-17")
def test_LIB_17_a_new_checkpoint_appears_and_the_run_goes_on(training: Driven) -> None:
    first = ask(training)
    assert first.phase is RequestPhase.SAVED
    assert first.step is not None
    assert first.asked.step is not None
    assert first.step >= first.asked.step
    assert first.path == f"{training.run_dir}/checkpoints/step-{first.step}"
    assert os.path.isfile(f"{first.path}/checkpoint.json")
    second = ask(training)
    assert second.step is not None
    assert second.step > first.step
    assert training.kind() == "running"
    # What a job prints passes through its supervisor, and may be later than its checkpoint.
    wait_until(lambda: training.output().count(b"asked operator") == 2, what="the job says so too")
    end(training)


@pytest.mark.slow
@pytest.mark.requirement("LIB-17")
@pytest.mark.parametrize("how", ["heartbeat", "record"])
def test_LIB_17_the_heartbeat_or_the_commit_record_alone_is_proof(drive: Drive, how: str) -> None:
    run = drive(*library("train", how, 5))
    run.ready()
    found = ask(run)
    assert found.phase is RequestPhase.SAVED
    wait_until(lambda: f"saved {found.step}\n".encode() in run.output(), what="the job says so too")
    assert found.path is not None
    assert os.path.isdir(found.path)
    end(run)


@pytest.mark.slow
@pytest.mark.requirement("LIB-17")
def test_LIB_17_many_who_ask_at_once_are_all_answered(training: Driven) -> None:
    children = []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if ask(training).phase is RequestPhase.SAVED else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 5
    wait_until(lambda: b"asked operator" in training.output(), what="the job says so too")
    assert training.output().count(b"asked operator") <= 5
    end(training)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "phase"), [("deaf", RequestPhase.PASSED_ON), ("drops", RequestPhase.TAKEN_UP)])
def test_a_job_that_never_answers_is_told_from_one_that_never_saved(
    drive: Drive, how: str, phase: RequestPhase
) -> None:
    run = drive(*library("train", how))
    run.ready()
    assert ask(run, 1.0).phase is phase
    end(run)


@pytest.mark.slow
def test_a_checkpoint_from_before_the_request_does_not_answer_it(drive: Drive) -> None:
    run = drive(*library("train", "drops"))
    run.ready()
    os.mkdir(f"{run.run_dir}/checkpoints/step-999999")
    record = f"{run.run_dir}/checkpoints/step-999999/checkpoint.json"
    with open(record, "w") as file:
        file.write("{}")
    os.utime(record, (1e9, 1e9))
    assert ask(run, 1.0).phase is RequestPhase.TAKEN_UP
    end(run)


@pytest.mark.slow
def test_a_job_that_has_nothing_newer_to_save_has_answered(drive: Drive) -> None:
    run = drive(*library("train", "stands"))
    run.ready()
    found = ask(run)
    assert (found.phase, found.step) == (RequestPhase.SAVED, 5)
    end(run)


def test_a_job_that_ends_without_saving_ends_the_wait(drive: Drive) -> None:
    run = drive(*library("train", "deaf"))
    state = run.ready()
    asked = await_answer.request_checkpoint(run.run_dir, by="a test")
    assert pidfd.send_signal(state.job.process, signal.SIGKILL)
    found = await_answer.wait_saved(asked, wait_s=WAIT_S, tell=lambda _: None)
    assert found.phase is RequestPhase.ENDED
    run.ended()


def test_a_job_that_saves_on_leaving_has_answered(drive: Drive) -> None:
    record = '{"why": "signal", "detail": "SIGTERM", "step": 7, "checkpoint_step": 7, "saved": true}'
    run = drive(*library("leave", 143, record))
    state = run.ready()
    asked = await_answer.request_checkpoint(run.run_dir, by="a test")
    assert pidfd.send_signal(state.job.process, signal.SIGTERM)
    found = await_answer.wait_saved(asked, wait_s=WAIT_S, tell=lambda _: None)
    assert (found.phase, found.step) == (RequestPhase.SAVED, 7)
    run.ended()


@pytest.mark.requirement("LIB-17", "PROC-15")
def test_LIB_17_a_run_without_a_supervisor_gets_one_that_passes_it_on(training: Driven) -> None:
    training.kill_supervisor()
    assert ask(training).phase is RequestPhase.SAVED
    end(training)


@pytest.mark.slow
def test_a_request_survives_a_supervisor_that_dies_before_it_looks(training: Driven) -> None:
    training.signal_supervisor(signal.SIGSTOP)
    asked = await_answer.request_checkpoint(training.run_dir, by="a test")
    assert training.events(PASSED_ON) == []
    training.kill_supervisor()
    training.adopt()
    assert await_answer.wait_saved(asked, wait_s=WAIT_S, tell=lambda _: None).phase is RequestPhase.SAVED
    assert len(training.events(PASSED_ON)) == 1
    end(training)


def test_a_run_that_is_over_or_not_begun_is_refused_with_the_reason(drive: Drive, tmp_path: Path) -> None:
    over = drive(*job("exit_with", 0))
    over.ended()
    with pytest.raises(UsageError, match="has ended"):
        ask(over)
    waiting = make_run(tmp_path, state=ended())
    with pytest.raises(UsageError, match="no job is there to save"):
        await_answer.request_checkpoint(waiting, by="a test")
    created = drive.create(*job("stay"))
    with pytest.raises((UsageError, NoSuchRun)):
        ask(created)
    assert not os.path.exists(over.path(wire.CHECKPOINT_WANTED))


def test_a_run_that_is_being_stopped_is_refused(drive: Drive) -> None:
    run = drive(*job("ignore_term"), grace_s=600.0)
    run.ready()
    run.ask()
    run.wait_kind("stopping")
    with pytest.raises(UsageError, match="is being stopped"):
        ask(run)
    end(run)


def test_a_run_whose_box_forgot_it_is_refused(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, state=running(), supervisor=dead_process(), host="otherbox")
    with pytest.raises(Exception, match="otherbox"):
        await_answer.request_checkpoint(run_dir, by="a test")
