"""A process that behaves in one way, for the diagnosis to look at: ``behaviours.py MODE [DIRECTORY]``.

It writes ``ready`` into DIRECTORY when it behaves so, and a heartbeat there with `beat`. Standard library only.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import termios
import threading
import time

CLONE_VFORK = 0x4000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
DIRECTORY = sys.argv[2]


def ready() -> None:
    with open(f"{DIRECTORY}/ready.tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{DIRECTORY}/ready.tmp", f"{DIRECTORY}/ready")


def die_with(parent: int) -> None:
    """Die with this parent, also when it is dead already: then nobody would say so any more."""
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != parent:
        os._exit(0)


def await_sleep(pid: int) -> None:
    """Until a process waits for something."""
    while True:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return
        time.sleep(0.01)


def beat(step: int, **more: object) -> None:
    path = f"{DIRECTORY}/heartbeat.json"
    with open(f"{path}.tmp", "w") as file:
        json.dump({"schema": 1, "step": step, "phase": "train", "time": time.time(), **more}, file)
    os.rename(f"{path}.tmp", path)


def deadlock() -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        with second:
            both.wait()
            first.acquire()

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        ready()
        second.acquire()


def library_deadlock() -> None:
    """As `deadlock`, in a step of a training whose checkpoints a process of the library's own writes."""
    from holdfast import training

    os.environ["HOLDFAST_HEARTBEAT"] = f"{DIRECTORY}/heartbeat.json"
    with training.run(f"{DIRECTORY}/checkpoints", every=100) as run:
        for step in run.steps(100):
            if step == 3:
                deadlock()


def queue_deadlock() -> None:
    """The main thread waits for ever while a helper only ticks, as a progress bar's monitor does."""
    never = threading.Event()

    def tick() -> None:
        while True:
            time.sleep(2)

    threading.Thread(target=tick, daemon=True).start()
    ready()
    never.wait()


def busy() -> None:
    ready()
    while True:
        pass


def busy_calls() -> None:
    ready()
    while True:
        os.stat("/")


def pipe() -> None:
    reader, _writer = os.pipe()
    ready()
    os.read(reader, 1)


def network() -> None:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
    ready()
    connection.recv(1)


def network_poll() -> None:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
    connection.settimeout(10_000)
    ready()
    connection.recv(1)


def network_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        accepted = server.accept() if "accepted" in sys.argv else None
        ready()
        connection.recv(1)
        del accepted


def fifo() -> None:
    os.mkfifo(f"{DIRECTORY}/batches")
    if "at" in sys.argv:
        at = os.open(DIRECTORY, os.O_RDONLY)
        ready()
        os.open("batches", os.O_WRONLY, dir_fd=at)
    os.chdir(DIRECTORY)
    ready()
    os.open("batches", os.O_RDONLY)


def sleeping() -> None:
    ready()
    while True:
        time.sleep(1000)


def vfork() -> None:
    """A parent in uninterruptible sleep until its child execs, which it never does."""
    library = ctypes.CDLL(None)
    library.prctl(1, 9)
    ready()
    parent = os.getpid()
    child = library.syscall(ctypes.c_long(SYS_CLONE[os.uname().machine]), CLONE_VFORK | 17, 0, 0, 0, 0)
    if child == 0:
        die_with(parent)
        while True:
            time.sleep(1000)


def buffered() -> None:
    ready()
    number = 0
    while True:
        number += 1
        print("loss", number)
        time.sleep(0.05)


def storm() -> None:
    def burn() -> None:
        while True:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)

    for _ in range(15):
        threading.Thread(target=burn, daemon=True).start()
    ready()
    burn()


def slow_step() -> None:
    """A step of half a second of computing: healthy."""
    step = 0
    while True:
        step += 1
        beat(step, steps_per_s=2.0)
        if step == 2:
            ready()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1000)


def long_step() -> None:
    """Steps of eight seconds, half computing, half waiting for something: healthy, slow."""
    step = 0
    while True:
        step += 1
        beat(step, steps_per_s=0.125)
        if step == 1:
            ready()
        end = time.monotonic() + 4
        while time.monotonic() < end:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1000)
        time.sleep(4)


def bursty() -> None:
    """Quick steps, then an evaluation that says so and lasts: healthy."""
    step = 0
    while True:
        for _ in range(20):
            step += 1
            beat(step, steps_per_s=10.0)
            time.sleep(0.1)
        beat(step, phase="eval", steps_per_s=10.0)
        if step == 20:
            ready()
        end = time.monotonic() + 7
        while time.monotonic() < end:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1000)


def slow_reader() -> None:
    """Two workers that wait for a slow source, a main process that waits for them: healthy, starved."""
    parent, pipes = os.getpid(), []
    for _ in range(2):
        reader, writer = os.pipe()
        if os.fork() == 0:
            die_with(parent)
            while True:
                time.sleep(0.7)
                os.write(writer, b"b")
        os.close(writer)
        pipes.append(reader)
    step = 0
    while True:
        os.read(pipes[step % 2], 1)
        step += 1
        beat(step)
        if step == 2:
            ready()


def silent_work() -> None:
    """Computes in threads behind a main thread that waits for them, without any heartbeat: healthy."""

    def burn() -> None:
        for _ in range(40):
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
            time.sleep(0.01)

    ready()
    while True:
        threads = [threading.Thread(target=burn) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def loader() -> None:
    """A main process that waits for two workers, each of which computes its batches: healthy, starved."""
    parent, pipes = os.getpid(), []
    for _ in range(2):
        reader, writer = os.pipe()
        if os.fork() == 0:
            die_with(parent)
            while True:
                hashlib.pbkdf2_hmac("sha256", b"x", b"y", 30_000)
                os.write(writer, b"b")
        os.close(writer)
        pipes.append(reader)
    step = 0
    while True:
        os.read(pipes[step % 2], 1)
        step += 1
        beat(step, steps_per_s=20.0)
        if step == 4:
            ready()


def child() -> None:
    # It asks for its parent's death signal itself: an exec keeps that.
    ends = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
        "os.getppid() == int(sys.argv[1]) and os.execvp('sleep', ['sleep', '1000'])"
    )
    with subprocess.Popen([sys.executable, "-c", ends, str(os.getpid())]) as process:
        ready()
        process.wait()


def unread_child() -> None:
    """Waits for a child that waits for room in a pipe which only its parent could read."""
    writes = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
        "os.getppid() == int(sys.argv[1]) and os.write(1, bytes(1 << 20))"
    )
    command = [sys.executable, "-c", writes, str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        held = array.array("i", [0])
        while held[0] < 1 << 16:
            fcntl.ioctl(process.stdout, termios.FIONREAD, held)
            time.sleep(0.01)
        await_sleep(process.pid)
        ready()
        process.wait()


def unfed_child() -> None:
    """Waits for a child that waits for what only its parent could write."""
    reads = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
        "os.getppid() == int(sys.argv[1]) and (os.write(1, b'x'), os.read(0, 1))"
    )
    command = [sys.executable, "-c", reads, str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        await_sleep(process.pid)
        ready()
        process.wait()


def locked() -> None:
    """Waits for the lock of a file that a child of it has, or it itself."""
    path, (told, tells), parent = f"{DIRECTORY}/state.lock", os.pipe(), os.getpid()
    holds = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if "itself" not in sys.argv and os.fork() == 0:
        die_with(parent)
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
        os.write(tells, b"x")
        time.sleep(1000)
    if "itself" in sys.argv:
        fcntl.flock(holds, fcntl.LOCK_EX)
    else:
        os.read(told, 1)
    ready()
    fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)


def stuck_worker() -> None:
    """The main process reads from a worker that waits for a lock which it holds itself."""
    parent = os.getpid()
    reader, writer = os.pipe()
    if os.fork() == 0:
        die_with(parent)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    ready()
    os.read(reader, 1)
    os.close(writer)


def leaderless() -> None:
    """The main thread ends, another works on: a zombie for whoever reads only the leader."""

    def work() -> None:
        step = 0
        while True:
            step += 1
            beat(step)
            time.sleep(0.05)

    # Native: a Python thread would be waited for by the interpreter.
    library = ctypes.CDLL(None)
    threading.Thread(target=work).start()
    ready()
    library.pthread_exit(None)


def exit_hang() -> None:
    with open(f"{DIRECTORY}/stop.json", "w") as file:
        json.dump({"schema": 1, "why": "finished", "step": 10}, file)
    threading.Thread(target=threading.Event().wait).start()
    ready()


def asked(body: str) -> None:
    """As `body`, with the training library's stack dumps."""
    from holdfast.training.reporting import stacks

    assert stacks.install(f"{DIRECTORY}/stacks.txt") is not None
    globals()[body]()


if __name__ == "__main__":
    mode = sys.argv[1]
    # Dies with whoever started it.
    ctypes.CDLL(None).prctl(1, 9)
    if mode.startswith("asked:"):
        asked(mode.partition(":")[2])
    else:
        globals()[mode]()
