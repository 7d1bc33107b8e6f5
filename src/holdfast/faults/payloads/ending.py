"""Payloads that end, one way or another."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import sys
import termios
import time
from collections.abc import Callable

from .common import LONGEST_S, beat, choose, later_steps, mark, say_ready, tell, train, wait_for_act

VRAM_WORDS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.12 GiB is free. Process 4242 has 41.02 GiB memory in use. Including non-PyTorch memory, this process "
    "has 37.00 GiB memory in use. Of the allocated memory 35.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved "
    "by PyTorch but unallocated."
)
NO_IMAGE_WORDS = (
    "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
TRACKER_WORDS = (
    "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec. Please try increasing the timeout"
)
MISLEADING = (
    "mean squared Error 0.1",
    "grad nan_to_num applied 0 times, lossinfo 0.3",
    "auto batch size: tried 64, out of memory, using 32 instead",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "will retry up to 3 times when the connection is refused",
    "Killed 0 stale workers, 0 exited unexpectedly",
)
ECC_WORDS = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LOST_WORDS = "RuntimeError: CUDA error: unspecified launch failure"


def key_error() -> None:
    """A bug."""
    train()
    settings: dict[str, float] = {"learning_rate": 0.1}
    tell(str(settings["lr"]))


def import_error() -> None:
    """A package that is not installed."""
    __import__("holdfast_fault_package_that_is_not_there")


def segfault() -> None:
    """A read at address zero, in native code."""
    train()
    ctypes.string_at(0)


def say(words: str) -> None:
    """Words as a framework prints them, at the end of a traceback, and exit code 1."""
    train()
    frame = '  File "train.py", line 12, in <module>\n    loss = step(batch)\n'
    sys.stderr.write(f"Traceback (most recent call last):\n{frame}{words}\n")
    sys.exit(1)


def say_of_card(words: str) -> None:
    """The same, once the card has its trouble."""
    train()
    say_ready()
    wait_for_act()
    say(words)


def tracker_blip() -> None:
    """The tracker does not answer at the start: before the first step."""
    frame = '  File "train.py", line 3, in <module>\n    wandb.init(project="fault")\n'
    sys.stderr.write(f"Traceback (most recent call last):\n{frame}{TRACKER_WORDS}\n")
    sys.exit(1)


def file_limit() -> None:
    """More files open than the limit allows."""
    train()
    held = []
    # Descriptors, not shells: nothing is left for a buffer to hide.
    for _ in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0] + 1):
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            # Room for the words to the guard.
            os.close(held.pop())
            mark(errno.errorcode.get(error.errno or 0, "none"))
            raise


def hang_up() -> None:
    """Its terminal goes: the kernel sends SIGHUP to the session's leader (tty(4), credentials(7))."""
    train()
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    mark("terminal")
    os.close(master)
    time.sleep(LONGEST_S)


def wait_for_death() -> None:
    """Trains until somebody ends it."""
    train()
    mark("ready")
    say_ready()
    for step in later_steps():
        time.sleep(0.1)
        beat(step, phase="train", loss=0.1)


def nan() -> None:
    """The loss is not a number any more, and the script gives up."""
    train()
    for step in range(10, 20):
        time.sleep(0.02)
        tell(f"step {step} loss nan")
        beat(step, phase="train", loss=float("nan"), nonfinite=step - 9)
    mark("nan")
    raise SystemExit("loss is nan for 10 steps: giving up")


def fast_finish() -> None:
    """Nothing to do, and exit code 0."""
    tell("no samples found, done")


def abort() -> None:
    """Native code gives up."""
    train()
    os.abort()


def misleading_words() -> None:
    """A bug, after many words that look like other failures and are none."""
    train()
    for line in MISLEADING:
        tell(line)
    key_error()


def no_result() -> None:
    """Exit code 0, and the declared result is not there."""
    train()


def finish() -> None:
    """A job that works."""
    train()
    with open(f"{os.environ['HOLDFAST_ARTIFACT_DIR']}/result.json", "w", encoding="utf-8") as file:
        json.dump({"accuracy": 0.9}, file)


CHOICES: dict[str, Callable[[], None]] = {
    "key-error": key_error,
    "import-error": import_error,
    "segfault": segfault,
    "tracker-blip": tracker_blip,
    "file-limit": file_limit,
    "hang-up": hang_up,
    "wait-for-death": wait_for_death,
    "nan": nan,
    "fast-finish": fast_finish,
    "finish": finish,
    "abort": abort,
    "misleading-words": misleading_words,
    "result-missing": no_result,
    "vram-oom": lambda: say(VRAM_WORDS),
    "no-kernel-image": lambda: say(NO_IMAGE_WORDS),
    "ecc": lambda: say_of_card(ECC_WORDS),
    "lost": lambda: say_of_card(LOST_WORDS),
}

if __name__ == "__main__":
    CHOICES[choose()]()
