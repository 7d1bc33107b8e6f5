"""What is set up around the run of a fault, and undone: mounts, a file system that fails, a frozen one.

Every mount is made in a mount namespace of the guard's own, with propagation cut first, so the host never sees one and
none outlives the processes of the fault. Two things do outlive a namespace and have a keeper each: a frozen file system
(a watchdog in a process of its own thaws it when its pipe closes or its time is up) and a FUSE connection (ends with
its server, which dies with the guard).

Source: mount_namespaces(7), user_namespaces(7); ioctl numbers: the kernel header uapi/linux/fs.h.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from holdfast.host.process import libc
from holdfast.host.process.offload import close_all_except

from .fuse import FuseServer, InjectedError
from .spec import Fault, Stage

if TYPE_CHECKING:
    from contextlib import ExitStack

DISK_BYTES = 1 << 20
LOOP_BYTES = 16 << 20
FEW_INODES = 20
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
FROZEN_AT_MOST_S = 90
TOOL_S = 20.0
THAWER = "holdfast-thaw"
"""The watchdog's name, so that a sweep spares it: it leaves by itself, and only it thaws."""
NO_DEVICES = libc.MS_NOSUID | libc.MS_NODEV


class StageFailed(Exception):
    """The sandbox could not be set up; the message says what was refused."""


def enter_mount_namespace() -> None:
    """Leave for a mount namespace of our own, whose mounts never reach the host's. The caller is single-threaded.

    Raises:
        OSError: refused.
    """
    if os.geteuid() == 0:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        uid, gid = os.geteuid(), os.getegid()
        libc.unshare(libc.CLONE_NEWNS | libc.CLONE_NEWUSER)
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, content.encode("ascii"))
            finally:
                os.close(descriptor)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_SLAVE)


class Staging:
    """The surroundings of one fault. `undo` gets what has to be undone, last first."""

    def __init__(self, fault: Fault, box: str, undo: ExitStack) -> None:
        self._fault, self._box, self._undo = fault, box, undo

    @property
    def disk(self) -> str:
        """The directory on which the fault's disk is mounted."""
        return f"{self._box}/disk"

    def prepare(self) -> None:
        """Make it, before the run starts.

        Raises:
            StageFailed: the box refused.
        """
        try:
            os.mkdir(self.disk, 0o700)
            self._prepare()
        except (OSError, subprocess.SubprocessError) as error:
            raise StageFailed(f"{self._fault.stage.value}: {error}") from error

    def _prepare(self) -> None:
        stage = self._fault.stage
        if stage in (Stage.PLAIN, Stage.CARD):
            return
        enter_mount_namespace()
        # Last of all, so that the guard itself can remove the directory.
        self._undo.callback(_unmount, self.disk)
        if stage is Stage.SMALL_DISK:
            _mount_tmpfs(self.disk, f"size={DISK_BYTES},mode=0700")
        elif stage is Stage.FEW_INODES:
            _mount_tmpfs(self.disk, f"size=64m,nr_inodes={FEW_INODES},mode=0700")
        elif stage is Stage.SMALL_SHM:
            _mount_tmpfs("/dev/shm", f"size={DISK_BYTES},mode=1777")  # noqa: S108 - over it, in our namespace
        elif stage is Stage.FUSE:
            self._mount_fuse()
        else:
            self._mount_loop()

    def freeze(self) -> None:
        """Freeze the loop disk. Its watchdog exists before that.

        Raises:
            StageFailed: the file system cannot be frozen.
        """
        descriptor = os.open(self.disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            release = _start_thaw_watchdog(descriptor)
            self._undo.callback(release)
            fcntl.ioctl(descriptor, FIFREEZE, 0)
        except OSError as error:
            raise StageFailed(f"freeze: {error}") from error
        finally:
            os.close(descriptor)

    def _mount_loop(self) -> None:
        image = f"{self._box}/disk.img"
        with open(image, "xb") as file:
            file.truncate(LOOP_BYTES)
        # Without reserved blocks: what is full for the job is full for root too.
        _run_tool("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", image)
        # The kernel detaches the loop device with the last mount of it (autoclear: mount(8)).
        _run_tool("mount", "-o", "loop,nosuid,nodev", "-t", "ext4", image, self.disk)

    def _mount_fuse(self) -> None:
        trouble = InjectedError.parse(self._fault.stage_option)
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            options = f"fd={descriptor},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
            libc.mount("holdfast-fault", self.disk, kind="fuse", flags=NO_DEVICES, options=options)
            guard, server = os.getpid(), os.fork()
            if server == 0:
                _serve_and_exit(FuseServer(descriptor, trouble), descriptor, guard)
        finally:
            os.close(descriptor)
        self._undo.callback(_end_child, server)


def _serve_and_exit(server: object, descriptor: int, guard: int) -> None:
    assert isinstance(server, FuseServer)
    code = 1
    try:
        libc.set_parent_death_signal(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        close_all_except({2, descriptor})
        if os.getppid() == guard:
            server.serve()
        code = 0
    finally:
        os._exit(code)


def _start_thaw_watchdog(directory: int) -> _Release:
    """Fork the process that thaws what `directory` is on: when the answer is called, when we die, or in time."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            # Of its own session, and deaf to what ends the guard: it leaves only after its work.
            os.setsid()
            libc.set_name(THAWER)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            close_all_except({read_end, directory})
            poller = select.poll()
            poller.register(read_end, select.POLLIN)
            poller.poll(FROZEN_AT_MOST_S * 1000)
            fcntl.ioctl(directory, FITHAW, 0)
        finally:
            os._exit(0)
    os.close(read_end)
    return _Release(write_end, child)


class _Release:
    """Lets the watchdog thaw, and waits until it has."""

    def __init__(self, pipe: int, child: int) -> None:
        self._pipe, self._child = pipe, child

    def __call__(self) -> None:
        os.close(self._pipe)
        _reap(self._child)


def _mount_tmpfs(path: str, options: str) -> None:
    libc.mount("holdfast-fault", path, kind="tmpfs", flags=NO_DEVICES, options=options)


def _unmount(path: str) -> None:
    try:
        libc.umount(path, flags=libc.MNT_DETACH)
    except OSError:
        # Nothing was mounted there; and what is, goes with the namespace.
        return


def _end_child(pid: int) -> None:
    """End and reap a child of ours that was not reaped yet, so the number is still its own."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    _reap(pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _run_tool(name: str, *arguments: str) -> None:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") or name
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=TOOL_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{name}: {done.stderr.strip() or f'exit code {done.returncode}'}")
