"""The stacks of a training that hangs, written by itself when it is asked by a private signal (LIB-15).

Nobody needs ptrace, root or a running interpreter loop: `faulthandler` writes the Python stacks of all threads from the
signal's C handler, also while a C call holds the interpreter's lock, and the process goes on. At most 100 threads and
100 frames of each are written. System calls that were interrupted are restarted (SA_RESTART); those that the kernel
never restarts (poll, epoll_wait, nanosleep: signal(7)) return EINTR once, as they do for any signal.

**To ask**: read ``stacks.json``; check that this very process lives (`pid`, `start_ticks`, `boot_id`, and the same PID
namespace) and that it handles the signal *now* (bit of `SigCgt` in its /proc status: after an exec the handler is gone
and the signal would kill it); note the size of ``stacks.txt``; send; read what was added. A process that has written no
``stacks.json`` is never sent this signal.

**Which signal**: a real-time one, because SIGUSR1 and SIGUSR2 belong to schedulers and scripts. glibc and musl keep
those below SIGRTMIN for themselves (nptl(7)); systemd, as PID 1, gives meanings to +0 to +7 and +13 to +29, of which
container engines send +3 to stop it (systemd(1)); CPython and torch use standard signals only. We take SIGRTMIN+11, or
another one between +8 and +12: one that has its default action and is not blocked. What is handled, ignored or blocked
already is somebody else's.

**SIGQUIT** (Ctrl and the backslash at a terminal) is a wish for stacks too, where it would end the process: they go to
the same file, or to standard error where there is none, and the training goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
from collections.abc import Iterator

from holdfast.host.files import files

PREFERRED = (11, 12, 10, 9, 8)
"""Offsets from SIGRTMIN, in the order in which they are tried."""

_installed: _Installed | None = None
_answers_quit = False


class _Installed:
    """What `install` has set up in this process."""

    def __init__(self, number: int, descriptor: int, path: str) -> None:
        self.number, self.descriptor, self.path, self.pid = number, descriptor, path, os.getpid()


def record_path(path: str) -> str:
    """Where the record beside the stacks file `path` is: ``stacks.json`` for ``stacks.txt``."""
    return f"{os.path.splitext(path)[0]}.json"


def handles(pid: int | str, number: int) -> bool | None:
    """Whether the process has a handler for the signal now; None when that cannot be read."""
    for mask, value in _read_masks(pid):
        if mask == "SigCgt":
            return bool(value >> (number - 1) & 1)
    return None


def install(path: str) -> int | None:
    """Let a private signal write the stacks of all threads to `path`, and say so in the record beside it.

    A second call with the same path changes nothing; another path takes the place of the first.

    Returns:
        The signal's number; None when nothing was installed: the file cannot be written, or no signal is free. A record
        that cannot be written leaves the handler in place: then nobody knows of it, and nobody sends the signal.
    """
    global _installed  # noqa: PLW0603 - a process has one disposition of a signal
    if _installed is not None and _installed.pid == os.getpid() and _installed.path == path:
        return _installed.number
    uninstall()
    import faulthandler

    number = _choose_signal()
    if number is None:
        return None
    try:
        descriptor = _open(path)
    except (OSError, ValueError):
        return None
    try:
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError):
        os.close(descriptor)
        return None
    _installed = _Installed(number, descriptor, path)
    try:
        _write_record(number, path)
    except (OSError, ValueError):
        return number
    return number


def answer_quit() -> None:
    """Have SIGQUIT write the stacks of all threads where `install` has them written, else to standard error.

    Nothing is done where the script or its launcher has decided on this signal already.
    """
    global _answers_quit  # noqa: PLW0603 - a process has one disposition of a signal
    import faulthandler

    used = _used_signals()
    if _answers_quit or used is None or used >> (signal.SIGQUIT - 1) & 1:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.register(signal.SIGQUIT, file=_installed.descriptor if _installed else 2, chain=False)
        _answers_quit = True


def uninstall() -> None:
    """Take the record away, then the handlers; the stacks that were written stay."""
    global _installed, _answers_quit  # noqa: PLW0603 - as above
    import faulthandler

    if _answers_quit:
        faulthandler.unregister(signal.SIGQUIT)
        _answers_quit = False
    ours, _installed = _installed, None
    if ours is None:
        return
    if ours.pid == os.getpid():
        # A forked child must not take its parent's record away.
        files.remove_quietly(record_path(ours.path))
    faulthandler.unregister(ours.number)
    os.close(ours.descriptor)


def _choose_signal() -> int | None:
    """A signal that nobody in this process uses; None when there is none, or when that cannot be read."""
    used = _used_signals()
    if used is None:
        return None
    for offset in PREFERRED:
        number = signal.SIGRTMIN + offset
        if number <= signal.SIGRTMAX and not used >> (number - 1) & 1:
            return int(number)
    return None


def _used_signals() -> int | None:
    """The signals that this process handles, ignores or blocks, bit n - 1 for signal n; None if that is unreadable."""
    masks = dict(_read_masks("self"))
    if not {"SigBlk", "SigIgn", "SigCgt"} <= masks.keys():
        return None
    return masks["SigBlk"] | masks["SigIgn"] | masks["SigCgt"]


def _read_masks(pid: int | str) -> Iterator[tuple[str, int]]:
    """The signal masks of a process. Source: proc_pid_status(5): hexadecimal, bit n - 1 for signal n."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name in ("SigBlk", "SigIgn", "SigCgt"):
            yield name, int(value.strip(), 16)


def _open(path: str) -> int:
    """Open the stacks file for appending; never waits, never follows a link.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        if descriptor > 2:
            return descriptor
        # A daemon without standard streams: whatever opens "standard error" next must not get our file.

        higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(descriptor)
        return higher
    except OSError:
        os.close(descriptor)
        raise


def _write_record(number: int, path: str) -> None:
    """Say who handles which signal, so that nobody else is sent it.

    Raises:
        OSError: it cannot be written, or this process cannot be told from a later one with its number.
    """
    with open("/proc/self/stat", "rb") as file:
        start_ticks = int(file.read().rpartition(b")")[2].split()[19])
    record = {
        "schema": 1,
        "signal": number,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": files.read_text_or_none("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
        "stacks": os.path.basename(path),
    }
    files.commit(record_path(path), json.dumps(record).encode() + b"\n", durable=False)
