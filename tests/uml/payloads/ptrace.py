"""Who may attach under Yama: a stranger of the same account, to a process that allows it and to one that does not."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time

from holdfast.host.process import libc

SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
NOBODY = 65534
PTRACE_SEIZE = 0x4206


def start_sleeper(allowed: bool) -> int:
    """A process of nobody's that has exec'd since it said who may attach."""
    pid = os.fork()
    if pid == 0:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        if allowed:
            libc.allow_ptrace()
        os.execv("/bin/sleep", ["sleep", "600"])
    while os.path.basename(os.readlink(f"/proc/{pid}/exe")) not in ("sleep", "coreutils"):
        time.sleep(0.01)
    return pid


def attach(target: int) -> bool:
    """Whether a sibling of the same account gets in."""
    pid = os.fork()
    if pid == 0:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        call = ctypes.CDLL(None, use_errno=True).ptrace
        call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        call.restype = ctypes.c_long
        os._exit(0 if call(PTRACE_SEIZE, target, None, None) == 0 else ctypes.get_errno())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


found: dict[str, object] = {}
for scope in ("0", "1", "2"):
    with open(SCOPE, "w", encoding="ascii") as file:
        file.write(scope)
    for allowed in (False, True):
        sleeper = start_sleeper(allowed)
        found[f"scope {scope}, {'allowed' if allowed else 'not'}"] = attach(sleeper)
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)
print(json.dumps(found))
