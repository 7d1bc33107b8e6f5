"""A training loop without torch, for tests that end it from outside: numpy where it is there, else plain Python.

Usage: loop.py DIRECTORY STEPS [--pause S] [--every N] [--crash-at STEP] [--plain] [--own-loop]
Prints ``done DIGEST`` after the last step; the digest is over everything that training changed.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import os
import random
import sys
import time
from typing import Any

from holdfast import training

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("steps", type=int)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--every", default="5")
parser.add_argument("--crash-at", type=int, default=-1)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--own-loop", action="store_true")
parser.add_argument("--swallow", action="store_true")
parser.add_argument("--time-limit", type=float, default=None)
options = parser.parse_args()

if options.plain:
    weights: Any = array.array("d", [0.0] * 64)
    state: dict[str, Any] = {"weights": weights, "random": random.Random(3)}
else:
    import numpy as np

    weights = np.zeros(64)
    state = {"weights": weights, "random": random.Random(3), "noise": np.random.default_rng(4)}


def train(run: training.Run, batch: list[int]) -> None:
    for at in batch:
        weights[at] += state["random"].random() + random.random()
        if not options.plain:
            weights[at] += float(state["noise"].normal()) + float(np.random.rand())  # noqa: NPY002 - the global generator is what is under test
    run.log(loss=float(weights[0]))
    print(f"step {run.step} batch {batch}", flush=True)
    if run.step == options.crash_at:
        raise RuntimeError("a bug in the script")
    time.sleep(options.pause)


def main() -> None:
    every = int(options.every) if options.every.isdigit() else options.every
    with training.run(options.directory, every=every, seed=1, time_limit=options.time_limit) as run:
        run.track(state)
        batches = run.batches(training.BatchSampler(64, 5, seed=2))
        run.on_stop(lambda why: print(f"told {why}", flush=True))
        if options.own_loop:
            for step in range(run.begin(), options.steps):
                train(run, next(batches))
                run.beat(step + 1)
                if run.should_save():
                    run.save()
                if run.should_stop():
                    break
            else:
                run.finish()
        elif options.swallow:
            for _ in run.steps(options.steps):
                try:
                    train(run, next(batches))
                except Exception as error:  # noqa: BLE001 - what careless scripts do
                    print(f"swallowed {error!r}", flush=True)
        else:
            for _ in run.steps(options.steps):
                train(run, next(batches))
    print("done", hashlib.sha256(weights.tobytes()).hexdigest(), flush=True)


print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
main()
