"""The Linux calls that Python 3.10 does not wrap, one function each; failures are OSError with the call's name.

Owns the only use of ctypes below the desk. ctypes is imported at the first call, so importing this module is free, and
a process that needs no such call never pays for it. Everything here may be called between fork and exec of a
single-threaded process.

It must not know holdfast: no policy, no paths.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING

from holdfast.model.record import record

if TYPE_CHECKING:
    import ctypes

# Source: the kernel header uapi/linux/sched.h.
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
# Source: the kernel header uapi/linux/mount.h.
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2
# Source: the kernel header uapi/linux/prctl.h.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# -1 as unsigned long.
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1
# Source: the kernel header uapi/linux/timex.h.
_TIME_ERROR = 5
# Source: the kernel header uapi/linux/fs.h: SYNC_FILE_RANGE_WRITE_AND_WAIT.
_WRITE_BACK_AND_WAIT = 7
# Source: the kernel header uapi/linux/ioprio.h.
IOPRIO_BEST_EFFORT = 2
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_SHIFT = 13
# Source: the kernel's syscall tables; asm-generic (30, 31) holds for every architecture that is not listed.
_IOPRIO_SET = {"x86_64": 251, "i686": 289, "i386": 289, "ppc64le": 273, "ppc64": 273, "s390x": 282}
_WAITID = {"x86_64": 247, "i686": 284, "i386": 284, "ppc64le": 272, "ppc64": 272, "s390x": 281}
# The same number on every architecture but alpha, being newer than Linux 5.0.
_SYS_PIDFD_SEND_SIGNAL, _SYS_PIDFD_OPEN, _SYS_PIDFD_GETFD = 424, 434, 438
# Source: include/uapi/linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), 64 bytes in its first version (Linux 6.13).
_PIDFD_GET_INFO = 0xC0000000 | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3

_loaded: ctypes.CDLL | None = None


def _library() -> ctypes.CDLL:
    global _loaded  # noqa: PLW0603 - loaded once per process, at the first call that needs it
    if _loaded is None:
        import ctypes

        _loaded = ctypes.CDLL(None, use_errno=True)
    return _loaded


def _fail(what: str) -> OSError:
    import ctypes

    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, value: int, what: str) -> None:
    # Every argument as unsigned long: the kernel reads all five and refuses garbage in the unused ones.
    import ctypes

    long = ctypes.c_ulong
    if _library().prctl(ctypes.c_int(option), long(value), long(0), long(0), long(0)) != 0:
        raise _fail(what)


def set_child_subreaper(enabled: bool = True) -> None:  # noqa: FBT001, FBT002 - mirrors the call: on or off
    """Make orphans among our descendants our children. Not inherited by children; kept across exec.

    Source: PR_SET_CHILD_SUBREAPER(2const), since Linux 3.4.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_parent_death_signal(number: int) -> None:
    """Ask for signal `number` when our parent dies; 0 asks for none.

    The kernel sends it when the *thread* that forked us ends (PROC-22), and forgets it at fork and at exec of a
    set-user-id program. The parent may be gone already: compare ``os.getppid()`` afterwards. Source:
    PR_SET_PDEATHSIG(2const).
    """
    _prctl(_PR_SET_PDEATHSIG, number, "prctl(PR_SET_PDEATHSIG)")


def set_name(name: str) -> None:
    """Name the calling thread as ps and /proc show it; the kernel keeps 15 bytes. Source: PR_SET_NAME(2const)."""
    import ctypes

    long, text = ctypes.c_ulong, ctypes.c_char_p(os.fsencode(name)[:15])
    if _library().prctl(ctypes.c_int(_PR_SET_NAME), text, long(0), long(0), long(0)) != 0:
        raise _fail("prctl(PR_SET_NAME)")


def allow_ptrace() -> bool:
    """Let every process of our account attach to this one where Yama (scope 1) would only let its ancestors.

    Kept across exec, not inherited by children; other scopes of Yama and the account's own rights stay as they are.
    False where there is no Yama: then nothing has to be allowed. Source: PR_SET_PTRACER(2const),
    Documentation/admin-guide/LSM/Yama.rst.
    """
    try:
        _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, "prctl(PR_SET_PTRACER)")
    except OSError:
        return False
    return True


def is_clock_synchronised() -> bool | None:
    """Whether the kernel's clock is kept by somebody (NTP, PTP); None when the call is refused (a sandbox).

    Reads only. Source: adjtimex(2): mode 0 changes nothing, the answer TIME_ERROR (5) is "not synchronised". In a
    container it is the host's clock that answers.
    """
    import ctypes

    # struct timex has 208 bytes on 64-bit systems; all zero is mode 0.
    state = _library().adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; with CLONE_NEWPID it is the next child that is in the new one.

    Source: the manual page of the call, section 2.
    """
    import ctypes

    if _library().unshare(ctypes.c_int(flags)) != 0:
        raise _fail(f"unshare({flags:#x})")


def setns(descriptor: int, flags: int) -> None:
    """Enter the namespace behind an open ``/proc/PID/ns/*`` file (or a pidfd). Source: its manual page, section 2."""
    import ctypes

    if _library().setns(ctypes.c_int(descriptor), ctypes.c_int(flags)) != 0:
        raise _fail(f"setns({flags:#x})")


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    """Mount, bind, remount or change propagation, as `flags` say. Source: its manual page, section 2."""
    import ctypes

    failed = _library().mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        None if options is None else options.encode(),
    )
    if failed:
        raise _fail(f"mount {kind or source} on {target} (flags {flags:#x})")


def umount(target: str, *, flags: int = 0) -> None:
    """Unmount `target`; MNT_DETACH leaves it to those who still use it. Source: umount2(2)."""
    import ctypes

    if _library().umount2(os.fsencode(target), ctypes.c_int(flags)) != 0:
        raise _fail(f"umount {target}")


def syncfs(descriptor: int) -> None:
    """Have a whole file system, that of an open file, put on its disk what is cached. Source: sync(2)."""
    import ctypes

    if _library().syncfs(ctypes.c_int(descriptor)) != 0:
        raise _fail("syncfs")


def write_back(descriptor: int, offset: int, length: int) -> None:
    """Have a part of a file written to its disk, as far as it is only cached, and wait. Source: sync_file_range(2)."""
    import ctypes

    wide = ctypes.c_int64
    call = _library().sync_file_range
    if call(ctypes.c_int(descriptor), wide(offset), wide(length), ctypes.c_uint(_WRITE_BACK_AND_WAIT)) != 0:
        raise _fail("sync_file_range")


def _syscall(number: int, *arguments: int, what: str) -> int:
    import ctypes

    answer = int(_library().syscall(ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments)))
    if answer < 0:
        raise _fail(what)
    return answer


def set_io_priority(kind: int, level: int, *, pid: int = 0) -> None:
    """Set the I/O class (IOPRIO_BEST_EFFORT) and level 0 (high) to 7 (low) of a process; 0 is ourselves.

    Source: ioprio_set(2). Schedulers without priorities (none, mq-deadline before 5.14) accept and ignore it.
    """
    number = _IOPRIO_SET.get(os.uname().machine, 30)
    _syscall(
        number, _IOPRIO_WHO_PROCESS, pid, (kind << _IOPRIO_CLASS_SHIFT) | level, what=f"ioprio_set({kind}, {level})"
    )


def pidfd_open(pid: int) -> int:
    """As `os.pidfd_open`, where Python was built without it. Source: its manual page, section 2, since Linux 5.3."""
    return _syscall(_SYS_PIDFD_OPEN, pid, 0, what=f"pidfd_open({pid})")


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """As `signal.pidfd_send_signal`, likewise. Source: its manual page, section 2, since Linux 5.1."""
    _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0, what=f"pidfd_send_signal({number})")


def pidfd_getfd(pidfd: int, descriptor: int) -> int:
    """A copy (close-on-exec) of another process's open descriptor: the same open file description, locks included.

    Needs the right to ptrace that process: EPERM otherwise, for instance under Yama scope 1 when it is no descendant of
    ours. Source: pidfd_getfd(2), since Linux 5.6.
    """
    return _syscall(_SYS_PIDFD_GETFD, pidfd, descriptor, 0, what=f"pidfd_getfd(descriptor {descriptor})")


@record
class PidfdInfo:
    """What the kernel still knows of a process behind a pidfd.

    `pid` is None once it was reaped. `wait_status` is the raw status as wait(2) has it, None while the process lives,
    while it is a zombie, and where the kernel does not tell.
    """

    pid: int | None
    wait_status: int | None


def read_pidfd_info(pidfd: int) -> PidfdInfo | None:
    """Ask a pidfd for pid and exit status, also after somebody else has reaped the process.

    Returns:
        None where the kernel cannot say: before Linux 6.13, in a sandbox, or when the process is gone and its exit
        status was not kept (before 6.15, or no pidfd was open when it ended).
    """
    data = bytearray(64)
    struct.pack_into("=Q", data, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, data)
    except OSError:
        return None
    mask, _cgroup, pid = struct.unpack_from("=QQI", data)
    exited = bool(mask & _PIDFD_INFO_EXIT)
    return PidfdInfo(pid=pid or None, wait_status=struct.unpack_from("=i", data, 60)[0] if exited else None)


@record
class ProcessUsage:
    """What an ended process and its reaped descendants used: seconds of CPU, peak resident bytes of the largest."""

    user_s: float
    system_s: float
    max_rss_bytes: int


def read_zombie_usage(pid: int) -> ProcessUsage | None:
    """The resource usage of a child that has ended, without reaping it.

    The kernel's waitid takes a fifth argument for this, which neither libc nor Python passes on. Source: waitid(2),
    "C library/kernel differences". None where the call is refused (a sandbox).
    """
    import ctypes

    usage = (ctypes.c_long * 18)()
    number = _WAITID.get(os.uname().machine, 95)
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    answer = _library().syscall(
        ctypes.c_long(number), ctypes.c_int(os.P_PID), ctypes.c_int(pid), None, ctypes.c_int(flags), ctypes.byref(usage)
    )
    if answer != 0:
        return None
    return ProcessUsage(usage[0] + usage[1] / 1e6, usage[2] + usage[3] / 1e6, usage[4] * 1024)
