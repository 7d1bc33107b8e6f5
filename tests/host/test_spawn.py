"""Keeper and job directly, without a supervisor: every exit code and signal, descriptors, the word to go."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.host import libc, processes
from holdfast.host.spawn import Launch, SpawnFailed, spawn
from holdfast.model import wire
from holdfast.model.identity import ABANDONED, WaitStatus
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.host.spawn import Started

pytestmark = pytest.mark.process


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process takes a supervisor's place: it inherits what its keepers leave, and reaps it."""
    libc.set_child_subreaper()
    yield
    libc.set_child_subreaper(enabled=False)
    wait_until(_reap_all, what="no child is left")


def _reap_all() -> bool:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True


def build(tmp_path: Path, *argv: str, **changes: object) -> Launch:
    fields: dict[str, object] = {
        "run_id": "20261120-104501-spawn-0001",
        "attempt": 1,
        "argv": argv,
        "environ": {"PATH": os.environ["PATH"]},
        "workdir": str(tmp_path),
        "status_path": str(tmp_path / "status.json"),
        "output_path": str(tmp_path / "output.log"),
        "output_max_bytes": 1 << 20,
        "inherited_fds": (),
        "kill_on_supervisor_death": False,
        "pty": False,
        "signal_rest": lambda _: 0,
        "prepare": lambda: None,
        "lock_path": str(tmp_path / "lock"),
    }
    return Launch(**{**fields, **changes})  # type: ignore[arg-type]


def wait_gone(started: Started) -> None:
    """Until the keeper has left, which it does last."""
    pidfd = processes.open_pidfd(started.keeper)
    if pidfd is not None:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(15_000), "the keeper does not leave"
        os.close(pidfd)


def status_of(launch: Launch) -> WaitStatus:
    with open(launch.status_path, "rb") as file:
        return wire.from_bytes(WaitStatus, file.read(), "status")


def run_once(launch: Launch) -> WaitStatus:
    started = spawn(launch)
    try:
        started.go()
        wait_gone(started)
    finally:
        started.close()
    return status_of(launch)


def run_many(tmp_path: Path, commands: Sequence[tuple[str, ...]]) -> list[WaitStatus]:
    """Several jobs side by side, each with its own files."""
    launches = [
        build(tmp_path, *argv, status_path=str(tmp_path / f"status-{n}.json"), output_path=str(tmp_path / f"out-{n}"))
        for n, argv in enumerate(commands)
    ]
    started = [spawn(launch) for launch in launches]
    for one in started:
        one.go()
    for one in started:
        wait_gone(one)
        one.close()
    return [status_of(launch) for launch in launches]


BATCH = 32
# Ends itself by the signal in its first argument; Python ignores SIGPIPE and SIGXFSZ by itself.
END = """import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGPIPE, 0), signal.signal(signal.SIGXFSZ, 0)
signal.signal(signal.SIGINT, 0)
os.kill(os.getpid(), int(sys.argv[1]))
signal.pause()
"""


@pytest.mark.slow
@pytest.mark.requirement("PROC-05")
def test_PROC_05_all_256_exit_codes_are_exact(tmp_path: Path, subreaper: None) -> None:
    seen = {}
    for first in range(0, 256, BATCH):
        codes = range(first, first + BATCH)
        statuses = run_many(tmp_path, [("/bin/sh", "-c", f"exit {code}") for code in codes])
        for code, status in zip(codes, statuses, strict=True):
            seen[code] = (status.code, status.signal, status.source)
    assert seen == {code: (code, None, "keeper") for code in range(256)}


@pytest.mark.slow
@pytest.mark.requirement("PROC-05")
def test_PROC_05_all_signals_are_exact(tmp_path: Path, subreaper: None) -> None:
    ignored = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    stopping = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    deadly = [number for number in signal.valid_signals() if number not in ignored | stopping]
    assert len(deadly) > 50
    seen = {}
    for first in range(0, len(deadly), BATCH):
        numbers = deadly[first : first + BATCH]
        ends = [(sys.executable, "-I", "-S", "-c", END, str(int(number))) for number in numbers]
        for number, status in zip(numbers, run_many(tmp_path, ends), strict=True):
            seen[int(number)] = (status.code, status.signal)
    assert seen == {int(number): (None, int(number)) for number in deadly}


@pytest.mark.requirement("PROC-03")
def test_PROC_03_ids_come_from_the_children_before_exec(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/true")
    started = spawn(launch)
    try:
        stat = processes.read_stat(started.job.process.pid)
        assert stat is not None
        assert stat.ppid == started.keeper.pid
        assert (stat.sid, stat.pgid) == (started.job.sid, started.job.pgid) == (stat.pid, stat.pid)
        assert started.job.pgid != os.getpgid(0)
        assert not os.path.exists(launch.status_path), "it waits for the word to go"
        started.go()
        wait_gone(started)
    finally:
        started.close()
    assert status_of(launch).code == 0


def test_without_the_word_to_go_the_job_never_runs(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/sh", "-c", "touch ran")
    started = spawn(launch)
    started.close()
    wait_gone(started)
    assert not (tmp_path / "ran").exists()
    assert status_of(launch).source == ABANDONED


def test_a_signal_before_exec_waits_for_the_job_instead_of_being_lost(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/sh", "-c", "touch ran; exec sleep 600")
    started = spawn(launch)
    try:
        assert processes.send_signal(started.job.process, signal.SIGTERM)
        started.go()
        wait_gone(started)
    finally:
        started.close()
    assert status_of(launch).signal == signal.SIGTERM
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("argv", "code", "number"),
    [(("/no/such/program",), 127, errno.ENOENT), (("/etc/passwd",), 126, errno.EACCES), (("/",), 126, errno.EACCES)],
)
def test_an_exec_error_comes_with_step_number_and_words(
    tmp_path: Path, subreaper: None, argv: tuple[str, ...], code: int, number: int
) -> None:
    started = spawn(build(tmp_path, *argv))
    try:
        started.go()
        poller = select.poll()
        poller.register(started.error_fd, select.POLLIN)
        assert poller.poll(10_000)
        error = started.read_error()
        wait_gone(started)
    finally:
        started.close()
    assert error is not None
    assert (error.step, error.number, error.exit_code) == ("exec", number, code)


@pytest.mark.parametrize("where", ["prepare", "workdir", "settle", "enter"])
def test_a_step_that_fails_is_named_and_leaves_nothing(tmp_path: Path, subreaper: None, where: str) -> None:
    def fail() -> None:
        raise OSError(errno.EPERM, "not here")

    changes: dict[str, object] = {"workdir": "/no/such/dir"} if where == "workdir" else {where: fail}
    with pytest.raises(SpawnFailed, match=r"not here|/no/such/dir"):
        spawn(build(tmp_path, "/bin/true", **changes))
    wait_until(_reap_all)


def test_only_the_leases_descriptors_are_inherited(tmp_path: Path, subreaper: None) -> None:
    lease = os.open(tmp_path / "gpu.lock", os.O_RDONLY | os.O_CREAT, 0o600)
    secret = os.open(tmp_path / "secret", os.O_RDONLY | os.O_CREAT, 0o600)
    os.set_inheritable(secret, True)
    try:
        script = "for f in /proc/self/fd/*; do readlink $f; done; true"
        launch = build(tmp_path, "/bin/sh", "-c", script, inherited_fds=(lease,))
        assert run_once(launch).code == 0
    finally:
        os.close(lease)
        os.close(secret)
    said = (tmp_path / "output.log").read_text()
    assert "gpu.lock" in said
    assert "secret" not in said


def test_output_is_whole_and_a_reader_that_dies_does_no_harm(tmp_path: Path, subreaper: None) -> None:
    """The keeper is killed while the job talks: no SIGPIPE, the job ends with its own code."""
    launch = build(tmp_path, "/bin/sh", "-c", "echo one; read line < gate; echo two; exit 9")
    os.mkfifo(tmp_path / "gate")
    started = spawn(launch)
    try:
        started.go()
        wait_until(lambda: (tmp_path / "output.log").exists() and (tmp_path / "output.log").read_text() == "one\n")
        processes.send_signal(started.keeper, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(started.keeper))
        with open(tmp_path / "gate", "w") as gate:
            gate.write("go\n")
        wait_until(lambda: not processes.is_alive(started.job.process))
        # Our own now: subreaper.
        _, raw = os.waitpid(started.job.process.pid, 0)
        assert os.waitstatus_to_exitcode(raw) == 9
        assert os.read(started.output_fd, 100) == b"two\n"
    finally:
        started.close()


def test_a_pty_is_the_jobs_controlling_terminal(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/sh", "-c", "tty; test -t 0 && echo yes < /dev/tty", pty=True)
    assert run_once(launch).code == 0
    said = (tmp_path / "output.log").read_text()
    assert "/dev/pts/" in said
    assert "yes" in said


@pytest.fixture
def orphaned(tmp_path: Path, subreaper: None) -> Callable[..., tuple[Started, Launch]]:
    """A started job whose supervisor's end of the channel is closed."""

    def make(*argv: str, **changes: object) -> tuple[Started, Launch]:
        launch = build(tmp_path, *argv, **changes)
        started = spawn(launch)
        started.go()
        started.close()
        return started, launch

    return make


@pytest.mark.requirement("PROC-23")
def test_PROC_23_a_keeper_without_a_supervisor_keeps_the_job(
    tmp_path: Path, orphaned: Callable[..., tuple[Started, Launch]]
) -> None:
    os.mkfifo(tmp_path / "gate")
    started, launch = orphaned("/bin/sh", "-c", "read line < gate; exit 12")
    with open(tmp_path / "gate", "w") as gate:
        assert processes.is_alive(started.keeper)
        gate.write("go\n")
    wait_gone(started)
    assert status_of(launch).code == 12


@pytest.mark.requirement("PROC-23")
def test_PROC_23_or_ends_it_when_told_to(tmp_path: Path, orphaned: Callable[..., tuple[Started, Launch]]) -> None:
    sent: list[int] = []
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)

    def signal_rest(number: int) -> int:
        os.write(write_end, bytes([number]))
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(word) for word in file.read().split()]
        for pid in pids:
            os.kill(pid, number)
        return len(pids)

    started, launch = orphaned(
        "/bin/sleep", "600", kill_on_supervisor_death=True, signal_rest=signal_rest, inherited_fds=(write_end,)
    )
    wait_gone(started)
    os.close(write_end)
    sent += os.read(read_end, 100)
    os.close(read_end)
    assert sent[0] == signal.SIGTERM
    assert status_of(launch).signal == signal.SIGTERM


def test_the_keeper_says_who_it_is_and_ignores_what_is_meant_for_others(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/sleep", "600")
    started = spawn(launch)
    try:
        started.go()
        stat = processes.read_stat(started.keeper.pid)
        assert stat is not None
        assert stat.comm == "holdfast-keeper"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            processes.send_signal(started.keeper, number)
        assert processes.is_alive(started.keeper)
        processes.send_signal(started.job.process, signal.SIGKILL)
        wait_gone(started)
    finally:
        started.close()
    assert status_of(launch).signal == signal.SIGKILL
