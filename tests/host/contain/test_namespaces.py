"""A PID namespace as root and as an unprivileged user: what is inside, what stays outside."""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.host.contain.containment import _try_namespace, try_in_child
from holdfast.host.contain.namespaces import (
    EnteredNamespace,
    bind_read_only,
    enter_pid_namespace,
    explain_refusal,
    finish_namespace,
    read_namespace,
    signal_namespace,
)
from holdfast.host.process import libc
from tests.host.families import become
from tests.kernel_calls import set_dumpable
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process
USERS = [
    pytest.param(0, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
    65534 if os.geteuid() == 0 else os.geteuid(),
]


def run_inside(uid: int, attempt: Callable[[EnteredNamespace], object], **options: list[str]) -> int:
    """Run `attempt` as first process of a namespace, as one user; the wait status of the launcher."""

    def launch() -> None:
        if uid != os.geteuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            set_dumpable()
        entered = enter_pid_namespace()
        assert entered.user_namespace is (uid != 0)

        def first() -> None:
            finish_namespace(entered, **options)
            attempt(entered)

        assert os.waitpid(become(first), 0)[1] == 0

    return os.waitpid(become(launch), 0)[1]


@pytest.mark.parametrize("uid", USERS)
def test_inside_there_is_only_the_run_and_the_same_user(uid: int, public_path: Path) -> None:
    public_path.chmod(0o777)
    (public_path / "mine").touch()
    if os.geteuid() == 0:
        os.chown(public_path / "mine", uid, uid)

    def look(entered: EnteredNamespace) -> None:
        assert os.getpid() == 1
        assert os.readlink("/proc/self") == "1"
        assert [name for name in os.listdir("/proc") if name.isdigit()] == ["1"]
        assert (os.getuid(), os.getgid()) == (uid, uid)
        assert os.stat(public_path / "mine").st_uid == uid
        assert read_namespace() != entered.outer

    assert run_inside(uid, look) == 0


@pytest.mark.parametrize("uid", USERS)
def test_mounts_inside_never_reach_the_host(uid: int, public_path: Path) -> None:
    def mount_things(_: EnteredNamespace) -> None:
        libc.mount("inside", str(public_path), kind="tmpfs")
        with open("/proc/self/mountinfo") as file:
            assert str(public_path) in file.read()

    assert run_inside(uid, mount_things) == 0
    with open("/proc/self/mountinfo") as file:
        assert str(public_path) not in file.read()


@pytest.mark.requirement("RAIL-07")
@pytest.mark.parametrize("uid", USERS)
def test_RAIL_07_data_is_read_only_inside_and_the_run_directory_is_not(uid: int, public_path: Path) -> None:
    data, run = public_path / "data", public_path / "data" / "runs"
    run.mkdir(parents=True)
    for path in (public_path, data, run):
        path.chmod(0o777)
    (data / "images").write_text("pixels")
    (data / "images").chmod(0o666)
    (public_path / "single").write_text("one")
    (public_path / "single").chmod(0o666)
    (public_path / "link").symlink_to(data)

    def write(_: EnteredNamespace) -> None:
        for path in (data / "images", data / "new", public_path / "single", public_path / "link" / "images"):
            with pytest.raises(OSError, match="Read-only"):
                path.write_text("changed")
        # The working directory was inside before: it must not be a way around.
        with pytest.raises(OSError, match="Read-only"):
            os.open("images", os.O_WRONLY)
        (run / "result").write_text("done")
        assert (data / "images").read_text() == "pixels"

    before = os.getcwd()
    os.chdir(data)
    try:
        status = run_inside(
            uid, write, read_only=[str(public_path / "link"), str(public_path / "single")], writable=[str(run)]
        )
    finally:
        os.chdir(before)
    assert status == 0
    assert (run / "result").read_text() == "done"
    (data / "images").write_text("the host still writes")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_RAIL_07_mounts_below_a_data_directory_are_read_only_too(public_path: Path) -> None:
    (public_path / "below").mkdir()

    def mount_first(_: EnteredNamespace) -> None:
        libc.mount("nested", str(public_path / "below"), kind="tmpfs", flags=libc.MS_NODEV | libc.MS_NOSUID)
        bind_read_only([str(public_path)])
        for path in (public_path / "x", public_path / "below" / "x"):
            with pytest.raises(OSError, match="Read-only"):
                path.touch()

    assert run_inside(0, mount_first) == 0


@pytest.mark.parametrize(("path", "number"), [("/", errno.EINVAL), ("/no/such/data", errno.ENOENT)])
def test_RAIL_07_what_cannot_be_made_read_only_fails(path: str, number: int) -> None:
    def attempt(_: EnteredNamespace) -> None:
        with pytest.raises(OSError, match=re.escape(path)) as caught:
            bind_read_only([path])
        assert caught.value.errno == number

    assert run_inside(USERS[-1] if isinstance(USERS[-1], int) else 0, attempt) == 0


@pytest.mark.requirement("PROC-02", "PROC-22")
@pytest.mark.parametrize("uid", USERS)
def test_PROC_22_all_of_it_dies_with_the_first_process(uid: int) -> None:
    reader, writer = os.pipe()

    def leave_children(_: EnteredNamespace) -> None:
        for _number in range(5):
            if os.fork() == 0:
                os.setsid()
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)  # process 1 is deaf to its own KILL: it leaves by itself
        os._exit(0)

    assert run_inside(uid, leave_children) == 0
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("uid", USERS)
def test_the_first_process_ends_everything_else_in_one_step(uid: int) -> None:
    def attempt(entered: EnteredNamespace) -> None:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, b".")
            while True:
                if os.fork():
                    os._exit(0)
        os.read(reader, 1)
        os.close(writer)
        assert signal_namespace(entered) is True
        assert os.read(reader, 1) == b""
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        assert signal_namespace(entered) is False

    assert run_inside(uid, attempt) == 0


def test_outside_of_a_namespace_nothing_is_mounted_or_signalled() -> None:
    outer = read_namespace()
    assert outer is not None
    for refuse in (
        lambda: signal_namespace(EnteredNamespace(outer, user_namespace=False)),
        lambda: finish_namespace(EnteredNamespace(0, user_namespace=True)),
    ):
        with pytest.raises(OSError, match="not process 1 of a PID namespace of its own"):
            refuse()


def test_a_refusal_is_explained() -> None:
    assert explain_refusal(OSError(errno.EINVAL, "unshare: Invalid argument")).endswith("unshare: Invalid argument")
    masked = explain_refusal(OSError(errno.EPERM, "mount proc on /proc (flags 0xe): Operation not permitted"))
    assert "hides parts" in masked or "AppArmor" in masked
    assert read_namespace(2**22 + 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to build a container's view")
def test_a_container_that_masks_its_proc_is_told_from_other_refusals() -> None:
    reader, writer = os.pipe()

    def live_in_a_container() -> None:
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        libc.mount("/dev/null", "/proc/timer_list", flags=libc.MS_BIND)
        os.setgid(65534)
        os.setuid(65534)
        set_dumpable()
        os.write(writer, str(try_in_child(_try_namespace, deadline_s=LIMIT_S)).encode())

    assert os.waitpid(become(live_in_a_container), 0)[1] == 0
    assert "as in a container that hides parts of its own" in os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to map itself")
def test_switched_off_namespaces_are_named_with_their_setting() -> None:
    reader, writer = os.pipe()

    def live_where_they_are_off() -> None:
        # The setting belongs to a user namespace: nothing outside of this child changes.
        libc.unshare(libc.CLONE_NEWUSER)
        for name, content in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
        with open("/proc/sys/user/max_pid_namespaces", "w") as file:
            file.write("0")
        os.write(writer, str(try_in_child(_try_namespace, deadline_s=LIMIT_S)).encode())

    assert os.waitpid(become(live_where_they_are_off), 0)[1] == 0
    assert "user.max_pid_namespaces = 0" in os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)
