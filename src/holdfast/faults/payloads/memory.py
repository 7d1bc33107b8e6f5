"""Payloads that need more memory than their group has."""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time

from .common import LONGEST_S, beat, box, choose, later_steps, mark, train

STEP_BYTES = 4 << 20
FAR_TOO_MUCH = 1 << 30
WORKERS = 2
DATA_BYTES = 512 << 20
PAGES_A_STEP = 200


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


def thrashing() -> None:
    """A mapped data set that does not fit: each look at it brings back what the last one pushed out."""
    train()
    path = f"{box()}/data.bin"
    with open(path, "wb") as file:
        file.writelines(os.urandom(1 << 10) * (STEP_BYTES >> 10) for _ in range(DATA_BYTES // STEP_BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    with mmap.mmap(descriptor, DATA_BYTES, prot=mmap.PROT_READ) as area:
        # Without read-ahead, as for samples drawn at random.
        area.madvise(mmap.MADV_RANDOM)
        mark("thrashing")
        total = 0
        for step in later_steps():
            for _ in range(PAGES_A_STEP):
                total += area[random.randrange(DATA_BYTES)]  # noqa: S311 - no secret
            beat(step, phase="train", loss=0.1)


def neighbour() -> None:
    """Not of the run: grows once it has been put into a group of its own (the end of its input says so)."""
    sys.stdin.read()
    grow()


if __name__ == "__main__":
    {"main": main_process, "worker": worker, "neighbour": neighbour, "thrashing": thrashing}[choose()]()
