"""A small trainer with good manners: ``python -I -S trainer.py VERB [ARGUMENT...]``. Standard library only.

It saves at step boundaries, never inside a handler: a checkpoint is a first line with a length, then so many bytes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import NoReturn

CHECKPOINTS = os.environ.get("HOLDFAST_CHECKPOINT_DIR", "")
REQUEST = os.environ.get("HOLDFAST_CHECKPOINT_REQUEST", "")
CHUNKS, CHUNK, PAUSE_S = 30, 4096, 0.05
MIB = 1024**2


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def save(name: str = "last") -> None:
    """Slowly, in place under a temporary name, renamed when whole."""
    path = f"{CHECKPOINTS}/{name}"
    say("save begins")
    with open(f"{path}.partial", "wb", buffering=0) as file:
        file.write(b"%d\n" % (CHUNKS * CHUNK))
        for _ in range(CHUNKS):
            file.write(b"w" * CHUNK)
            time.sleep(PAUSE_S)
    os.rename(f"{path}.partial", path)
    say("save ends")


def flag_only(where: str) -> NoReturn:
    """The handler sets a flag; the loop looks at it at each step boundary, saves there, and leaves with 143.

    ``step``: long steps, no other saves. ``save``: every step ends with a save, so a stop finds one under way.
    """
    wanted: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: wanted.append(number))
    say("ready")
    while True:
        until = time.monotonic() + (0.5 if where == "step" else 0.01)
        while time.monotonic() < until:
            time.sleep(0.01)
        if where == "save" or wanted:
            save()
        if wanted:
            say("leaves at a step boundary")
            os._exit(143)


def fill(first_mib: str, most_mib: str, pause_s: str) -> NoReturn:
    """Take memory at once, then a MiB at a time; on a request to save, save, remove the request, go on taking."""
    signal.signal(signal.SIGTERM, lambda *_: say("a handler ran"))
    held = [b"\1" * (int(first_mib) * MIB)]
    say("ready")
    while True:
        if len(held) <= int(most_mib) - int(first_mib):
            held.append(b"\1" * MIB)
        time.sleep(float(pause_s))
        if os.path.exists(REQUEST):
            save("asked")
            os.unlink(REQUEST)


def watch_child(seconds: str) -> None:
    """A busy child for so long; says how often it was stopped and continued while it ran."""
    child = os.fork()
    if child == 0:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            pass
        os._exit(0)
    say("ready")
    stops = 0
    while True:
        _, status = os.waitpid(child, os.WUNTRACED | os.WCONTINUED)
        if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            break
        stops += 1
    say(f"stopped or continued {stops} times")


def install_quietly(tool: str) -> None:
    """Run an installer that no word of the job's own command shows."""
    child = os.spawnv(os.P_NOWAIT, tool, ["pip", "install", "torch"])
    say("ready")
    os.waitpid(child, 0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
