"""How soon a command runs: from typing ``holdfast run -d`` to the first instruction of the job.

The clock starts before the command is spawned and stops in the job's own `main`, both on CLOCK_MONOTONIC. Beside it
stands what a bare interpreter costs in the same round, and how long the command takes to return. Jobs need no card.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, Samples, call, reap, wait_until
from benchmarks.ours import Holdfast
from benchmarks.peers import ALL, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.measuring import Row
    from benchmarks.peers import Queue

PEER_TIMEOUT_S = 20.0


def measure(directory: str, nvml: Mapping[str, str], payload: str, *, rounds: int, peers: bool) -> dict[str, Row]:
    """Time to exec over `rounds`, ours and the peers' one after another in each round."""
    ours = Holdfast(Place(f"{directory}/holdfast"))
    queues: dict[str, Queue] = {"holdfast run -d": ours}
    found: dict[str, Row] = {}
    for kind in ALL if peers else ():
        queue = kind(Place(f"{directory}/{kind.name}", nvml))
        try:
            queue.begin()
            queues[kind.name] = queue
        except CannotMeasure as problem:
            found[kind.name] = {"note": str(problem)}
    starts = {name: Samples() for name in queues}
    returns = {name: Samples() for name in queues}
    bare, whole_cpu_s = Samples(), []
    for number in range(rounds + 1):
        began = call([sys.executable, "-c", "pass"], ours.environ)
        for name in random.sample(list(queues), len(queues)):
            reap()
            if not starts[name].note:
                _take(
                    queues[name], f"{directory}/stamp-{number}-{name.split()[0]}", payload, starts[name], returns[name]
                )
        if number:
            bare.wall_s.append(began.wall_s)
            bare.cpu_s.append(began.cpu_s)
        else:
            for samples in (*starts.values(), *returns.values()):
                samples.wall_s.clear()
        if ours.run_ids:
            wait_until(lambda: ours.has_ended(ours.run_ids[-1]), 30, "the run to end")
            time.sleep(0.1)  # its supervisor leaves; its CPU time is then counted as an orphan's
            whole_cpu_s.append(reap())
    for queue in queues.values():
        queue.finish()
    rows = {name: sample.row() for name, sample in starts.items()} | found
    rows |= {f"{name}: returns": sample.row() for name, sample in returns.items()}
    rows["python -c pass"] = bare.row()
    _add_ratio(rows, starts["holdfast run -d"], bare)
    if whole_cpu_s[1:]:
        rows["holdfast: supervisor and keeper, whole run"] = {"cpu_p50_ms": _ms(whole_cpu_s[1:])}
    return rows


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)


def _add_ratio(rows: dict[str, Row], ours: Samples, bare: Samples) -> None:
    if not ours.note and bare.wall_s:
        ratios = [start / python for start, python in zip(ours.wall_s, bare.wall_s, strict=True)]
        rows["holdfast run -d"]["ratio_to_python_p50"] = round(statistics.median(ratios), 1)


def _take(queue: Queue, stamp: str, payload: str, starts: Samples, returns: Samples) -> None:
    begin_ns = time.monotonic_ns()
    try:
        queue.submit([payload, "stamp", stamp, "0"], cards=0)
        returned_ns = time.monotonic_ns()
        wait_until(
            lambda: os.path.exists(stamp) and os.path.getsize(stamp) > 0, PEER_TIMEOUT_S, "the job", pause_s=0.002
        )
    except CannotMeasure as problem:
        starts.note = returns.note = str(problem)
        return
    with open(stamp, encoding="utf-8") as file:
        began_ns = int(file.read().split()[0])
    starts.wall_s.append((began_ns - begin_ns) / 1e9)
    returns.wall_s.append((returned_ns - begin_ns) / 1e9)
