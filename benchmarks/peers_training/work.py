"""One process of a measurement: one way to save, on a state of its own; says what it saw as lines of JSON.

    python work.py pause METHOD SIZE DIRECTORY [--saves N]     the pause, and the time until durable, of each save
    python work.py lost METHOD SIZE DIRECTORY [--saves N]      times of training steps, with saves in between
    python work.py memory METHOD SIZE DIRECTORY                waits for a line before it makes the method, then saves
    python work.py load METHOD SIZE DIRECTORY                  reads a checkpoint, from the disk and from the page cache
    python work.py steps - - DIRECTORY                         what `run.steps` and `run.log` cost, without torch
    python work.py versions - - -                              which of the libraries are here

A method whose library is not installed says ``{"note": "not installed"}``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers_training.methods import Method

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

WARM_STEPS = 8
BEFORE, AFTER = 4, 9
"""Steps before a save that are its baseline, and steps after it in which it may cost something."""
BATCH = 32


def main() -> None:
    """Do one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pause", "lost", "memory", "load", "steps", "versions"))
    parser.add_argument("method")
    parser.add_argument("size")
    parser.add_argument("directory")
    parser.add_argument("--saves", type=int, default=3)
    options = parser.parse_args()
    sys.path[0] = ROOT  # not this directory: `benchmarks` is a package of the repository
    sys.path.insert(1, os.path.join(ROOT, "src"))
    if options.what == "versions":
        say(**{name: _version(name) for name in ("torch", "numpy", "safetensors", "torchsnapshot", "orbax-checkpoint")})
        return
    try:
        MODES[options.what](options)
    except ImportError as error:
        say(note=f"not installed ({error.name or error})")


def say(**values: object) -> None:
    """One line for the harness."""
    print(json.dumps(values), flush=True)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _make(options: argparse.Namespace) -> Method:
    from benchmarks.peers_training import methods, states

    training = states.build(options.size)
    say(nbytes=training.nbytes())
    return methods.METHODS[options.method](training, options.directory)


def _remove(path: str) -> None:
    """An old checkpoint goes outside of what is timed."""
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)


def pause(options: argparse.Namespace) -> None:
    """Saves one after the other, each after everything before it is on the disk."""
    began = time.perf_counter()
    method = _make(options)
    say(prepare_s=time.perf_counter() - began)
    time.sleep(0.5)  # a script's first step takes longer than that; what prepares itself meanwhile may
    for step in range(1, options.saves + 1):
        method.training.touch()
        os.sync()
        cpu, began = time.process_time(), time.perf_counter()
        method.save(step)
        blocked = time.perf_counter() - began
        method.wait()
        durable = time.perf_counter() - began
        say(first=step == 1, block_s=blocked, durable_s=durable, own_cpu_s=time.process_time() - cpu)
        _remove(method.path(step - 1))
    method.close()


def lost(options: argparse.Namespace) -> None:
    """A loop on one core: what a save costs beyond the call itself shows in the steps after it."""
    import torch

    from benchmarks.peers_training import states

    torch.set_num_threads(1)
    method = _make(options)
    rows = states.make_batch(options.size, BATCH)
    times: list[float] = []

    def steps(count: int) -> list[float]:
        begun = len(times)
        for _ in range(count):
            began = time.perf_counter()
            method.training.step(rows)
            times.append(time.perf_counter() - began)
        return times[begun:]

    steps(WARM_STEPS)
    method.save(1)  # the first save of some builds their buffers: it is not counted
    steps(AFTER)
    method.wait()
    for step in range(2, options.saves + 2):
        before = steps(BEFORE)
        began = time.perf_counter()
        method.save(step)
        blocked = time.perf_counter() - began
        after = steps(AFTER)
        method.wait()
        say(before_s=before, block_s=blocked, after_s=after)
        _remove(method.path(step - 1))
    method.close()


def memory(options: argparse.Namespace) -> None:
    """Three saves, while the harness looks at the memory of this process and its children."""
    from benchmarks.peers_training import methods, states

    training = states.build(options.size)
    gc.collect()
    # What any method needs on its first use of the library is no memory that a save takes: import it before.
    kind = methods.METHODS[options.method]
    say(nbytes=training.nbytes(), ready=True)
    sys.stdin.readline()
    method = kind(training, options.directory)
    for step in range(1, 4):
        method.save(step)
        method.wait()
        _remove(method.path(step - 1))
    say(done=True)
    sys.stdin.readline()
    method.close()


def load(options: argparse.Namespace) -> None:
    """Load what was saved: first with nothing of it in the page cache, then with all of it."""
    method = _make(options)
    method.save(1)
    method.wait()
    method.close()
    del method.training
    gc.collect()
    os.sync()
    for _ in range(options.saves):
        _forget(method.path(1))
        began = time.perf_counter()
        loaded = method.load(1)
        cold = time.perf_counter() - began
        del loaded
        gc.collect()
        _read_all(method.path(1))
        cpu, began = time.process_time(), time.perf_counter()
        loaded = method.load(1)
        say(cold_s=cold, warm_s=time.perf_counter() - began, warm_cpu_s=time.process_time() - cpu)
        del loaded
        gc.collect()


def _files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    return [os.path.join(parent, name) for parent, _, names in os.walk(path) for name in names]


def _forget(path: str) -> None:
    """Have the kernel drop a checkpoint's pages: they are clean, so it does."""
    for name in _files(path):
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _read_all(path: str) -> None:
    """Have all of it in the page cache."""
    buffer = bytearray(1 << 20)
    for name in _files(path):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def steps(options: argparse.Namespace) -> None:
    """The library's own time in each step: of a loop at 100 steps/s, and of one whose body is empty."""
    from holdfast import training as library

    for name in ("heartbeat.json", "checkpoint-request"):
        os.environ["HOLDFAST_" + name.partition(".")[0].upper().replace("-", "_")] = f"{options.directory}/{name}"
    with library.run(f"{options.directory}/paced", every=None) as run:
        run.track({"weights": bytearray(1000)})
        spent, worst, loss = 0.0, 0.0, 1.0
        count = 100 * options.saves
        ended, cpu_ended = time.perf_counter(), time.process_time()
        cpu = 0.0
        for step in run.steps(count):
            cpu += time.process_time() - cpu_ended
            took = time.perf_counter() - ended
            if step > 1:  # the first boundary starts the writer
                spent, worst = spent + took, max(worst, took)
            time.sleep(max(0.0, 0.01 - took))
            loss *= 0.999
            ended, cpu_ended = time.perf_counter(), time.process_time()
            run.log(loss=loss, lr=1e-3)
        say(paced=count - 2, spent_s=spent, worst_s=worst, cpu_s=cpu)
    spent, loss = 0.0, 1.0
    ended = time.perf_counter()
    for step in range(100 * options.saves):
        took = time.perf_counter() - ended
        spent += took if step > 1 else 0.0
        time.sleep(max(0.0, 0.01 - took))
        loss *= 0.999
        ended = time.perf_counter()
    say(control=100 * options.saves - 2, spent_s=spent)
    with library.run(f"{options.directory}/empty", every=None) as run:
        run.track({"weights": bytearray(1000)})
        count, began = 100_000, 0.0
        for _ in run.steps(count):
            began = began or time.perf_counter()
            run.log(loss=loss)
        say(empty=count, spent_s=time.perf_counter() - began)


MODES = {"pause": pause, "lost": lost, "memory": memory, "load": load, "steps": steps}


if __name__ == "__main__":
    main()
