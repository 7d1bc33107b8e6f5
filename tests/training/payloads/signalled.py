"""A program that installs `StopSignals` and is then signalled. The first argument names the scene."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from holdfast.host.files import files
from holdfast.training.stopping.budget import ShieldedInit, StopSignals

END_S = float(os.environ["END_S"])
"""What hangs ends after so long."""
at_once = StopSignals(repeat_s={signal.SIGTERM: 0.0, signal.SIGINT: 0.0})
signals = StopSignals()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def wait_for_flag(which: StopSignals = signals) -> None:
    end = time.monotonic() + END_S
    while not which.flag and time.monotonic() < end:
        time.sleep(0.001)


def second(kind: str) -> None:
    """Ends by the second signal only."""
    at_once.install()
    say(ready=os.getpid())
    wait_for_flag(at_once)
    say(flag=at_once.flag)
    try:
        while at_once.flag == signal.SIGUSR1 and not at_once._asked_at:
            time.sleep(0.001)
        say(asked=True)
        time.sleep(END_S)
    except KeyboardInterrupt:
        say(interrupted=True)


def repeated(kind: str) -> None:
    """A launcher's forwarded copy of the signal is the same request."""
    signals.install()
    say(ready=os.getpid())
    wait_for_flag()
    say(flag=signals.flag)
    say(line=sys.stdin.readline())


def commits(directory: str) -> None:
    """Commits files until it is told to end and has noted a signal; it is signalled all the time."""
    tireless = StopSignals(repeat_s={})
    tireless.install()
    say(ready=os.getpid())
    number = noted = 0
    told = False
    os.set_blocking(0, False)
    pipe = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - it is the standard input
    # On a busy machine it may come to work only when all of the signals, and the word to end, are there already.
    while not (told and noted):
        told = told or pipe.read(1) is not None
        files.commit(
            f"{directory}/step.json", json.dumps({"step": number, "body": "x" * 50_000, "end": number}).encode()
        )
        number += 1
        if tireless.flag:
            noted, tireless.flag = noted + 1, 0
    say(commits=number, noted=noted)


def work(connection: Any) -> None:
    while connection.recv() is not None:
        connection.send(os.getpid())


def forked(kind: str) -> None:
    """A forked child must still answer after a TERM to the whole group, and leave when asked."""
    signals.install()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,), daemon=True)
    child.start()
    say(ready=os.getpid(), child=child.pid)
    wait_for_flag()
    ours.send(1)
    answered = ours.poll(END_S) and ours.recv() == child.pid
    if kind == "stop":
        signals.restore()
        child.terminate()
    else:
        ours.send(None)
    child.join(END_S)
    say(answered=answered, exitcode=child.exitcode)


def pool(kind: str) -> None:
    """Leaving a pool terminates its workers and waits for them without a bound."""
    signals.install()
    with multiprocessing.get_context("fork").Pool(2) as workers:
        squares = workers.map(abs, range(4))
    say(squares=squares)


def newborn(kind: str) -> None:
    """A forked child that gets a TERM before the handlers of a child are in place: alone, or after its parent."""

    def tell() -> None:
        if kind == "both":
            os.kill(os.getppid(), signal.SIGTERM)
            end = time.monotonic() + END_S
            while not signals._told[0] and time.monotonic() < end:
                time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    os.register_at_fork(after_in_child=tell)
    signals.install()
    child = os.fork()
    if child == 0:
        time.sleep(0.2 if kind == "both" else END_S)
        os._exit(0)
    say(exitcode=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def blocked(kind: str) -> None:
    """A forked child whose main thread is in a system call already when the interpreter notes a TERM."""
    signals.install()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if kind == "nested" and (grandchild := os.fork()):
            os.write(writer, f"{os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])}\n".encode())
            os._exit(0)

        def note() -> None:
            time.sleep(0.3)  # the main thread reads by then
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        threading.Thread(target=note).start()
        os.read(reader, 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    say(exitcode=code or int(os.read(reader, 32)))


def awaited(kind: str) -> None:
    """A forked child that blocks TERM and waits for it later has it, whichever of its threads could take it."""
    signals.install()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    blocked_there, blocks = os.pipe()
    sent_here, sends = os.pipe()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.write(blocks, b"x")
        os.read(sent_here, 1)
        os._exit(signal.sigwait({signal.SIGTERM}))
    os.read(blocked_there, 1)
    with open(f"/proc/{child}/status", encoding="ascii") as file:
        table = next(int(line.split()[1]) for line in file if line.startswith("FDSize:"))
    os.kill(child, signal.SIGTERM)
    os.write(sends, b"x")
    say(exitcode=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), table=table)


def executed(kind: str) -> None:
    """Programs started from the trainer and from a forked child die of a TERM as ever."""
    signals.install()
    direct = subprocess.Popen(["sleep", "30"])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        program = subprocess.Popen(["sleep", "30"])
        os.write(writer, str(program.pid).encode() + b"\n")
        program.wait()
        os._exit(-program.returncode)
    grandchild = int(os.read(reader, 32))
    os.kill(direct.pid, signal.SIGTERM)
    os.kill(grandchild, signal.SIGTERM)
    say(direct=direct.wait(), grandchild=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class Numbers:
    """A dataset; not torch's class, so that torch is imported by its scene alone."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        return index


def loader(kind: str) -> None:
    """Workers of torch's loader deliver on after a TERM to the whole group."""
    from torch.utils.data import DataLoader

    signals.install()
    shielded = ShieldedInit() if kind == "shielded" else None
    numbers: Any = Numbers()
    data: Any = DataLoader(numbers, batch_size=4, num_workers=2, worker_init_fn=shielded)
    batches = iter(data)
    # Batches come from the workers in turn: after two, both have started.
    next(batches)
    next(batches)
    say(ready=os.getpid())
    wait_for_flag()
    problem = ""
    seen = 0
    # More than was fetched ahead. A loader notices within 5 s that a worker has died. Source: torch,
    # multiprocessing.MP_STATUS_CHECK_INTERVAL.
    most, end = 500 if shielded else 10**6, time.monotonic() + END_S
    try:
        while seen < most and time.monotonic() < end:
            next(batches)
            seen += 1
    except (RuntimeError, OSError) as error:
        problem = str(error) or repr(error)
    del batches
    say(seen=seen, problem=problem)


def chained(kind: str) -> None:
    """A handler that the script had before is called after the flag is set."""
    order = []
    signal.signal(signal.SIGTERM, lambda number, frame: order.append(signals.flag))
    signals.install()
    os.kill(os.getpid(), signal.SIGTERM)
    signals.restore()
    os.kill(os.getpid(), signal.SIGTERM)
    say(order=order)


def nohup(kind: str) -> None:
    """HUP and INT stay ignored where they were."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signals.install()
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
    say(flag=signals.flag, ignored=signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)


SCENES = {
    f.__name__: f
    for f in (second, repeated, commits, forked, pool, newborn, blocked, awaited, executed, loader, chained, nohup)
}

if __name__ == "__main__":
    SCENES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
