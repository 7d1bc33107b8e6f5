"""What a script with the training library looks like from outside: ``python -I -S library.py VERB [ARGUMENT...]``.

Only the files of the contract are written (docs/run-directory.md): heartbeat, stop record, commit records, and the
request is removed. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import NoReturn

HEARTBEAT = os.environ.get("HOLDFAST_HEARTBEAT", "")
REQUEST = os.environ.get("HOLDFAST_CHECKPOINT_REQUEST", "")
CHECKPOINTS = os.environ.get("HOLDFAST_CHECKPOINT_DIR", "")
STEP_S = 0.02


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def write(path: str, values: dict[str, object]) -> None:
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(values, file)
    os.rename(f"{path}.new", path)


def beat(step: int, durable: int | None) -> None:
    write(HEARTBEAT, {"step": step, "phase": "train", "time": time.time(), "last_durable_step": durable})


def save(step: int) -> None:
    """A directory with a commit record, as the library's format has it."""
    os.mkdir(f"{CHECKPOINTS}/step-{step}")
    write(f"{CHECKPOINTS}/step-{step}/checkpoint.json", {"format": "holdfast-checkpoint", "step": step})


def train(how: str = "all", delay: str = "0") -> NoReturn:
    """Steps for ever; a request is taken up at a step boundary and answered after `delay` steps.

    `how`: ``all`` answers, ``heartbeat`` tells of the step only there, ``record`` has no heartbeat and only writes the
    commit record, ``deaf`` never looks, ``drops`` removes the request and saves nothing, ``stands`` stays at step 5,
    which it has saved.
    """
    durable: int | None = None
    due: list[int] = []
    for number in range(1, 1_000_000):
        step = min(number, 5) if how == "stands" else number
        if number == 6:
            say("ready")
        if how != "deaf" and os.path.exists(REQUEST):
            with open(REQUEST, encoding="utf-8") as file:
                say(f"asked {json.load(file)['reason']}")
            os.unlink(REQUEST)
            due.append(step + int(delay))
        if how == "stands":
            due.clear()
            durable = step
        if due and step >= due[0] and how != "drops":
            due.clear()
            durable = step
            if how != "heartbeat":
                save(step)
            say(f"saved {step}")
        if how != "record":
            beat(step, durable)
        time.sleep(STEP_S)
    os._exit(9)


def leave(code: str, record: str, *extra: str) -> NoReturn:
    """On TERM, or at once with ``now``, write this stop record and leave with a code."""

    def go(*_: object) -> NoReturn:
        with open(os.path.join(os.path.dirname(HEARTBEAT), "stop.json"), "w", encoding="utf-8") as file:
            file.write(record)
        if code.startswith("-"):
            os.kill(os.getpid(), -int(code))
        os._exit(int(code))

    if "now" in extra:
        go()
    signal.signal(signal.SIGTERM, go)
    say("ready")
    while True:
        signal.pause()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
