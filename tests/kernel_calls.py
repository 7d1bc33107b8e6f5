"""Calls of the kernel that only tests make: what a process is seen to have, and what a change of account takes away.

ctypes is loaded here at import: after the change of account the interpreter may lie where it cannot be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

# Source: the kernel header uapi/linux/prctl.h.
_PR_SET_DUMPABLE = 4
# Source: the kernel header uapi/linux/ioprio.h and the kernel's syscall tables (asm-generic where not listed).
_IOPRIO_WHO_PROCESS, _IOPRIO_CLASS_SHIFT = 1, 13
_IOPRIO_GET = {"x86_64": 252, "i686": 290, "i386": 290, "ppc64le": 274, "ppc64": 274, "s390x": 283}
_LIBC = ctypes.CDLL(None, use_errno=True)


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def set_dumpable() -> None:
    """Let our own user read our /proc entries and write our user-namespace maps. Source: PR_SET_DUMPABLE(2const)."""
    long = ctypes.c_ulong
    if _LIBC.prctl(ctypes.c_int(_PR_SET_DUMPABLE), long(1), long(0), long(0), long(0)) != 0:
        raise _fail("prctl(PR_SET_DUMPABLE)")


def get_io_priority(pid: int = 0) -> tuple[int, int]:
    """The I/O class and level of a process; class 0 means derived from its nice value. Source: ioprio_get(2)."""
    number = _IOPRIO_GET.get(os.uname().machine, 31)
    value = int(_LIBC.syscall(ctypes.c_long(number), ctypes.c_long(_IOPRIO_WHO_PROCESS), ctypes.c_long(pid)))
    if value < 0:
        raise _fail("ioprio_get")
    return value >> _IOPRIO_CLASS_SHIFT, value & ((1 << _IOPRIO_CLASS_SHIFT) - 1)


def list_open_files(pid: int) -> list[str]:
    """Where the descriptors of a process lead; one that it closes while we look is left out."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found
