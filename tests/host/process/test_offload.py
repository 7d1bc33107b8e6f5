"""Work in a disposable child: its answer comes back, its faults become words, and its hanging costs a deadline."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from typing import TYPE_CHECKING, NoReturn

import pytest

from holdfast.host.process import offload
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.pidfd import HeldProcess
from holdfast.host.process.signals import STOPS
from tests.kernel_calls import list_open_files
from tests.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

LONG_S = LIMIT_S


def hang() -> NoReturn:
    while True:
        signal.pause()


def test_an_answer_comes_back() -> None:
    assert Offload(lambda: {"free": 3, "names": ["a", None]}).wait(LONG_S) == {"free": 3, "names": ["a", None]}


def test_an_answer_larger_than_a_pipe_comes_back() -> None:
    assert Offload(lambda: "x" * 3_000_000).wait(LONG_S) == "x" * 3_000_000


def test_the_descriptor_tells_when() -> None:
    work = Offload(lambda: 7)
    poller = select.poll()
    poller.register(work.fileno(), select.POLLIN)
    wait_until(work.is_done, what="the answer")
    assert work.result() == 7
    assert work.result() == 7


def test_what_it_raises_becomes_words() -> None:
    def fail() -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", "/data")

    with pytest.raises(OffloadFailed, match=r"^FileNotFoundError: .*'/data'$"):
        Offload(fail).wait(LONG_S)


def test_what_json_cannot_say_is_a_failure() -> None:
    with pytest.raises(OffloadFailed, match="without a word"):
        Offload(lambda: {1, 2}).wait(LONG_S)


def test_an_exit_in_the_work_is_a_failure() -> None:
    with pytest.raises(OffloadFailed, match="SystemExit: 3"):
        Offload(lambda: os.sys.exit(3)).wait(LONG_S)  # type: ignore[attr-defined]


def test_a_killed_child_is_a_failure() -> None:
    with pytest.raises(OffloadFailed, match="without a word"):
        Offload(lambda: os.kill(os.getpid(), signal.SIGKILL)).wait(LONG_S)


def test_a_child_killed_in_the_middle_of_its_answer_is_a_failure() -> None:
    work = Offload(lambda: "x" * 3_000_000)
    wait_until(lambda: select.select([work.fileno()], [], [], 0)[0], what="the first part")
    os.kill(work.pid, signal.SIGKILL)
    wait_until(work.is_done, what="the end of it")
    with pytest.raises(OffloadFailed, match="killed while it answered"):
        work.result()


def test_what_hangs_costs_the_deadline_and_leaves_no_child() -> None:
    work = Offload(hang)
    with pytest.raises(OffloadFailed, match=r"no answer within 0\.05 s"):
        work.wait(0.05)
    with pytest.raises(ChildProcessError):
        os.waitpid(work.pid, os.WNOHANG)


def test_a_limit_may_count_from_the_start() -> None:
    work = Offload(hang)
    work._begun_s -= LONG_S
    with pytest.raises(OffloadFailed, match=f"no answer within {LONG_S:g} s"):
        work.wait(LONG_S, since_start=True)
    done = Offload(lambda: 7)
    wait_until(done.is_done)
    done._begun_s -= LONG_S
    assert done.wait(LONG_S, since_start=True) == 7


def test_giving_up_twice_is_once() -> None:
    work = Offload(hang)
    work.abandon()
    work.abandon()


def test_a_child_that_somebody_else_reaped_is_no_error() -> None:
    work = Offload(lambda: 7)
    os.waitpid(work.pid, 0)
    assert work.wait(LONG_S) == 7


def test_giving_up_a_child_that_somebody_else_reaped_signals_nobody() -> None:
    """Its number may be another's by then: only the pidfd is asked."""
    work = Offload(lambda: 7)
    os.waitpid(work.pid, 0)
    work.abandon()


@pytest.mark.requirement("LEASE-02")
def test_a_hung_child_does_not_hold_a_lease(tmp_path: Path) -> None:
    """It drops what it does not need, so the lock is free as soon as its owner lets go."""
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    work = Offload(hang)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    try:
        try:
            wait_until(lambda: not holds(work.pid, tmp_path / "lock"), what="the child to drop it")
        finally:
            os.close(lock)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
        work.abandon()


def holds(pid: int, path: Path) -> bool:
    return str(path) in list_open_files(pid)


def test_what_the_work_needs_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert Offload(lambda: os.read(descriptor, 100).decode(), keep=(descriptor,)).wait(LONG_S) == "content"
        with pytest.raises(OffloadFailed, match="Bad file descriptor"):
            Offload(lambda: os.read(descriptor, 100).decode()).wait(LONG_S)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("number", sorted(STOPS))
def test_the_child_goes_on_where_its_parent_handles_the_signal(number: signal.Signals, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    heard: list[int] = []

    def answer() -> list[int]:
        begun.touch()
        wait_until(go.exists, what="the word to go on")
        # What the work starts has the usual meaning of the signal: a scheduler may end that.
        return [subprocess.run(["sh", "-c", f"kill -{number.value} $$"], check=False).returncode, len(heard)]

    old = signal.signal(number, lambda *_: heard.append(1))
    try:
        work = Offload(answer)
        wait_until(begun.exists, what="the work has begun")
        for _ in range(3):
            os.kill(work.pid, number)
        go.touch()
        assert work.wait(LIMIT_S)[0] == -number
    finally:
        signal.signal(number, old)


def test_the_child_dies_of_what_its_parent_would_die_of() -> None:
    old = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work = Offload(hang)
        os.kill(work.pid, signal.SIGTERM)
        wait_until(work.is_done, what="its end")
        with pytest.raises(OffloadFailed, match="without a word"):
            work.result()
    finally:
        signal.signal(signal.SIGTERM, old)


def test_closing_all_but_some() -> None:
    def count() -> list[int]:
        offload.close_all_except({0, 1, 2, write_end, marker})
        return sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))

    read_end, write_end = os.pipe()
    marker = os.open(os.devnull, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, repr(count()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    answer = os.read(read_end, 1000).decode()
    os.waitpid(child, 0)
    os.close(read_end)
    os.close(marker)
    assert answer == repr(sorted({0, 1, 2, write_end, marker}))


def test_a_killed_child_that_was_not_gone_in_time_is_no_zombie_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "KILL_PATIENCE_S", 0.0)
    monkeypatch.setattr(HeldProcess, "wait", lambda *_: False)
    slow = Offload(hang)
    real, refused = HeldProcess.reap, [True]
    # Not gone yet when it is given up.
    monkeypatch.setattr(HeldProcess, "reap", lambda self, *, block: not refused and real(self, block=block))
    slow.abandon()
    refused.clear()

    def is_gone() -> bool:
        offload.reap_left()
        return not os.path.exists(f"/proc/{slow.pid}")

    wait_until(is_gone, what="it is reaped")
