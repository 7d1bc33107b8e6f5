"""A program that installs `StopSignals` and is then signalled. The first argument names the scene."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import Any

from holdfast.host import files
from holdfast.training.stopping.budget import ShieldedInit, StopSignals

END_S = 20.0
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
    """Commits files until the input ends, and is signalled all the time."""
    tireless = StopSignals(repeat_s={})
    tireless.install()
    say(ready=os.getpid())
    number = noted = 0
    os.set_blocking(0, False)
    pipe = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - it is the standard input
    while pipe.read(1) is None:
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
    answered = ours.poll(5) and ours.recv() == child.pid
    if kind == "stop":
        signals.restore()
        child.terminate()
    else:
        ours.send(None)
    child.join(10)
    say(answered=answered, exitcode=child.exitcode)


def pool(kind: str) -> None:
    """Leaving a pool terminates its workers and waits for them without a bound."""
    signals.install()
    with multiprocessing.get_context("fork").Pool(2) as workers:
        squares = workers.map(abs, range(4))
    say(squares=squares)


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
    end = time.monotonic() + 0.5
    try:
        while time.monotonic() < end:
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


SCENES = {f.__name__: f for f in (second, repeated, commits, forked, pool, executed, loader, chained, nohup)}

if __name__ == "__main__":
    SCENES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
