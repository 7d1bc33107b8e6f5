"""Keeper and job directly, without a supervisor: every exit code and signal, descriptors, the word to go."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.host.job.spawn import JobLaunch, SpawnFailed, spawn_job
from holdfast.host.process import libc, pidfd, processes
from holdfast.model import wire
from holdfast.model.identity import ABANDONED, WaitStatus
from tests.leaks import list_children
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.host.job.spawn import StartedJob

pytestmark = pytest.mark.process


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process takes a supervisor's place: it inherits what its keepers leave, and reaps it."""
    before = list_children()
    libc.set_child_subreaper()
    yield
    libc.set_child_subreaper(enabled=False)
    wait_until(lambda: _reap_all(before), what="no child is left")


def _reap_all(but: frozenset[int]) -> bool:
    """Reap the children that have ended, and answer whether none is left; `but` are those of other fixtures."""
    for pid in list_children() - but:
        os.waitpid(pid, os.WNOHANG)
    return list_children() <= but


def build(tmp_path: Path, *argv: str, **changes: object) -> JobLaunch:
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
    return JobLaunch(**{**fields, **changes})  # type: ignore[arg-type]


def wait_gone(started: StartedJob) -> None:
    """Until the keeper has left, which it does last."""
    held = pidfd.hold_process(started.keeper)
    if held is not None:
        assert held.wait(LIMIT_S), "the keeper does not leave"
        held.close()


def status_of(launch: JobLaunch) -> WaitStatus:
    with open(launch.status_path, "rb") as file:
        return wire.from_bytes(WaitStatus, file.read(), "status")


def run_once(launch: JobLaunch) -> WaitStatus:
    started = spawn_job(launch)
    try:
        started.go()
        wait_gone(started)
    finally:
        started.close()
    return status_of(launch)


def run_many(tmp_path: Path, commands: Sequence[tuple[str, ...]]) -> list[WaitStatus]:
    """Many jobs, started by a small program; how each ended."""
    done = subprocess.run(
        [sys.executable, PAYLOADS / "every_end.py"],
        cwd=tmp_path,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [wire.decode(WaitStatus, status) for status in json.loads(done.stdout)]


PAYLOADS = Path(__file__).parents[1] / "payloads"
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
def test_PROC_05_all_256_exit_codes_are_exact(tmp_path: Path) -> None:
    statuses = run_many(tmp_path, [("/bin/sh", "-c", f"exit {code}") for code in range(256)])
    seen = [(status.code, status.signal, status.source) for status in statuses]
    assert seen == [(code, None, "keeper") for code in range(256)]


@pytest.mark.slow
@pytest.mark.requirement("PROC-05")
def test_PROC_05_all_signals_are_exact(tmp_path: Path) -> None:
    ignored = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    stopping = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    deadly = [number for number in signal.valid_signals() if number not in ignored | stopping]
    assert len(deadly) > 50
    statuses = run_many(tmp_path, [(sys.executable, "-I", "-S", "-c", END, str(int(number))) for number in deadly])
    assert [(status.code, status.signal) for status in statuses] == [(None, int(number)) for number in deadly]


def test_a_job_starts_with_default_dispositions_whatever_was_ignored_around_it(tmp_path: Path, subreaper: None) -> None:
    """`nohup holdfast run`, or a background job of a script: the job could not be hung up or interrupted."""
    launch = build(tmp_path, "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1, signal.SIGRTMIN)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        run_once(launch)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _, blocked, _, ignored = Path(launch.output_path).read_text().split()
    assert int(blocked, 16) == 0
    # 32 and 33 are the C library's own; GNU make leaves them ignored, and nobody can set them. Source: signal(7).
    assert int(ignored, 16) & ~(0b11 << 31) == 0


@pytest.mark.requirement("PROC-03")
def test_PROC_03_ids_come_from_the_children_before_exec(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/true")
    started = spawn_job(launch)
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
    started = spawn_job(launch)
    started.close()
    wait_gone(started)
    assert not (tmp_path / "ran").exists()
    assert status_of(launch).source == ABANDONED


def test_a_signal_before_exec_waits_for_the_job_instead_of_being_lost(tmp_path: Path, subreaper: None) -> None:
    launch = build(tmp_path, "/bin/sh", "-c", "touch ran; exec sleep 600")
    started = spawn_job(launch)
    try:
        assert pidfd.send_signal(started.job.process, signal.SIGTERM)
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
    started = spawn_job(build(tmp_path, *argv))
    try:
        started.go()
        poller = select.poll()
        poller.register(started.error_fd, select.POLLIN)
        assert poller.poll(LIMIT_S * 1000)
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
    before = list_children()
    with pytest.raises(SpawnFailed, match=r"not here|/no/such/dir"):
        spawn_job(build(tmp_path, "/bin/true", **changes))
    wait_until(lambda: _reap_all(before), what="no child is left")


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
    started = spawn_job(launch)
    try:
        started.go()
        wait_until(lambda: (tmp_path / "output.log").exists() and (tmp_path / "output.log").read_text() == "one\n")
        pidfd.send_signal(started.keeper, signal.SIGKILL)
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
def orphaned(tmp_path: Path, subreaper: None) -> Callable[..., tuple[StartedJob, JobLaunch]]:
    """A started job whose supervisor's end of the channel is closed."""

    def make(*argv: str, **changes: object) -> tuple[StartedJob, JobLaunch]:
        launch = build(tmp_path, *argv, **changes)
        started = spawn_job(launch)
        started.go()
        started.close()
        return started, launch

    return make


@pytest.mark.requirement("PROC-23")
def test_PROC_23_a_keeper_without_a_supervisor_keeps_the_job(
    tmp_path: Path, orphaned: Callable[..., tuple[StartedJob, JobLaunch]]
) -> None:
    os.mkfifo(tmp_path / "gate")
    started, launch = orphaned("/bin/sh", "-c", "read line < gate; exit 12")
    with open(tmp_path / "gate", "w") as gate:
        assert processes.is_alive(started.keeper)
        gate.write("go\n")
    wait_gone(started)
    assert status_of(launch).code == 12


@pytest.mark.requirement("PROC-23")
def test_PROC_23_or_ends_it_when_told_to(tmp_path: Path, orphaned: Callable[..., tuple[StartedJob, JobLaunch]]) -> None:
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
    started = spawn_job(launch)
    try:
        started.go()
        stat = processes.read_stat(started.keeper.pid)
        assert stat is not None
        assert stat.comm == "holdfast-keeper"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            pidfd.send_signal(started.keeper, number)
        assert processes.is_alive(started.keeper)
        pidfd.send_signal(started.job.process, signal.SIGKILL)
        wait_gone(started)
    finally:
        started.close()
    assert status_of(launch).signal == signal.SIGKILL
