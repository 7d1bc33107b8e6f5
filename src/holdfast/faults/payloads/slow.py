"""Payloads that are slow, or work in a way that looks like a hang."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

from .common import beat, choose, later_steps, mark, say_ready, tell, train

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

THREADS = 16


def buffered() -> None:
    """Prints into a large buffer, and has no heartbeat: the log stays empty while the work goes on."""
    mark("buffering")
    with open(1, "w", buffering=1 << 20, encoding="utf-8", closefd=False) as out:
        for step in later_steps():
            time.sleep(0.05)
            out.write(f"step {step} loss 0.1\n")


def thread_storm() -> None:
    """Many more runnable threads than cores."""
    train()
    for _ in range(THREADS - 1):
        if os.fork() == 0:
            _spin()
    mark("storm")
    for step in later_steps():
        _work(0.05)
        beat(step, phase="train", loss=0.1)


def starved_loader() -> None:
    """The training waits for batches that one busy worker cannot make fast enough."""
    train()
    queue: Queue[Any] = multiprocessing.get_context("fork").Queue(maxsize=2)
    if os.fork() == 0:
        for number in later_steps():
            _work(0.8)
            queue.put(number)
    mark("loading")
    for step in later_steps():
        queue.get()
        beat(step, phase="train", loss=0.1)
        tell(f"step {step} loss 0.1")


def slow() -> None:
    """Healthy, two seconds a step."""
    train()
    mark("slow")
    for step in later_steps():
        # Little of the CPU: a control is to be well on a busy box too.
        time.sleep(1.9)
        _work(0.05)
        beat(step, phase="train", loss=0.1)
        tell(f"step {step} loss 0.1")


def bursty() -> None:
    """Healthy: many steps at once, then a pause."""
    train()
    mark("bursty")
    for step in later_steps():
        _work(0.01)
        beat(step, phase="train", loss=0.1)
        tell(f"step {step} loss 0.1")
        if step % 20 == 0:
            time.sleep(2.5)


def working() -> None:
    """Healthy work on the CPU, which others want too."""
    train()
    say_ready()
    for step in later_steps():
        _work(0.02)
        beat(step, phase="train", loss=0.1)


def starting() -> None:
    """Healthy, before its first step: compiles."""
    beat(0, phase="compile")
    mark("compiling")
    for _ in later_steps():
        _work(0.05)
        time.sleep(0.2)


def evaluating() -> None:
    """Healthy, in an evaluation that takes long and has no steps."""
    train()
    beat(10, phase="eval", loss=0.1)
    mark("evaluating")
    for _ in later_steps():
        _work(0.05)
        time.sleep(0.2)


def _spin() -> None:
    for _ in later_steps():
        _work(1.0)
    os._exit(0)


def _work(seconds: float) -> None:
    """Use a core for so long (CPU time of this thread)."""
    end = time.thread_time() + seconds
    number = 0
    while time.thread_time() < end:
        for _ in range(1000):
            number = (number * 1103515245 + 12345) & 0x7FFFFFFF


CHOICES = {
    "noisy-neighbour": working,
    "neighbour": _spin,
    "starting": starting,
    "evaluating": evaluating,
    "buffered": buffered,
    "thread-storm": thread_storm,
    "starved-loader": starved_loader,
    "slow": slow,
    "bursty": bursty,
}

if __name__ == "__main__":
    CHOICES[choose()]()
