"""Print, as one JSON object, what this kernel and this account can do; each probe is `true`, `false` or a short text.

A probe tries the thing itself. A probe that breaks reports the error instead of ending the table.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
CGROUP = "/sys/fs/cgroup"
NEW_USER, NEW_PID, NEW_NS, NEW_NET = 0x10000000, 0x20000000, 0x00020000, 0x40000000
PIDFD_GET_INFO = 0xC040FF0B
RENAME_NOREPLACE = 1


def own_cgroup() -> str:
    with open("/proc/self/cgroup") as file:
        for line in file:
            number, _, path = line.strip().split(":", 2)
            if number == "0" and os.path.exists(f"{CGROUP}/unified"):
                return f"{CGROUP}/unified{path}"
            if number == "0":
                return CGROUP + path
    raise FileNotFoundError(errno.ENOENT, "no cgroup v2 in /proc/self/cgroup")


def controllers() -> str:
    with open(f"{own_cgroup()}/cgroup.controllers") as file:
        return file.read().strip()


def has_cgroup_file(name: str) -> bool:
    try:
        return os.path.exists(f"{own_cgroup()}/{name}")
    except FileNotFoundError:
        return False


def v1_controllers() -> str:
    with open("/proc/mounts") as file:
        rows = [line.split() for line in file]
    return " ".join(sorted(os.path.basename(row[1]) for row in rows if row[2] == "cgroup"))


def in_child(action: Callable[[], None]) -> bool | str:
    """Run `action` in a forked child; True when it returned, else the errno's name."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return True if code == 0 else errno.errorcode.get(code, str(code))


def unshare(flags: int) -> None:
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def pid_namespace(flags: int) -> bool | str:
    """A child of an unshared pid namespace is its process 1."""

    def action() -> None:
        unshare(flags)
        if in_child(lambda: None if os.getpid() == 1 else os._exit(254)) is not True:
            raise OSError(errno.ECHILD, "not process 1")

    return in_child(action)


def ended_child() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return pid


def pidfd_poll() -> bool:
    pid = ended_child()
    descriptor = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    ready = bool(poller.poll(5000))
    os.waitpid(pid, 0)
    return ready


def waitid_pidfd() -> bool:
    pid = ended_child()
    done = os.waitid(os.P_PIDFD, os.pidfd_open(pid), os.WEXITED)
    return done is not None and done.si_status == 7


def pidfd_send_signal() -> bool:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def pidfd_get_info() -> bool:
    """Source: include/uapi/linux/pidfd.h, ioctl added in Linux 6.13."""
    request = bytearray(struct.pack("Q", 1) + bytes(56))
    fcntl.ioctl(os.pidfd_open(os.getpid()), PIDFD_GET_INFO, request)
    return True


def inotify(directory: str) -> bool | str:
    """Events for create, close of a writer and close of a reader; the names of those missing otherwise."""
    watch = libc.inotify_init1(os.O_NONBLOCK)
    if watch < 0 or libc.inotify_add_watch(watch, directory.encode(), 0x8 | 0x10 | 0x100) < 0:
        return errno.errorcode[ctypes.get_errno()]
    path = f"{directory}/inotify"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.close(os.open(path, os.O_RDONLY))
    data, seen = os.read(watch, 65536), 0
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        seen |= mask
        data = data[16 + length :]
    os.unlink(path)
    missing = [name for name, bit in (("create", 0x100), ("close_write", 0x8), ("close_read", 0x10)) if not seen & bit]
    return not missing or "missing " + " ".join(missing)


def flock(directory: str) -> bool | str:
    """A second description is refused, the kernel lists the lock, and the death of the holder frees it."""
    path = f"{directory}/flock"
    first = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "granted twice"
    except BlockingIOError:
        pass
    with open("/proc/locks") as file:
        listed = f":{os.fstat(first).st_ino} " in file.read()
    os.close(first)
    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)
    os.unlink(path)
    return listed or "not in /proc/locks"


def tmpfile(directory: str) -> bool:
    os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600))
    return True


def rename_noreplace(directory: str) -> bool:
    source, target = f"{directory}/rename-a", f"{directory}/rename-b"
    os.close(os.open(source, os.O_WRONLY | os.O_CREAT, 0o600))
    failed = libc.renameat2(-100, source.encode(), -100, target.encode(), RENAME_NOREPLACE) != 0
    code = ctypes.get_errno()
    os.unlink(source if failed else target)
    if failed:
        raise OSError(code, "renameat2")
    return True


def chown_kept(directory: str) -> bool:
    path = f"{directory}/owned"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    found = os.stat(path).st_uid
    os.unlink(path)
    return found == os.geteuid()


def credentials() -> bool:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    right.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    left.send(b"x")
    _, ancillary, _, _ = right.recvmsg(16, 256)
    return struct.unpack("3i", ancillary[0][2]) == (os.getpid(), os.getuid(), os.getgid())


def environ() -> bool:
    with open("/proc/self/environ", "rb") as file:
        return b"PATH=" in file.read()


def swap_total() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("SwapTotal:"))


def bubblewrap() -> bool | str:
    """A sandbox with a read-only root and a pid namespace of its own."""
    words = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    if shutil.which(words[0]) is None:
        return "not installed"
    done = subprocess.run(words, capture_output=True, check=False)
    return done.returncode == 0 or done.stderr.decode().strip()


def io_priority() -> bool:
    """ioprio_set(2) (system call 251 on x86-64) to best effort, level 7."""
    return bool(libc.syscall(251, 1, 0, 2 << 13 | 7) == 0)


def exists(path: str) -> bool:
    return os.path.exists(path)


def probe(action: Callable[[], bool | str]) -> bool | str:
    try:
        return action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except AttributeError as error:
        return f"this Python has no {error.name}"


def main() -> None:
    """Arguments: directories by name, `tmpfs=/tmp hostfs=... ext4=...`."""
    places = dict(word.split("=", 1) for word in sys.argv[1:])
    table: dict[str, Callable[[], bool | str]] = {
        "kernel": lambda: os.uname().release,
        "uid": lambda: str(os.getuid()),
        "cgroup_v2_controllers": controllers,
        "cgroup_v1": v1_controllers,
        "psi": lambda: exists("/proc/pressure/memory") or has_cgroup_file("memory.pressure"),
        "pid_namespace": lambda: pid_namespace(NEW_PID),
        "user_and_pid_namespace": lambda: pid_namespace(NEW_USER | NEW_PID),
        "mount_namespace": lambda: in_child(lambda: unshare(NEW_NS)),
        "net_namespace": lambda: in_child(lambda: unshare(NEW_NET)),
        "pidfd_poll": pidfd_poll,
        "waitid_pidfd": waitid_pidfd,
        "pidfd_send_signal": pidfd_send_signal,
        "pidfd_get_info": pidfd_get_info,
        "proc_environ": environ,
        "proc_children": lambda: exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"),
        "unix_credentials": credentials,
        "subreaper": lambda: libc.prctl(36, 1, 0, 0, 0) == 0,
        "bubblewrap": bubblewrap,
        "io_priority": io_priority,
        "swap": lambda: swap_total() > 0,
        "kmsg": lambda: os.access("/dev/kmsg", os.R_OK),
        "cpus": lambda: str(len(os.sched_getaffinity(0))),
        "initial_pid_namespace": lambda: str(os.stat("/proc/self/ns/pid").st_ino),
    }
    names = ("cgroup.kill", "cgroup.freeze", "memory.max", "memory.peak", "memory.events", "memory.oom.group")
    for name in (*names, "memory.swap.max", "cpu.max", "cpu.stat", "pids.max", "io.max", "io.weight"):
        table[name] = lambda name=name: has_cgroup_file(name)  # type: ignore[misc]
    for name, place in places.items():
        table[f"inotify_{name}"] = lambda place=place: inotify(place)  # type: ignore[misc]
        table[f"flock_{name}"] = lambda place=place: flock(place)  # type: ignore[misc]
        table[f"o_tmpfile_{name}"] = lambda place=place: tmpfile(place)  # type: ignore[misc]
        table[f"rename_noreplace_{name}"] = lambda place=place: rename_noreplace(place)  # type: ignore[misc]
        table[f"owner_kept_{name}"] = lambda place=place: chown_kept(place)  # type: ignore[misc]
    print(json.dumps({name: probe(action) for name, action in table.items()}, indent=1))


if __name__ == "__main__":
    main()
