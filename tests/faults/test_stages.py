"""The surroundings are real: the kernel's own errno, states and signals, in a namespace that the host never sees."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from holdfast.faults.needs import NeedTests
from holdfast.faults.stages import Staging
from holdfast.faults.table import find_fault
from holdfast.host.process.offload import Offload
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process


def inside(name: str, box: Path, work: Callable[[Staging], object]) -> object:
    """What `work` answers in a process in which the stage of the fault `name` has been set up."""
    fault = find_fault(name)
    reason = NeedTests().lacking(fault)
    if reason:
        pytest.skip(reason)

    def run() -> object:
        with ExitStack() as undo:
            staging = Staging(fault, str(box), undo)
            staging.prepare()
            return work(staging)

    return Offload(run).wait(LIMIT_S)


def failing(action: Callable[[], object]) -> str:
    """The name of the errno with which `action` fails."""
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "none"


def write_much(path: str) -> None:
    """Write 64 MiB."""
    with open(path, "wb", buffering=0) as file:
        file.writelines(bytes(1 << 16) for _ in range(1024))


@pytest.mark.parametrize("name", ["disk-full", "loop-full"])
def test_a_small_disk_is_really_full(name: str, tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        said, facts = failing(lambda: write_much(f"{staging.disk}/file")), os.statvfs(staging.disk)
        # ext4 keeps a little back for what is not yet placed.
        return said, facts.f_bavail * 10 < facts.f_blocks, facts.f_favail > 0

    assert inside(name, tmp_path, work) == ["ENOSPC", True, True]


def test_inodes_run_out_while_bytes_are_free(tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        def make_files() -> None:
            for number in range(50):
                with open(f"{staging.disk}/{number}", "wb"):
                    pass

        said, facts = failing(make_files), os.statvfs(staging.disk)
        return said, facts.f_favail, facts.f_bavail > 1000

    assert inside("inodes-full", tmp_path, work) == ["ENOSPC", 0, True]


@pytest.mark.parametrize(
    ("name", "code", "other"),
    [
        ("fuse-stale", "ESTALE", "none"),
        ("fuse-eio", "EIO", "none"),
        ("fuse-enospc", "none", "ENOSPC"),
        ("fuse-edquot", "none", "EDQUOT"),
    ],
)
def test_the_file_system_answers_with_the_exact_error(name: str, code: str, other: str, tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        def read() -> None:
            with open(f"{staging.disk}/data.bin", "rb", buffering=0) as file:
                assert len(file.read(4096)) == 4096

        free = os.statvfs(staging.disk).f_bavail
        names = os.listdir(staging.disk)
        return failing(read), failing(lambda: write_much(f"{staging.disk}/new")), free > 0, names

    assert inside(name, tmp_path, work) == [code, other, True, ["data.bin"]]


def read_state(pid: int) -> str:
    """The state letter of a process."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether `condition` comes true in time; in the staged process, which has no test beside it."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def fork(work: Callable[[], object]) -> int:
    """A child that does `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_a_hanging_file_system_holds_its_reader_until_the_server_goes(tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        def read() -> None:
            with open(f"{staging.disk}/data.bin", "rb", buffering=0) as file:
                file.read(1)

        def waits() -> bool:
            with open(f"/proc/{reader}/wchan") as file:
                return file.read() in {"request_wait_answer", "__fuse_request_send", "fuse_wait_answer"}

        def is_killed() -> bool:
            return read_state(reader) == "Z" or (read_state(reader) == "D" and waits())

        # A request that the server has not taken yet is withdrawn, and its reader simply dies: then another one reads.
        for _ in range(20):
            reader = fork(read)
            held = wait_for(waits)
            before = read_state(reader)
            os.kill(reader, signal.SIGKILL)
            if wait_for(is_killed) and read_state(reader) == "D":
                break
        return held, before, waits()

    # After a signal it is in D although it was killed; the server's end frees it, or this test would not end.
    assert inside("fuse-hang", tmp_path, work) == [True, "S", True]


def test_a_frozen_file_system_holds_its_writer_through_sigkill_until_it_is_thawed(tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        with ExitStack() as thaw:
            staging._undo = thaw
            # Not a fork alone: that would hold the watchdog's pipe open. It is up before the disk freezes: a program
            # that is loaded waits for a disk, too.
            writer = subprocess.Popen(
                ["sh", "-c", "echo up; read -r _; echo x > file"],
                cwd=staging.disk, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdout.readline()
            staging.freeze()
            writer.stdin.write(b"go\n")
            writer.stdin.flush()
            held = wait_for(lambda: read_state(writer.pid) == "D")
            writer.kill()
            still = writer.poll() is None and read_state(writer.pid) == "D"
        return held, still, writer.wait(LIMIT_S)

    assert inside("fsfreeze", tmp_path, work) == [True, True, -signal.SIGKILL]


def test_a_page_that_shared_memory_has_no_room_for_is_a_bus_error(tmp_path: Path) -> None:
    area = f"/dev/shm/holdfast-test-area-{os.getpid()}"

    def work(staging: Staging) -> object:
        def touch() -> None:
            with open(area, "w+b") as file:
                file.truncate(8 << 20)
                with mmap.mmap(file.fileno(), 8 << 20) as memory:
                    for offset in range(0, 8 << 20, mmap.PAGESIZE):
                        memory[offset] = 1

        _, status = os.waitpid(fork(touch), 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    assert inside("shm-full", tmp_path, work) == signal.SIGBUS
    assert not os.path.exists(area)


def test_the_host_sees_no_mount(tmp_path: Path) -> None:
    def work(staging: Staging) -> object:
        with open("/proc/self/mountinfo") as mine, open(f"/proc/{os.getppid()}/mountinfo") as theirs:
            return staging.disk in mine.read(), staging.disk in theirs.read()

    assert inside("disk-full", tmp_path, work) == [True, False]
