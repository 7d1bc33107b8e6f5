"""Signal numbers of Linux (signal(7), x86 and ARM) with what usually sends them."""

from __future__ import annotations

SIGNALS = {
    1: ("SIGHUP", "its terminal or session was closed, or somebody sent it"),
    2: ("SIGINT", "somebody interrupted it"),
    3: ("SIGQUIT", "somebody sent it from a keyboard"),
    4: ("SIGILL", "an instruction that this processor does not have: a binary built for another one"),
    5: ("SIGTRAP", "a debugger's stop without a debugger"),
    6: ("SIGABRT", "the program ended itself after an inner check failed (abort)"),
    7: ("SIGBUS", "memory behind a mapping was not there: /dev/shm is full, or a mapped file was cut"),
    8: ("SIGFPE", "an integer division by zero"),
    9: ("SIGKILL", "killed without a chance to react: out of memory, an administrator, or a person"),
    11: ("SIGSEGV", "an access to memory that is not its own: a bug in native code, or incompatible libraries"),
    13: ("SIGPIPE", "it wrote to a pipe that nobody reads"),
    15: ("SIGTERM", "it was asked to end"),
    24: ("SIGXCPU", "a CPU-time limit was reached (ulimit -t)"),
    25: ("SIGXFSZ", "a file-size limit was reached (ulimit -f)"),
    31: ("SIGSYS", "a system call that a sandbox forbids"),
}
HIGHEST = 31
"""The last signal that ends programs; beyond are those for real time, and codes that programs choose themselves."""


def name_signal(number: int) -> str:
    """``SIGKILL (9)``; a number without a name stays a number."""
    known = SIGNALS.get(number)
    return f"signal {number}" if known is None else f"{known[0]} ({number})"


def describe_signal(number: int) -> str:
    """The name and what usually sends it."""
    known = SIGNALS.get(number)
    return f"signal {number}: see signal(7)" if known is None else f"{known[0]}: {known[1]}"


def find_signal(code: int | None, signal: int | None) -> int | None:
    """The signal that ended a job: the kernel's word, or a shell's way to say it (128 + number)."""
    if signal is not None:
        return signal
    if code is not None and 128 < code <= 128 + HIGHEST:
        return code - 128
    return None
