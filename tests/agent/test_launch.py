"""How a supervisor comes up: spawned or prestarted, a clean interpreter that is nobody's child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.agent import launch
from holdfast.agent.detached import ENTRY, build_command, start_detached
from holdfast.agent.prestart import WaitingSupervisor, prestart_for
from holdfast.host.process import pidfd, processes
from holdfast.model.errors import StorageError
from holdfast.model.run import Outcome, RequestKind
from tests.agent.driving import Drive, job
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.model.identity import ProcessId

pytestmark = pytest.mark.process

MARK = "HOLDFAST_TEST_PRESTART"


def find_waiting(mark: str) -> list[ProcessId]:
    """Prestarted supervisors whose environment has this mark, past their interpreter's start."""
    found = []
    for pid in processes.list_pids():
        if (processes.read_environ(pid) or {}).get(MARK) == mark and read_command(pid)[-2:] == ["supervise", "--wait"]:
            process = processes.identify(pid)
            found += [] if process is None else [process]
    return found


def read_command(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def list_children() -> set[int]:
    """Children of this process, dead ones that nobody waited for as well. Other tests here may have left theirs."""
    mine = os.getpid()
    stats = ((pid, processes.read_stat(pid)) for pid in processes.list_pids())
    return {pid for pid, stat in stats if stat is not None and stat.ppid == mine}


@pytest.fixture
def mark(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> str:
    """An environment that can be told from others, of this process and of the runs."""
    word = f"{os.getpid()}.{id(drive)}"
    monkeypatch.setenv(MARK, word)
    drive.environ[MARK] = word
    return word


@pytest.mark.slow
def test_a_supervisor_is_a_clean_interpreter_of_its_own_session_and_nobodys_child(drive: Drive) -> None:
    earlier = list_children()
    run = drive(*job("stay"), environ={"HF_TOKEN": "hf_" + "qwertyuiop" * 3})
    run.ready()
    pid = run.supervisor().pid
    assert read_command(pid) == [sys.executable, "-I", "-S", ENTRY, "supervise", run.run_dir, "1", "start"]
    stat = processes.read_stat(pid)
    assert stat is not None
    assert stat.comm == "holdfast-superv"
    assert stat.ppid != os.getpid()
    assert stat.sid not in (os.getsid(0), pid), "it leads no session: no terminal can become its own"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
    assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2") == run.path("supervisor.log")
    assert not list_children() - earlier, "whoever stood between is waited for"
    run.ask(RequestKind.STOP_NOW)
    assert run.ended().outcome is Outcome.STOPPED


def test_the_job_has_its_callers_umask_and_environment_to_the_letter(drive: Drive) -> None:
    """Also what steers an interpreter, which ours ignores, and without what ours sets for itself in the C locale."""
    given = {
        "PYTHONPATH": "/some/where",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONHOME": "/not/there",
        "LANG": "C",
        "EMPTY": "",
        "BYTES": os.fsdecode(b"\xff\xfe"),
    }
    for name in ("LC_ALL", "LC_CTYPE", "PYTHONUTF8"):
        drive.environ.pop(name, None)
    previous = os.umask(0o027)
    try:
        run = drive("sh", "-c", "umask; env", environ=given)
    finally:
        os.umask(previous)
    assert run.ended().exit_code == 0, run.output()
    first, *lines = run.output().splitlines()
    assert int(first, 8) == 0o027
    environ = dict(line.partition(b"=")[::2] for line in lines)
    assert environ[b"PYTHONPATH"].split(b":")[0] == b"/some/where", "the library's place is behind it"
    for name in set(given) - {"PYTHONPATH"}:
        assert environ[name.encode()] == os.fsencode(given[name])
    assert b"LC_CTYPE" not in environ


def test_a_run_that_is_gone_gets_no_supervisor(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist"):
        launch.start_supervisor(str(tmp_path / "gone"), 1, environ=os.environ)


def test_nobody_waits_for_a_pipe_in_the_place_of_the_log(tmp_path: Path) -> None:
    """A job may put it there, and then the run is adopted."""
    os.makedirs(tmp_path / "attempts" / "1")
    os.mkfifo(tmp_path / "attempts" / "1" / "supervisor.log")
    descriptor = launch.open_log(str(tmp_path), 1)
    try:
        assert os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))
    finally:
        os.close(descriptor)


def test_a_prestarted_supervisor_takes_the_run_that_it_is_handed(
    drive: Drive, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = WaitingSupervisor()
    monkeypatch.setattr(launch, "PRESTARTED", ours)
    ours.start()
    run = drive.create(*job("exit_with", 3), environ=dict(os.environ))
    run.environ = dict(os.environ)
    waiting = wait_until(lambda: find_waiting(mark), what="it waits")
    assert len(waiting) == 1
    run.start()
    end = run.ended()
    assert (end.outcome, end.exit_code) == (Outcome.FAILED, 3)
    assert run.supervisor() == waiting[0]
    assert not ours.hand_over((run.run_dir, "1", "adopt"), run.environ), "it was the only one"


def test_TERM_in_the_first_moments_of_a_supervisor_is_not_lost(
    drive: Drive, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: it came before there was a handler, and killed the supervisor; as process 1 it was dropped."""
    ours = WaitingSupervisor()
    monkeypatch.setattr(launch, "PRESTARTED", ours)
    ours.start()
    (waiting,) = wait_until(lambda: find_waiting(mark), what="it waits")
    wait_until(lambda: blocks(waiting.pid, signal.SIGTERM), what="it holds signals back")
    assert pidfd.send_signal(waiting, signal.SIGTERM)
    run = drive.create(*job("stay"))
    run.environ = dict(os.environ)
    run.start()
    end = run.ended()
    assert run.supervisor() == waiting
    assert end.outcome is Outcome.STOPPED
    assert end.request is not None
    assert end.request.by == "SIGTERM to the supervisor"


def blocks(pid: int, number: int) -> bool:
    """Source: proc_pid_status(5), SigBlk: hexadecimal, bit n - 1 for n."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk:"))
    return bool(mask >> (number - 1) & 1)


def test_a_prestarted_supervisor_that_is_not_needed_leaves_without_a_word(mark: str, tmp_path: Path) -> None:
    ours = WaitingSupervisor()
    ours.start()
    (waiting,) = wait_until(lambda: find_waiting(mark), what="it waits")
    assert not ours.hand_over((str(tmp_path), "1", "start"), {**os.environ, "OTHER": "1"}), "its environment is another"
    wait_until(lambda: not processes.is_alive(waiting), what="it has left")


@pytest.mark.slow
def test_a_prestarted_supervisor_that_died_costs_nothing(
    drive: Drive, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = WaitingSupervisor()
    monkeypatch.setattr(launch, "PRESTARTED", ours)
    ours.start()
    (waiting,) = wait_until(lambda: find_waiting(mark), what="it waits")
    pidfd.send_signal(waiting, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(waiting), what="it is dead")
    run = drive.create(*job("exit_with", 4))
    run.environ = dict(os.environ)
    run.start()
    assert run.ended().exit_code == 4


@pytest.mark.parametrize("words", [["ls"], ["run", "--dry-run", "true"], ["run", "--help"], ["stop", "run"], []])
def test_only_a_start_of_a_run_prestarts_one(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(WaitingSupervisor, "start", lambda _: started.append(True))
    prestart_for(words)
    prestart_for(["run", "true"])
    assert started == [True]


def test_an_interpreter_that_cannot_be_started_is_said_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    with open(tmp_path / "log", "wb") as log:
        start_detached(("supervise", "x"), {}, output=log.fileno())
    wait_until((tmp_path / "log").read_text, what="it is said")
    assert "gone could not be started: No such file" in (tmp_path / "log").read_text()


def test_an_entry_that_is_none_is_refused_with_words() -> None:
    for words in ((), ("supervisor",)):
        done = subprocess.run(build_command(*words), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (64, "")
        assert "no internal entry" in done.stderr
