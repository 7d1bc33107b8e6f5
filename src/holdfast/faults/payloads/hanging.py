"""Payloads that live and stand still, or only seem to."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import socket
import threading
import time

from .common import LONGEST_S, beat, choose, later_steps, mark, say_ready, tell, train

SYS_EXIT = {"x86_64": 60, "aarch64": 93}
"""exit(2) of one thread, not exit_group(2)."""


def busy_loop() -> None:
    """Spins, with no system call and no step."""
    train()
    mark("spinning")
    number, end = 0, time.monotonic() + LONGEST_S
    # The clock is read without a system call (vdso(7)).
    while time.monotonic() < end:
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF


def regex_spin() -> None:
    """One call into C that takes for ever and holds the interpreter's lock: a pattern that backtracks."""
    train()
    mark("matching")
    re.match(r"(a+)+$", "a" * 200 + "b")


def deadlock() -> None:
    """Two threads and two locks, in opposite order; the main thread joins them."""
    train()
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            with other:
                mark("never")

    threads = [threading.Thread(target=take, args=pair) for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    mark("locked")
    for thread in threads:
        thread.join()


def stalled() -> None:
    """The same, after steps that are slow enough for the supervisor to see more than one of them."""
    train(pause_s=0.5)
    deadlock()


def pipe_wait() -> None:
    """Waits for an answer of a worker that never gives one."""
    train()
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        time.sleep(LONGEST_S)
        os._exit(0)
    os.close(write_end)
    mark("waiting")
    os.read(read_end, 1)


def network_wait() -> None:
    """Waits for a peer that has accepted and says nothing."""
    train()
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        peer, _ = listener.accept()
        mark("accepted")
        time.sleep(LONGEST_S)
        peer.close()
        os._exit(0)
    client = socket.create_connection(listener.getsockname())
    listener.close()
    mark("connected")
    client.recv(1)


def exit_hang() -> None:
    """All is done and written, and the interpreter waits for a thread that does not end."""
    # The library itself, as in a real script: it says that the training is finished.
    from holdfast import training  # lazy: only this payload is a training

    with training.run(every=None) as run:
        for _ in run.steps(10):
            run.log(loss=0.1)
    with open(f"{os.environ['HOLDFAST_ARTIFACT_DIR']}/result.json", "w", encoding="utf-8") as file:
        json.dump({"accuracy": 0.9}, file)
    threading.Thread(target=threading.Event().wait).start()
    tell("training finished")
    mark("finished")


def zombie_leader() -> None:
    """The main thread has ended, so the process shows as a zombie; a thread trains on."""
    train()
    threading.Thread(target=go_on_training, args=(0.2,)).start()
    mark("left")
    # Called through CDLL, so the interpreter's lock is not held when the thread ends.
    ctypes.CDLL(None).syscall(ctypes.c_long(SYS_EXIT[platform.machine()]), ctypes.c_long(0))


def stopped() -> None:
    """Trains, and says when it may be stopped."""
    train()
    say_ready()
    go_on_training(0.1)


def go_on_training(pause_s: float) -> None:
    """Healthy steps, for a while."""
    for step in later_steps():
        time.sleep(pause_s)
        beat(step, phase="train", loss=0.1)
        tell(f"step {step} loss 0.1")


CHOICES = {
    "busy-loop": busy_loop,
    "deadlock": deadlock,
    "stalled": stalled,
    "regex-spin": regex_spin,
    "pipe-wait": pipe_wait,
    "network-wait": network_wait,
    "exit-hang": exit_hang,
    "zombie-leader": zombie_leader,
    "stopped": stopped,
}

if __name__ == "__main__":
    CHOICES[choose()]()
