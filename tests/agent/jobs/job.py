"""Small jobs with bad manners: ``python -I -S job.py VERB [ARGUMENT...]``. Standard library only, quick to start.

A verb that lives on prints ``ready`` once everything it is about is in place; a test waits for that line in the job's
output.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import NoReturn

CHECKPOINTS = os.environ.get("HOLDFAST_CHECKPOINT_DIR", "")
ARTIFACTS = os.environ.get("HOLDFAST_ARTIFACT_DIR", "")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def live() -> NoReturn:
    while True:
        signal.pause()


def ignore_gentle() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def exit_with(code: str) -> None:
    os._exit(int(code))


def die_by(number: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(number) not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(int(number), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), int(number))
    live()


def stay() -> None:
    say("ready")
    live()


def ignore_term() -> None:
    ignore_gentle()
    say("ready")
    live()


def leave_on_term(code: str = "0") -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(int(code)))
    say("ready")
    live()


def spawn_kind(kind: str, ready: int) -> None:
    """One descendant of a kind; it writes a byte when in place."""
    if os.fork():
        return
    if kind in ("setsid", "double_fork", "escapee"):
        os.setsid()
    if kind in ("double_fork", "escapee") and os.fork():
        os._exit(0)
    if kind in ("ignore_term", "escapee"):
        ignore_gentle()
    os.write(ready, b".")
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    live()


def tree(*kinds: str) -> None:
    """Descendants of every kind named (``escapee:200`` for many), then stay as their parent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    read_end, write_end = os.pipe()
    wanted = 0
    for word in kinds:
        kind, _, count = word.partition(":")
        for _ in range(int(count or 1)):
            spawn_kind(kind, write_end)
            wanted += 1
    got = 0
    while got < wanted:
        got += len(os.read(read_end, 4096))
    say("ready")
    live()


def leave_child(kind: str = "escapee", code: str = "0") -> None:
    """The leader ends and leaves a descendant behind."""
    read_end, write_end = os.pipe()
    spawn_kind(kind, write_end)
    os.read(read_end, 1)
    say("ready")
    os._exit(int(code))


def zombies(count: str) -> None:
    """Short children that are double-forked and never waited for by us."""
    for _ in range(int(count)):
        if os.fork() == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
    for _ in range(int(count)):
        os.wait()
    say("ready")
    live()


def save_slowly(seconds: str, *, pause_s: float = 0.05) -> None:
    """On TERM a checkpoint grows for so many seconds, then the job leaves with 0."""

    def save(*_: object) -> None:
        end = time.monotonic() + float(seconds)
        with open(f"{CHECKPOINTS}/last.partial", "wb", buffering=0) as file:
            while time.monotonic() < end:
                file.write(b"x" * 4096)
                time.sleep(pause_s)
        os.rename(f"{CHECKPOINTS}/last.partial", f"{CHECKPOINTS}/last")
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    say("ready")
    live()


def child_saves(seconds: str) -> None:
    """The leader leaves at once on TERM; a child of its needs time to save."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

        def save(*_: object) -> None:
            time.sleep(float(seconds))
            with open(f"{CHECKPOINTS}/by-the-child", "w", encoding="ascii") as file:
                file.write("whole\n")
            os._exit(0)

        signal.signal(signal.SIGTERM, save)
        os.write(write_end, b".")
        live()
    os.read(read_end, 1)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    say("ready")
    live()


def flood(size: str, code: str = "0") -> None:
    """So many bytes of numbered lines on standard output, as fast as they are taken."""
    total, number = 0, 0
    while total < int(size):
        lines = b"".join(b"line %09d of a job that talks a lot\n" % (number + i) for i in range(1000))
        number += 1000
        total += len(lines)
        view = memoryview(lines)
        while view:
            view = view[os.write(1, view) :]
    os.write(1, b"the last line\n")
    os._exit(int(code))


def speak_when_told(path: str, size: str) -> None:
    """Wait for a file, then say much, then leave with 7."""
    say("ready")
    while not os.path.exists(path):
        time.sleep(0.005)
    flood(size, "7")


def count_until_told(path: str, code: str) -> None:
    """A numbered line every few milliseconds until a file is there."""
    say("ready")
    number = 0
    while not os.path.exists(path):
        os.write(1, b"line %09d of a job that talks a lot\n" % number)
        number += 1
        time.sleep(0.005)
    os.write(1, b"the last line\n")
    os._exit(int(code))


def leave_when_told(path: str, code: str) -> None:
    say("ready")
    while not os.path.exists(path):
        time.sleep(0.005)
    os._exit(int(code))


def leave_after(seconds: str, code: str) -> None:
    time.sleep(float(seconds))
    os._exit(int(code))


def read_stdin() -> None:
    say(f"stdin {os.readlink('/proc/self/fd/0')} {sys.stdin.buffer.read()!r} tty={os.isatty(1)}")


def show(*_: str) -> None:
    """What this process is, as JSON on one line."""
    status = open("/proc/self/status", encoding="ascii").read()  # noqa: SIM115 - ends with the process
    facts = {
        "argv": sys.argv[2:],
        "pid": os.getpid(),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "fds": {name: _target(name) for name in os.listdir("/proc/self/fd")},
        "ignored": next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")),
        "blocked": next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")),
        "nice": os.nice(0),
    }
    say(json.dumps(facts))


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def write_artifact(name: str, text: str = "done\n", code: str = "0") -> None:
    with open(f"{ARTIFACTS}/{name}", "w", encoding="utf-8") as file:
        file.write(text)
    os._exit(int(code))


def beat(save_seconds: str) -> None:
    """A heartbeat that says how long a save takes, then stay."""
    path = os.environ["HOLDFAST_HEARTBEAT"]
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump({"step": 1, "time": time.time(), "save_seconds": float(save_seconds), "loss": 0.5}, file)
    os.rename(f"{path}.new", path)
    say("ready")
    live()


def beat_steps(interval_s: str) -> None:
    path = os.environ["HOLDFAST_HEARTBEAT"]
    say("ready")
    for step in range(1, 10_000):
        with open(f"{path}.new", "w", encoding="ascii") as file:
            json.dump({"step": step, "epoch": 1, "phase": "train", "time": time.time(), "loss": 1.0 / step}, file)
        os.rename(f"{path}.new", path)
        time.sleep(float(interval_s))


def hog(size: str) -> None:
    """Take and touch so many bytes of memory."""
    taken = bytearray(int(size))
    for offset in range(0, len(taken), 4096):
        taken[offset] = 1
    say("ready")
    live()


def enter_frozen(freezer: str, code: str) -> None:
    """Join a freezer group of the test's, which freezes it from outside; leave with a code on being told."""
    with open(f"{freezer}/cgroup.procs", "w", encoding="ascii") as file:
        file.write("0\n")
    say("ready")
    leave_when_told(f"{CHECKPOINTS}/leave", code)


def count_handlers() -> None:
    """Say which of USR1, USR2 and QUIT arrive (none should)."""
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        signal.signal(number, lambda got, _: say(f"got signal {got}"))
    stay()


VERBS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == __name__
}

if __name__ == "__main__":
    VERBS[sys.argv[1]](*sys.argv[2:])
