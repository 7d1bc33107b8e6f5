"""What payloads share: words to the guard, and heartbeats as the training library writes them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Iterator

LOOK_S = 0.02
LONGEST_S = 600.0
"""No payload lasts longer, whatever became of its guard."""
FIRST_STEPS = 10


def box() -> str:
    """The sandbox."""
    return os.environ["HOLDFAST_FAULT"]


def disk() -> str:
    """Where the stage has mounted the fault's disk."""
    return os.environ["HOLDFAST_FAULT_DISK"]


def mark(word: str) -> None:
    """Tell the guard that this was seen."""
    with open(f"{box()}/marks", "a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def say_ready() -> None:
    """Let the guard act."""
    with open(f"{box()}/ready", "w", encoding="utf-8"):
        pass


def wait_for_act() -> None:
    """Until the guard has acted."""
    end = time.monotonic() + LONGEST_S
    while not os.path.exists(f"{box()}/acted") and time.monotonic() < end:
        time.sleep(LOOK_S)


@contextlib.contextmanager
def told_errno() -> Iterator[None]:
    """Tell the guard which error a system call gave, and let it go on as the job's own."""
    try:
        yield
    except OSError as error:
        mark(errno.errorcode.get(error.errno or 0, "none"))
        raise


def beat(step: int, *, phase: str | None = None, loss: float | None = None, nonfinite: int = 0) -> None:
    """Write the heartbeat (docs/run-directory.md)."""
    path = os.environ.get("HOLDFAST_HEARTBEAT")
    if path is None:
        return
    record: dict[str, object] = {"schema": 1, "step": step, "epoch": 0, "phase": phase}
    if loss is not None:
        record["loss"] = loss
    record.update(time=round(time.time(), 3), nonfinite=nonfinite)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(f"{path}.new", path)


def train(steps: int = FIRST_STEPS, pause_s: float = 0.02) -> None:
    """A few healthy steps, so that there was progress before the trouble."""
    for step in range(steps):
        time.sleep(pause_s)
        beat(step, phase="train", loss=1.0 / (step + 1))
        tell(f"step {step} loss {1.0 / (step + 1):.4f}")


def later_steps() -> Iterator[int]:
    """The numbers of further steps, for a while."""
    end = time.monotonic() + LONGEST_S
    step = FIRST_STEPS
    while time.monotonic() < end:
        step += 1
        yield step


def tell(text: str) -> None:
    """One line of output, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def choose() -> str:
    """Which of a module's payloads to run: its first argument."""
    return sys.argv[1]
