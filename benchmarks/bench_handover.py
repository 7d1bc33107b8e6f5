"""How long a card stands idle between two jobs: from a job's last instruction to the first one of the next in line.

Every job is in line before the first one ends; each stamps its begin and its end itself.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, end_descendants, spread, wait_until
from benchmarks.ours import Holdfast
from benchmarks.peers import ALL, Gflow, GpuGate, GpuGateQuick, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measuring import Row
    from benchmarks.peers import Queue

JOB_MS = 300
FIRST_JOB_MS = 2500
"""The first job lasts until the others are in line."""
JOB_ALONE_MS = 2000
"""Long enough that the supervisor has gone to sleep beside its job."""
ALONE = "holdfast, fake NVML, jobs of 2 s, one in line at a time"
FEWER = {ALONE: 6}
SLOW = {GpuGate.name: 3, Gflow.name: 3}
"""How many jobs for peers that take seconds for each hand-over."""


class HoldfastWatching(Holdfast):
    """holdfast as it comes: a card is watched for two seconds before it is taken."""

    idle_window = "2s"


def measure(directory: str, nvml: Mapping[str, str], payload: str, *, jobs: int, peers: bool) -> dict[str, Row]:
    """The hand-overs of `jobs` jobs on one card, ours and each peer's, one after another."""
    makers: dict[str, Callable[[Place], Queue]] = {
        "holdfast, simulated card": lambda place: Holdfast(Place(place.directory), simulated=1),
        "holdfast, fake NVML": Holdfast,
        ALONE: Holdfast,
        "holdfast, fake NVML, idle window of 2 s": HoldfastWatching,
    }
    others: tuple[type[Queue], ...] = (*ALL, GpuGateQuick) if peers else ()
    for kind in others:
        makers[kind.name] = kind
    found: dict[str, Row] = {}
    for number, (name, make) in enumerate(makers.items()):
        count = 4 if make is HoldfastWatching else SLOW.get(name, min(jobs, FEWER.get(name, jobs)))
        queue = make(Place(f"{directory}/{number}", nvml))
        try:
            found[name] = hand_over(queue, f"{directory}/{number}/stamps", payload, count, alone=name == ALONE)
        except CannotMeasure as problem:
            found[name] = {"note": str(problem)}
        end_descendants()
    return found


def hand_over(queue: Queue, stamps: str, payload: str, jobs: int, *, alone: bool) -> Row:
    """Hand in all jobs while the first one runs; or, `alone`, each one when the one before it has begun."""
    queue.begin()
    try:
        for number in range(jobs + 1):
            milliseconds = JOB_ALONE_MS if alone else JOB_MS if number else FIRST_JOB_MS
            queue.submit([payload, "stamp", stamps, str(milliseconds)], cards=1)
            time.sleep(queue.spacing_s)
            if alone:
                wait_until(lambda: len(_read(stamps)) >= number, 30, "the job before", pause_s=0.05)  # noqa: B023 - called at once
        wait_until(lambda: len(_read(stamps)) == jobs + 1, 30 + jobs * 12, f"{jobs + 1} jobs to end", pause_s=0.05)
    finally:
        queue.finish()
    lines = sorted(_read(stamps))
    gaps = [(later[0] - earlier[1]) / 1e9 for earlier, later in itertools.pairwise(lines)]
    row: Row = dict(spread(gaps))
    row["overlaps"] = sum(gap < 0 for gap in gaps)
    return row


def _read(path: str) -> list[tuple[int, int]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [(int(begin), int(end)) for begin, end in (line.split() for line in file if line.endswith("\n"))]
