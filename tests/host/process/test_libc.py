"""The kernel calls, on the real kernel; whatever changes the caller is done in a child."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.host.process import libc
from tests.host.families import become
from tests.kernel_calls import get_io_priority
from tests.other_kernels import has_pidfds
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def run_in_child(attempt: Callable[[], object]) -> None:
    assert os.waitpid(become(attempt), 0)[1] == 0


def test_importing_the_module_does_not_load_ctypes() -> None:
    code = "import sys, holdfast.host.process.libc; sys.exit('ctypes' in sys.modules)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode == 0


@pytest.mark.requirement("PROC-10")
def test_PROC_10_a_subreaper_gets_its_orphans() -> None:
    def attempt() -> None:
        libc.set_child_subreaper()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os._exit(7)
            os._exit(0)
        statuses = {os.waitpid(-1, 0)[1] >> 8, os.waitpid(-1, 0)[1] >> 8}
        assert statuses == {0, 7}

    run_in_child(attempt)


@pytest.mark.requirement("PROC-22")
def test_PROC_22_the_parent_death_signal_fires_when_only_the_forking_thread_ends() -> None:
    # The trap itself: this is why containment is used and not this signal alone.
    reader, writer = os.pipe()
    ended = threading.Event()
    children = []

    def fork_and_leave() -> None:
        def attempt() -> None:
            libc.set_parent_death_signal(signal.SIGKILL)
            os.write(writer, b".")
            signal.pause()

        children.append(become(attempt))
        os.read(reader, 1)
        ended.set()

    thread = threading.Thread(target=fork_and_leave)
    thread.start()
    thread.join()
    assert ended.is_set()
    assert os.waitpid(children[0], 0)[1] == signal.SIGKILL
    os.close(reader)
    os.close(writer)


def test_name_is_shown_by_proc() -> None:
    def attempt() -> None:
        libc.set_name("holdfast-keeper-with-a-long-name")
        with open("/proc/self/comm") as file:
            assert file.read() == "holdfast-keeper\n"

    run_in_child(attempt)


def test_io_priority_is_set_and_read() -> None:
    def attempt() -> None:
        libc.set_io_priority(libc.IOPRIO_BEST_EFFORT, 7)
        assert get_io_priority() == (libc.IOPRIO_BEST_EFFORT, 7)

    run_in_child(attempt)


def test_a_refusal_carries_errno_and_the_call() -> None:
    with pytest.raises(OSError, match=r"mount nosuchfs on /nowhere") as caught:
        libc.mount("none", "/nowhere", kind="nosuchfs")
    assert caught.value.errno in (errno.ENOENT, errno.EPERM, errno.ENODEV)
    with pytest.raises(OSError, match="umount"):
        libc.umount("/nowhere")
    with pytest.raises(OSError, match="setns"):
        libc.setns(0, libc.CLONE_NEWNS)
    with pytest.raises(OSError, match="unshare"):
        libc.unshare(0x1)


@pytest.mark.skipif(not has_pidfds(), reason="no pidfds here")
def test_pidfd_getfd_copies_the_very_description(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    path.touch()
    reader, writer = os.pipe()

    def hold() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(writer, bytes([descriptor]))
        signal.pause()

    child = become(hold)
    (number,) = os.read(reader, 1)
    pidfd = libc.pidfd_open(child)
    ours = libc.pidfd_getfd(pidfd, number)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OSError, match="pidfd_getfd"):
        libc.pidfd_getfd(pidfd, number)
    for descriptor in (ours, other, pidfd, reader, writer):
        os.close(descriptor)


@pytest.mark.skipif(not has_pidfds(), reason="no pidfds here")
def test_pidfd_info_tells_the_status_after_somebody_else_has_reaped() -> None:
    child = become(lambda: os._exit(7))
    pidfd = libc.pidfd_open(child)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(LIMIT_S * 1000)
    before = libc.read_pidfd_info(pidfd)
    os.waitpid(child, 0)
    after = libc.read_pidfd_info(pidfd)
    os.close(pidfd)
    if before is not None:
        # Linux 6.13 and newer: a zombie has a pid and no status yet.
        assert (before.pid, before.wait_status) == (child, None)
    if after is not None:
        # Linux 6.15 and newer.
        assert (after.pid, after.wait_status) == (None, 7 << 8)
