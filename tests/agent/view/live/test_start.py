"""Waiting for the proof of a start, on state files that are written here."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.view.live.start import prove_start, read_progress, wait_for_start
from holdfast.host.box import read_box
from holdfast.host.files import fallback, files
from holdfast.host.process.processes import identify
from holdfast.model import wire
from holdfast.model.errors import InternalError, StorageError
from holdfast.model.identity import JobProcess, ProcessId
from holdfast.model.lease import BusyReason, Witness
from holdfast.model.run import Created, Ended, Outcome, Running, RunState, State, Waiting
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

RUN_ID = "20261120-104501-digits-3fa2"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / RUN_ID / "attempts" / "1"
    path.mkdir(parents=True)
    return path


def us() -> ProcessId:
    found = identify(os.getpid())
    assert found is not None
    return found


def dead() -> ProcessId:
    with subprocess.Popen(["sleep", "600"]) as child:
        found = identify(child.pid)
        child.kill()
    assert found is not None
    return found


def commit(directory: Path, state: State, supervisor: ProcessId | None) -> None:
    content = RunState(RUN_ID, 1, 1, read_box(), "2026-11-20T10:45:01Z", supervisor, state)
    files.commit(f"{directory}/{wire.STATE}", wire.to_bytes(content))


def running() -> Running:
    process = us()
    return Running("2026-11-20T10:45:02Z", (), process, JobProcess(process, process.pid, process.pid, process.pid))


def wait(directory: Path, prove_s: float = 0.0) -> str:
    return wait_for_start(str(directory.parent.parent), 1, prove_s=prove_s).kind


def test_running_is_a_start(directory: Path) -> None:
    commit(directory, running(), us())
    assert wait(directory) == "running"
    assert wait(directory, 0.05) == "running"


def test_an_end_within_the_proof_is_no_start(directory: Path) -> None:
    commit(directory, running(), us())
    ended = Ended("2026-11-20T10:45:03Z", Outcome.FAILED, 3, "exit code 3")
    writer = threading.Timer(0.05, commit, (directory, ended, us()))
    writer.start()
    assert wait(directory, LIMIT_S) == "ended"
    writer.join()


FAILED = Ended("2026-11-20T10:45:03Z", Outcome.FAILED, 3, "exit code 3")


def prove(directory: Path) -> tuple[tuple[str, ...], float]:
    """What is said beside a start whose job failed, and after how many seconds."""
    began = time.monotonic()
    return prove_start(str(directory.parent.parent), 1, prove_s=0.0).warnings, time.monotonic() - began


def test_the_exit_record_of_a_job_that_failed_is_not_waited_for_where_its_supervisor_died(directory: Path) -> None:
    commit(directory, FAILED, dead())
    assert prove(directory)[1] < 5.0


def test_the_exit_record_and_what_follows_are_read_where_a_full_disk_has_left_them(tmp_path: Path) -> None:
    run_id = "20261120-104501-aside-3fa2"  # no other test's: what lies aside is found by it
    first, second = (tmp_path / run_id / "attempts" / number for number in "12")
    for directory, state in ((first, FAILED), (second, Created())):
        directory.mkdir(parents=True)
        commit(directory, state, us())
    aside = fallback.directory(run_id, 1)
    assert aside is not None
    os.makedirs(aside, mode=0o700)
    try:
        files.commit(f"{aside}/{wire.RETRY}", wire.to_bytes({"retry": True, "class": "transient"}))
        files.commit(f"{aside}/{wire.EXIT}", wire.to_bytes({}))
        told, waited_s = prove(first)
    finally:
        fallback.clear(run_id, 1)
    assert waited_s < 5.0
    assert told == ("attempt 2 begins by itself: this one ended as transient",)


def test_the_exit_record_of_a_job_that_failed_is_waited_for_while_its_supervisor_lives(directory: Path) -> None:
    commit(directory, FAILED, us())
    writer = threading.Timer(0.2, files.commit, (f"{directory}/{wire.EXIT}", wire.to_bytes({})))
    writer.start()
    assert 0.1 < prove(directory)[1] < 5.0
    writer.join()


def test_standing_in_line_is_an_answer_but_trying_for_a_card_is_not(directory: Path) -> None:
    commit(directory, Waiting("2026-11-20T10:45:02Z"), us())
    blocked = Waiting("2026-11-20T10:45:02Z", (BusyReason("GPU-1", Witness.LOCK, "anna"),))
    writer = threading.Timer(0.05, commit, (directory, blocked, us()))
    writer.start()
    progress = wait_for_start(str(directory.parent.parent), 1, prove_s=0)
    writer.join()
    assert progress.data["blocked_by"][0]["holder"] == "anna"


def test_a_supervisor_that_died_is_told_with_its_last_words(directory: Path) -> None:
    (directory / "supervisor.log").write_text("first\nModuleNotFoundError: no such thing\n")
    commit(directory, Created(), dead())
    with pytest.raises(InternalError, match=rf"the supervisor of {RUN_ID} died .*: ModuleNotFoundError") as caught:
        wait(directory)
    assert f"holdfast show {RUN_ID}" in caught.value.hint


def test_a_supervisor_that_never_comes_up_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.view.live.start.COME_UP_S", 0.05)
    commit(directory, Created(), None)
    with pytest.raises(InternalError, match="the supervisor did not come up"):
        wait(directory)


def test_a_directory_that_goes_away_is_told(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="has gone"):
        wait_for_start(str(tmp_path / "absent"), 1, prove_s=0)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"state": 3}', b'{"state": {"kind": "x"}, "supervisor": 3}']
)
def test_a_damaged_state_is_told(content: bytes, directory: Path) -> None:
    (directory / "state.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"state\.json is damaged"):
        read_progress(str(directory))


def test_no_state_yet_is_no_progress(directory: Path) -> None:
    assert read_progress(str(directory)) is None
