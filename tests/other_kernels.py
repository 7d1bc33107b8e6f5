"""Kernels and Pythons that lack what this one has: for a test, or for whatever is started by this file.

``python tests/other_kernels.py MODE COMMAND ...`` runs a command, and all that it starts, as if on such a box:

| mode | stands for |
|---|---|
| ``pidfd-enosys`` | a kernel before 5.3: the calls for pidfds answer ENOSYS, waitid knows no P_PIDFD |
| ``pidfd-eperm`` | a sandbox that refuses these calls |
| ``flock-enosys``, ``flock-enolck`` | a network file system without locks |
| ``old-headers`` | a Python without the names of these calls (conda, uv); `COMMAND` is its arguments: `make_python` |

The calls are refused by a seccomp filter, which children inherit and nobody can take off again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

# Source: the kernel headers uapi/linux/seccomp.h, uapi/linux/bpf_common.h, uapi/linux/audit.h; x86_64 and the numbers
# that all architectures share.
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_IF, _RETURN = 0x20, 0x15, 0x06
_FLOCK = {"x86_64": 73, "aarch64": 32}
_WAITID = {"x86_64": 247, "aarch64": 95}
_PIDFD_OPEN = 434
_PIDFD_CALLS = (424, _PIDFD_OPEN, 438)
_P_PIDFD = 3
POSIX_NAMES_GONE = """
# Written by tests: this Python was built against headers without pidfds.
import posix as _posix
for _name in ("pidfd_open", "P_PIDFD"):
    if hasattr(_posix, _name):
        delattr(_posix, _name)
del _posix, _name
"""
SIGNAL_NAMES_GONE = """
import _signal
if hasattr(_signal, "pidfd_send_signal"):
    del _signal.pidfd_send_signal
"""
MODES = ("pidfd-enosys", "pidfd-eperm", "flock-enosys", "flock-enolck")


def has_pidfds() -> bool:
    """Whether this kernel, or the box that this file stands in for, has pidfds."""
    descriptor = int(ctypes.CDLL(None).syscall(_PIDFD_OPEN, os.getpid(), 0))
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


def refuse(mode: str) -> None:
    """Have these calls refused to this process and its children, for ever."""
    machine, number = os.uname().machine, getattr(errno, mode.partition("-")[2].upper())
    program = []
    if mode.startswith("flock"):
        program += _refuse_call(_FLOCK[machine], number)
    else:
        for call in _PIDFD_CALLS:
            program += _refuse_call(call, number)
        program += _refuse_argument(_WAITID[machine], _P_PIDFD, errno.EINVAL)
    _install([*program, (_RETURN, 0, 0, _ALLOW)])


def _refuse_call(call: int, number: int) -> list[tuple[int, int, int, int]]:
    return [(_LOAD, 0, 0, 0), (_JUMP_IF, 0, 1, call), (_RETURN, 0, 0, _ERRNO | number)]


def _refuse_argument(call: int, first: int, number: int) -> list[tuple[int, int, int, int]]:
    """Where the first argument is `first` alone. Source: struct seccomp_data (number, architecture, address, ...)."""
    return [
        (_LOAD, 0, 0, 0),
        (_JUMP_IF, 0, 3, call),
        (_LOAD, 0, 0, 16),
        (_JUMP_IF, 0, 1, first),
        (_RETURN, 0, 0, _ERRNO | number),
    ]


def _install(program: list[tuple[int, int, int, int]]) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    libc, long = ctypes.CDLL(None, use_errno=True), ctypes.c_ulong
    filters = Program(len(program), ctypes.addressof(code))
    if os.geteuid() != 0 and libc.prctl(_PR_SET_NO_NEW_PRIVS, long(1), long(0), long(0), long(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if libc.prctl(_PR_SET_SECCOMP, long(_FILTER), ctypes.byref(filters), long(0), long(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def make_python(directory: Path) -> str:
    """This Python without the names of the calls, in all processes that are started with it; its path.

    They are deleted before `os` and `signal` take them over, also in an isolated interpreter: `encodings` comes first.
    """
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    real = Path(os.path.realpath(os.__file__)).parent
    library = directory / "lib" / name
    library.mkdir(parents=True)
    (directory / "bin").mkdir()
    for entry in real.iterdir():
        if entry.name not in ("encodings", "signal.py", "__pycache__"):
            (library / entry.name).symlink_to(entry)
    shutil.copytree(real / "encodings", library / "encodings")
    with open(library / "encodings/__init__.py", "a", encoding="utf-8") as file:
        file.write(POSIX_NAMES_GONE)
    (library / "signal.py").write_text(SIGNAL_NAMES_GONE + (real / "signal.py").read_text())
    shutil.copy(os.path.realpath(sys.executable), directory / "bin" / name)
    return str(directory / "bin" / name)


def main() -> None:
    """See the module's text."""
    mode, command = sys.argv[1], sys.argv[2:]
    if mode == "old-headers":
        directory = tempfile.mkdtemp(prefix="hf-python-")
        python = make_python(Path(directory))
        paths = [os.getcwd(), *(path for path in sys.path if path.endswith("site-packages")), f"{os.getcwd()}/src"]
        environ = {**os.environ, "PYTHONPATH": ":".join(paths)}
        code = subprocess.run([python, *command], env=environ, check=False).returncode
        shutil.rmtree(directory, ignore_errors=True)
        sys.exit(code)
    if mode != "same":
        refuse(mode)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
