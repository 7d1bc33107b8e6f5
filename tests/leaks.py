"""What a test left behind: descriptors, threads, children, and processes that went their own way.

Processes are found in two ways. Children are asked of the kernel. Anything else, such as a supervisor that detached
itself or a job that double-forked, is found by the test's own directory: the isolated environment puts HOME and the
run directories under it, so whoever inherited that environment carries the path in /proc/PID/environ. The path is
unique to one test of one session, so only what this test started can match. A process that was given an environment
without it is not found here: scripts/run_tests.py names it at the end of the run.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from dataclasses import dataclass

from holdfast.host.process.offload import reap_left
from tests.waiting import LIMIT_S, wait_until

# Time that honest work gets to finish on a loaded machine before it counts as left behind: what follows a push loads a
# hundred modules for the first time.
SETTLE_S = LIMIT_S / 6


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds at one moment."""

    descriptors: dict[int, str]
    threads: frozenset[int]
    children: frozenset[int]


def read_held() -> Held:
    """Look at this process's own descriptors, threads and children."""
    return Held(read_descriptors(os.getpid()), frozenset(t.ident or 0 for t in threading.enumerate()), list_children())


def read_descriptors(pid: int) -> dict[int, str]:
    """The open descriptors of a process and what each leads to, without those that are closed while this looks."""
    held = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            held[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return held


def list_children() -> frozenset[int]:
    pids: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as file:
            pids.update(int(word) for word in file.read().split())
    return frozenset(pids)


def find_processes(mark: str) -> dict[int, str]:
    """Processes other than this one whose environment contains `mark`, with their command lines."""
    wanted = os.fsencode(mark)
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = wanted in file.read()
            if marked:
                found[int(name)] = read_command(int(name))
    return found


def read_command(pid: int) -> str:
    """The command line of a process, for messages."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return " ".join(file.read().replace(b"\0", b" ").decode(errors="replace").split()) or "(a zombie)"
    except OSError:
        return "(gone)"


def find_leaks(before: Held, mark: str, *, detached: bool = True) -> list[str]:
    """Wait a while for what is still on its way out, then name what stays; the processes among it are ended.

    Without `detached`, only what this process holds is looked at, its children included.
    """

    def settled() -> bool:
        # Killed, and on a busy machine not gone before whoever had killed it went on.
        reap_left()
        now = read_held()
        return (
            now.children <= before.children
            and now.threads <= before.threads
            and not _new_descriptors(before, now)
            and not (detached and find_processes(mark))
        )

    if settled():
        return []
    gc.collect()
    with contextlib.suppress(AssertionError):
        wait_until(settled, SETTLE_S)
    now = read_held()
    leaks = [f"descriptor {fd} -> {target}" for fd, target in sorted(_new_descriptors(before, now).items())]
    leaks += [f"thread {t.name}" for t in threading.enumerate() if (t.ident or 0) not in before.threads]
    children = {pid: read_command(pid) for pid in now.children - before.children}
    leaks += [f"child {pid}: {command}" for pid, command in sorted(children.items())]
    strays = {pid: command for pid, command in find_processes(mark).items() if pid not in children}
    leaks += [f"process {pid}: {command}" for pid, command in sorted(strays.items())]
    _end([*children, *strays], mark)
    return leaks


def _new_descriptors(before: Held, now: Held) -> dict[int, str]:
    return {fd: target for fd, target in now.descriptors.items() if before.descriptors.get(fd) != target}


def _end(pids: list[int], mark: str) -> None:
    """End leaked processes, so that one leak is one failure; each is checked again once a pidfd pins it."""
    wanted = os.fsencode(mark)
    for pid in pids:
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # After pidfd_open the number cannot come to mean another process without the signal failing.
                with open(f"/proc/{pid}/environ", "rb") as file:
                    marked = wanted in file.read()
                if marked or pid in list_children():
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
