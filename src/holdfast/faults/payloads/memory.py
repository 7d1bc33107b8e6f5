"""Needs more memory than its group has."""

from __future__ import annotations

import os
import signal
import sys
import time

from .common import LONGEST_S, choose, mark, train

STEP_BYTES = 4 << 20
FAR_TOO_MUCH = 1 << 30
WORKERS = 2


def grow(least_badness: int = 0) -> None:
    """Take memory and touch it, until somebody ends it."""
    if least_badness:
        # So that the kernel chooses this process. To raise it needs no privilege: proc_pid_oom_score_adj(5).
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(least_badness))
    held = []
    for _ in range(FAR_TOO_MUCH // STEP_BYTES):
        held.append(b"\1" * STEP_BYTES)
        time.sleep(0.001)


def main_process() -> None:
    """The main process grows, with workers beside it."""
    train()
    for _ in range(WORKERS):
        if os.fork() == 0:
            time.sleep(LONGEST_S)
            os._exit(0)
    grow()


def worker() -> None:
    """A loader's worker grows; the main process outlives it and ends with an error."""
    train()
    child = os.fork()
    if child == 0:
        grow(1000)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        mark("worker-killed")
    raise RuntimeError(f"DataLoader worker (pid(s) {child}) exited unexpectedly")


def neighbour() -> None:
    """Not of the run: grows once it has been put into a group of its own (the end of its input says so)."""
    sys.stdin.read()
    grow()


if __name__ == "__main__":
    {"main": main_process, "worker": worker, "neighbour": neighbour}[choose()]()
