"""What a thread waits for, from its state, the kernel's wait symbol and its system call. Pure.

Theory. ``/proc/T/wchan`` names the kernel function in which a thread sleeps. These names are no interface: a futex wait
was ``futex_wait_queue_me`` before Linux 5.16, ``futex_wait_queue`` later, and is ``futex_do_wait`` on 6.18; a pipe read
was ``pipe_wait_readable`` and is ``anon_pipe_read``. So symbols are matched as families, and the system call's number
(``/proc/T/syscall``), which is an interface, comes to help. Where neither is readable the answer is UNKNOWN.

Source: proc_pid_wchan(5), proc_pid_syscall(5); numbers from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (arm64).
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.model.pattern import compile_later

if TYPE_CHECKING:
    import re


class Wait(str, Enum):
    """What a thread is doing, as far as the kernel tells."""

    RUNNING = "running"
    FUTEX = "a lock (futex)"
    PIPE = "a pipe"
    SOCKET = "a socket"
    POLL = "one of several descriptors (poll)"
    SLEEP = "a timer (sleep)"
    CHILD = "the end of a child"
    VFORK = "a child that was started with vfork"
    STORAGE = "storage"
    FUSE = "a FUSE server"
    NFS = "an NFS server"
    DRIVER = "the GPU driver"
    FILE_LOCK = "a file lock"
    TTY = "a terminal"
    SIGNAL = "a signal"
    STOPPED = "being continued (stopped)"
    TRACED = "a debugger"
    FROZEN = "its control group being thawed"
    DEAD = "nothing (ended)"
    OTHER = "something else"
    UNKNOWN = "something that the kernel does not tell"


_FAMILIES: tuple[tuple[Wait, re.Pattern[str]], ...] = (
    (Wait.FUTEX, compile_later(r"futex")),
    (Wait.FUSE, compile_later(r"^request_wait_answer|^fuse_|^__fuse_")),
    (Wait.NFS, compile_later(r"^nfs|^_?rpc_wait|^__rpc|^rpc_|^lookup_.*nfs|^cifs_|^wait_for_response|^ceph_")),
    (Wait.DRIVER, compile_later(r"^_?nv\d|^nv_|^nvidia|^uvm|^os_acquire|^rm_|^nvkms")),
    (Wait.FROZEN, compile_later(r"refrigerator|^do_freezer_trap|^get_signal$")),
    (Wait.STOPPED, compile_later(r"^do_signal_stop")),
    (Wait.TRACED, compile_later(r"^ptrace_stop|^ptrace_notify")),
    (Wait.PIPE, compile_later(r"pipe_(read|write|wait)|^wait_for_partner|^fifo_open|splice")),
    (Wait.FILE_LOCK, compile_later(r"lock_(inode_)?wait|^locks_lock|^flock_lock|^posix_lock|^fcntl_setlk")),
    (Wait.POLL, compile_later(r"^do_(sys_)?poll|^do_select|^ep_poll|poll_schedule|^core_sys_select|^do_epoll_wait")),
    (
        Wait.SOCKET,
        compile_later(
            r"sk_wait|skb_wait|wait_for_more_packets|unix_(stream|dgram|wait)|^inet_(csk|stream|wait)|^tcp_|^sock_"
            r"|^udp_|wait_for_connect|^vsock|sk_stream_wait"
        ),
    ),
    (Wait.VFORK, compile_later(r"^(kernel_clone|_?do_fork|wait_for_vfork_done)$")),
    (Wait.CHILD, compile_later(r"^do_wait|^kernel_wait|^do_waitid|^wait_consider")),
    (Wait.SLEEP, compile_later(r"nanosleep|^hrtimer_")),
    (Wait.TTY, compile_later(r"^n_tty_|^tty_")),
    (Wait.SIGNAL, compile_later(r"sigtimedwait|sigsuspend|^sys_pause|_sys_pause|signalfd|^sigsuspend")),
    (
        Wait.STORAGE,
        compile_later(
            r"^io_schedule|^blk_|^bio_|folio_wait|wait_on_(page|buffer|bit)|^rq_qos|^jbd2|^ext4|^xfs|^btrfs|^wbt_"
            r"|percpu_(rwsem|down)|sb_start|^balance_dirty|^do_fsync|^sync_|^wait_transaction|^submit_bio|^dm_|^md_"
            r"|^submit_wait|^filemap_|^writeback|^lru_add_drain|^swap|^rescuer|^overlayfs|^ovl_|^io_cqring_wait"
            r"|^read_events|^__filemap"
        ),
    ),
)  # fmt: skip

_CALLS_X86 = {
    Wait.FUTEX: (202, 449),
    Wait.POLL: (7, 271, 23, 270, 232, 281, 441),
    Wait.SLEEP: (35, 230),
    Wait.CHILD: (61, 247),
    Wait.VFORK: (58,),
    Wait.SOCKET: (45, 47, 299, 44, 46, 307, 42, 43, 288),
    Wait.FILE_LOCK: (73, 72),
    Wait.SIGNAL: (34, 130, 128),
}
_CALLS_ARM = {
    Wait.FUTEX: (98, 449),
    Wait.POLL: (73, 72, 22, 441),
    Wait.SLEEP: (101, 115),
    Wait.CHILD: (260, 95),
    Wait.SOCKET: (207, 212, 243, 206, 211, 269, 203, 202, 242),
    Wait.FILE_LOCK: (32, 25),
    Wait.SIGNAL: (133, 137),
}
_DESCRIPTOR_CALLS = {
    "x86_64": frozenset(
        {0, 1, 5, 8, 16, 17, 18, 19, 20, 42, 43, 44, 45, 46, 47, 72, 73, 74, 75, 77, 138, 288, 299, 307}
    ),
    "aarch64": frozenset(
        {25, 29, 32, 44, 62, 63, 64, 65, 66, 67, 68, 80, 82, 83, 202, 203, 206, 207, 211, 212, 242, 243, 269}
    ),
}  # fmt: skip
"""Calls whose first argument is a descriptor: read, write, p*, *v, fsync, fdatasync, fstat, lseek, ioctl, sockets."""
_EPOLL_CALLS = {"x86_64": frozenset({232, 281, 441}), "aarch64": frozenset({22, 441})}
_POLL_CALLS = {"x86_64": frozenset({7, 271}), "aarch64": frozenset({73})}
_NAMES = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
        23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
        46: "sendmsg", 47: "recvmsg", 56: "clone", 57: "fork", 58: "vfork", 61: "wait4", 72: "fcntl", 73: "flock",
        74: "fsync", 75: "fdatasync", 82: "rename", 87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
        137: "statfs", 138: "fstatfs", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
        257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
        332: "statx", 426: "io_uring_enter", 435: "clone3", 441: "epoll_pwait2", 449: "futex_waitv",
    },
    "aarch64": {
        63: "read", 64: "write", 29: "ioctl", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev",
        101: "nanosleep", 203: "connect", 202: "accept", 206: "sendto", 207: "recvfrom", 211: "sendmsg",
        212: "recvmsg", 220: "clone", 260: "wait4", 25: "fcntl", 32: "flock", 82: "fsync", 83: "fdatasync",
        38: "renameat", 137: "rt_sigtimedwait", 133: "rt_sigsuspend", 43: "statfs", 98: "futex",
        115: "clock_nanosleep", 22: "epoll_pwait", 95: "waitid", 56: "openat", 79: "newfstatat", 72: "pselect6",
        73: "ppoll", 242: "accept4", 291: "statx", 426: "io_uring_enter", 435: "clone3", 441: "epoll_pwait2",
        449: "futex_waitv",
    },
}  # fmt: skip
_MACHINE = os.uname().machine
_FUTEX_TIMEOUT_ARGUMENT = 3
_STATES = {"R": Wait.RUNNING, "T": Wait.STOPPED, "t": Wait.TRACED, "Z": Wait.DEAD, "X": Wait.DEAD, "x": Wait.DEAD}


def classify_wait(state: str, wchan: str | None, syscall: int | None, *, machine: str = _MACHINE) -> Wait:
    """What a thread waits for; `wchan` and `syscall` are None where the kernel did not tell.

    A state letter of uninterruptible sleep (D) whose symbol nobody knows counts as storage: that is what it nearly
    always is, and the caller says the symbol.
    """
    if state in _STATES:
        return _STATES[state]
    for family, pattern in _FAMILIES:
        if wchan and pattern.search(wchan):
            return family
    calls = {"x86_64": _CALLS_X86, "aarch64": _CALLS_ARM}.get(machine, {})
    if syscall is not None:
        for family, numbers in calls.items():
            if syscall in numbers:
                return family
    if state == "D":
        return Wait.STORAGE
    return Wait.UNKNOWN if wchan is None and syscall is None else Wait.OTHER


def name_call(number: int | None, *, machine: str = _MACHINE) -> str:
    """The system call's name for people; its number where we know no name, empty where it was not readable."""
    if number is None:
        return ""
    return _NAMES.get(machine, {}).get(number, f"system call {number}")


def first_descriptor(number: int | None, arguments: tuple[int, ...], *, machine: str = _MACHINE) -> int | None:
    """The descriptor that a call works on, where its first argument is one."""
    if number is None or not arguments or number not in _DESCRIPTOR_CALLS.get(machine, ()):
        return None
    return arguments[0] if arguments[0] < 1 << 31 else None


def epoll_descriptor(number: int | None, arguments: tuple[int, ...], *, machine: str = _MACHINE) -> int | None:
    """The epoll descriptor that a thread waits on; None when it waits in no such call."""
    return arguments[0] if number in _EPOLL_CALLS.get(machine, ()) and arguments else None


def has_timeout(number: int | None, arguments: tuple[int, ...], *, machine: str = _MACHINE) -> bool | None:
    """Whether a futex wait ends by itself after a time; None when it is no futex wait or cannot be told.

    Source: futex(2): the fourth argument is a pointer to a timeout, NULL for none.
    """
    futex = {"x86_64": _CALLS_X86, "aarch64": _CALLS_ARM}.get(machine, {}).get(Wait.FUTEX, ())
    if not futex or number != futex[0] or len(arguments) <= _FUTEX_TIMEOUT_ARGUMENT:
        return None
    return arguments[_FUTEX_TIMEOUT_ARGUMENT] != 0


def poll_array(number: int | None, arguments: tuple[int, ...], *, machine: str = _MACHINE) -> tuple[int, int] | None:
    """Address and count of the descriptors that a thread polls; None when it is in no such call.

    Source: poll(2): an array of {int fd, short events, short revents}.
    """
    if number not in _POLL_CALLS.get(machine, ()) or len(arguments) < 2:
        return None
    return arguments[0], arguments[1]
