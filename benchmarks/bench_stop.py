"""How fast a tree of 200 processes is ended, and whether all of it.

It has what is usually missed: sessions of their own, double forks, processes that ignore TERM, stopped ones.

Every process of the tree holds a FIFO open: end of file on our side is the kernel's word that none is left. Survivors
are counted in /proc a few seconds after the peer said that it was done.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, end_descendants, find_by_arguments, spread
from benchmarks.ours import Holdfast
from benchmarks.peers import ALL, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measuring import Row
    from benchmarks.peers import Queue

PROCESSES = 200
GRACE_S = 1.0
LEVELS = ("pid_namespace", "cgroup_v2", "cgroup_v1", "subreaper", "process_group")
PATIENCE_S = 8.0
"""How long a peer may take until its survivors are counted; gflow's own grace is 5 s."""


def measure(directory: str, nvml: Mapping[str, str], payload: str, *, rounds: int, peers: bool) -> dict[str, Row]:
    """Stop such a tree on every level that this machine has, and with every peer that has a command for it."""
    found: dict[str, Row] = {}
    for level in LEVELS:
        options = ("--containment", level, "--grace", f"{GRACE_S:g}s")
        taken: list[tuple[float, float, int]] = []
        note = ""
        for number in range(rounds):
            try:
                queue = Holdfast(Place(f"{directory}/{level}-{number}"), options=options)
                taken.append(_stop(queue, f"{queue.place.directory}/fifo", payload))
            except CannotMeasure as problem:
                note = str(problem)
                break
            finally:
                end_descendants()
        found[f"holdfast, {level}"] = {"note": note} if note else _describe(taken)
    for kind in ALL if peers else ():
        if not kind.stops_jobs:
            found[kind.name] = {"note": "has no command that stops a job"}
            continue
        queue_of_peer = kind(Place(f"{directory}/{kind.name}", nvml))
        try:
            _, empty_s, survivors = _stop(queue_of_peer, f"{directory}/{kind.name}-fifo", payload)
            found[kind.name] = {"n": 1, "survivors": survivors}
            if not survivors:
                found[kind.name]["empty_ms"] = round(empty_s * 1e3, 1)
        except CannotMeasure as problem:
            found[kind.name] = {"note": str(problem)}
        end_descendants()
    return found


def _describe(taken: list[tuple[float, float, int]]) -> Row:
    """The time from the request beyond the grace: until the command says that all is gone, and until it was."""
    said = spread([returned - GRACE_S for returned, _, _ in taken])
    empty = spread([empty - GRACE_S for _, empty, _ in taken])
    row: Row = dict(said)
    row["kernel_empty_p50_ms"] = empty["p50_ms"]
    row["survivors"] = sum(survivors for _, _, survivors in taken)
    return row


def _stop(queue: Queue, fifo: str, payload: str) -> tuple[float, float, int]:
    """Seconds from the request to the command's return and to the last process's end, and how many are left."""
    os.makedirs(queue.place.directory, exist_ok=True)
    os.mkfifo(fifo, 0o600)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    queue.begin()
    try:
        queue.submit([payload, "tree", fifo, str(PROCESSES)], cards=1 if queue.place.nvml else 0)
        _wait_complete(reader)
        begin = time.monotonic()
        ended = _in_background(queue.stop_job)
        empty_s = _wait_empty(reader, begin + GRACE_S + PATIENCE_S) - begin
        returned_s = ended() - begin
        survivors = find_by_arguments("tree", fifo)
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(reader)
        queue.finish()
    return returned_s, empty_s, len(survivors)


def _in_background(work: Callable[[], None]) -> Callable[[], float]:
    """Do `work` in a thread; the answer waits for it and says when it was done. Re-raises what it raised."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)

    def timed() -> float:
        work()
        return time.monotonic()

    future = pool.submit(timed)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=60)


def _wait_complete(reader: int) -> None:
    """Wait for a byte of every process. Raises: CannotMeasure."""
    got, end = 0, time.monotonic() + 30
    while got < PROCESSES + 1:
        if time.monotonic() > end:
            raise CannotMeasure(f"{got} of {PROCESSES + 1} processes came")
        if select.select([reader], [], [], 1.0)[0]:
            data = os.read(reader, 4096)
            got += len(data)
            if not data:
                if got:
                    raise CannotMeasure("the tree ended before it was complete")
                time.sleep(0.01)  # nobody has opened the FIFO yet


def _wait_empty(reader: int, deadline: float) -> float:
    """When end of file came, or infinity."""
    poll = select.poll()
    poll.register(reader, 0)
    left_ms = max(0.0, deadline - time.monotonic()) * 1e3
    return time.monotonic() if poll.poll(left_ms) else float("inf")
