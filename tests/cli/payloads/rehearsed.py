"""Trainers for rehearsals: ``python rehearsed.py HOW [STEPS] [SECONDS-PER-STEP]``, standard library only.

With the library: ``good``; ``generator`` draws from a generator that it does not track; ``order`` counts its samples
where nothing is saved; ``unseeded`` differs in each run; ``named`` names a checkpoint directory of its own; ``fails``
cannot start twice. Without it: ``restarts`` begins at 0 each time; ``byhand`` saves and loads a file of its own;
``forgets`` saves it and never loads it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

HOW = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 120
STEP_S = float(sys.argv[3]) if len(sys.argv) > 3 else 0.05
SAMPLES = [((31 * at) % 97) / 97 for at in range(53)]


def train_with_the_library() -> None:
    from holdfast import training

    rng = random.Random(None if HOW == "unseeded" else 7)
    state: dict[str, Any] = {"w": 0.5, "m": 0.0, "seen": 0}
    seen = 0
    if HOW == "fails" and os.environ["HOLDFAST_ATTEMPT"] != "1":
        sys.exit("no such file: prices.csv")
    directory = "mine" if HOW == "named" else None
    with training.run(directory, every=7, seed=None if HOW == "unseeded" else 0) as run:
        run.track(state)
        if HOW != "generator":
            run.track(rng=rng)
        for _ in run.steps(STEPS):
            sample = SAMPLES[(seen if HOW == "order" else state["seen"]) % len(SAMPLES)]
            seen += 1
            state["seen"] += 1
            state["m"] = 0.9 * state["m"] + (state["w"] - sample) + 0.1 * rng.gauss(0, 1)
            state["w"] -= 0.01 * state["m"]
            run.log(loss=(state["w"] - sample) ** 2)
            time.sleep(STEP_S)


def write(path: str, values: dict[str, object]) -> None:
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(values, file)
    os.replace(f"{path}.new", path)


def train_alone() -> None:
    path = os.path.join(os.environ["HOLDFAST_CHECKPOINT_DIR"], "mine.json")
    weight, step = 0.5, 0
    if HOW == "byhand" and os.path.exists(path):
        with open(path, encoding="ascii") as file:
            kept = json.load(file)
        weight, step = kept["weight"], kept["step"]
    while step < STEPS:
        weight -= 0.01 * (weight - SAMPLES[step % len(SAMPLES)])
        step += 1
        if HOW in ("byhand", "forgets") and step % 5 == 0:
            write(path, {"weight": weight, "step": step})
        write(os.environ["HOLDFAST_HEARTBEAT"], {"step": step, "loss": weight})
        time.sleep(STEP_S)


if HOW in ("restarts", "byhand", "forgets"):
    train_alone()
else:
    train_with_the_library()
