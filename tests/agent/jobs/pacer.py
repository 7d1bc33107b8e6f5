"""A training that paces its steps as told, then does something else. Standard library, and ours for the stacks.

``pacer.py [--stacks] WORD...``; each WORD is ``steps:N:SECONDS``, ``phase:NAME``, ``hang`` (on a lock, for ever),
``wait:PATH`` (until a file is there), ``fill:PATH`` (10 MiB in a second) or ``litter:PATH`` (ten empty files in a
second), either until the disk is full or ``PATH/enough`` is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time


def beat(step: int, phase: str) -> None:
    path = os.environ["HOLDFAST_HEARTBEAT"]
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump({"step": step, "phase": phase, "time": time.time()}, file)
    os.rename(f"{path}.new", path)


def hang_on_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def fill(path: str, size: int, every_s: float) -> None:
    number = 0
    while not os.path.exists(f"{path}/enough"):
        number += 1
        with open(f"{path}/{number}", "wb") as file:
            file.write(bytes(size))
        time.sleep(every_s)


def main(words: list[str]) -> None:
    step, phase = 0, "train"
    if words[:1] == ["--stacks"]:
        words = words[1:]
        from holdfast.training.reporting import stacks

        assert stacks.install(f"{os.path.dirname(os.environ['HOLDFAST_HEARTBEAT'])}/stacks.txt") is not None
    for word in words:
        kind, _, rest = word.partition(":")
        if kind == "steps":
            count, _, seconds = rest.partition(":")
            for _ in range(int(count)):
                time.sleep(float(seconds))
                step += 1
                beat(step, phase)
        elif kind == "phase":
            phase = rest
            beat(step, phase)
        elif kind == "wait":
            while not os.path.exists(rest):
                time.sleep(0.005)
        elif kind == "hang":
            hang_on_a_lock()
        elif kind in ("fill", "litter"):
            fill(rest, 512 * 1024 if kind == "fill" else 0, 0.05 if kind == "fill" else 0.1)


main(sys.argv[1:])
