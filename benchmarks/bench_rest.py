"""What stands beside a job that runs for days: memory and CPU; and what is left when nothing runs.

Supervisor, keeper and GPU probe are watched in the same minute as the daemons and wrappers of the peers. CPU is the
scheduler's own count in nanoseconds (``schedstat`` of every thread), memory is ``smaps_rollup`` (the counters of
``status`` lag behind by up to 64 pages for each CPU).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.measuring import CannotMeasure, descendants, end_descendants, read_command, reap, wait_until
from benchmarks.ours import Holdfast
from benchmarks.peers import ALL, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.measuring import Row
    from benchmarks.peers import Queue

SETTLE_S = 3.0
"""From the start of the last job until the counting begins."""


def measure(directory: str, nvml: Mapping[str, str], payload: str, *, window_s: float, peers: bool) -> dict[str, Row]:
    """One resting job under each, all at once, watched for `window_s` seconds; then what is left of ours."""
    groups: dict[str, list[int]] = {}
    found: dict[str, Row] = {}
    without = Holdfast(Place(f"{directory}/without"))
    queues: dict[str, Queue] = {"without a card": without, "fake NVML": Holdfast(Place(f"{directory}/with", nvml))}
    for kind in ALL if peers else ():
        queues[kind.name] = kind(Place(f"{directory}/{kind.name}", nvml))
    for name, queue in queues.items():
        before = set(descendants())
        try:
            queue.begin()
            queue.submit([payload, "rest", name.replace(" ", "-")], cards=0 if queue is without else 1)
            wait_until(lambda: any(_is_rest(pid, payload) for pid in set(descendants()) - before), 20, "the job")  # noqa: B023 - called at once
        except CannotMeasure as problem:
            found[name] = {"note": str(problem)}
            continue
        groups[name] = [pid for pid in descendants() if pid not in before and not _is_rest(pid, payload)]
    time.sleep(SETTLE_S)
    _name_ours(queues, groups, nvml_name="fake NVML")
    first = {pid: _cpu_ns(pid) for pids in groups.values() for pid in pids}
    begin = time.monotonic()
    time.sleep(window_s)
    elapsed_ns = (time.monotonic() - begin) * 1e9
    for name, pids in groups.items():
        living = [pid for pid in pids if read_command(pid)]
        used_ns = sum(_cpu_ns(pid) - first[pid] for pid in living)
        found[name] = {"processes": len(living), **_memory(living), "cpu_percent": round(used_ns / elapsed_ns * 100, 4)}
    for queue in queues.values():
        if isinstance(queue, Holdfast):
            queue.stop_job()
            queue.finish()
    found["holdfast, nothing runs"] = {"processes": _left(groups)}
    end_descendants()
    return found


def _is_rest(pid: int, payload: str) -> bool:
    return read_command(pid).startswith(f"{payload} rest")


def _name_ours(queues: Mapping[str, Queue], groups: dict[str, list[int]], *, nvml_name: str) -> None:
    """Replace our two groups by one for each kind of process."""
    for name in ("without a card", nvml_name):
        queue, pids = queues[name], groups.pop(name, None)
        if pids is None or not isinstance(queue, Holdfast):
            continue
        state = queue.read_state(queue.run_ids[-1])
        supervisor, keeper = state["supervisor"]["pid"], state["state"]["keeper"]["pid"]
        pids = [pid for pid in pids if read_command(pid)]
        groups[f"holdfast supervisor, {name}"] = [supervisor]
        groups[f"holdfast keeper, {name}"] = [keeper]
        groups[f"holdfast, all of a run, {name}"] = sorted({*pids, supervisor, keeper})


def _left(groups: Mapping[str, list[int]]) -> int:
    """How many processes of our runs live after their end; a supervisor may take a moment to leave."""
    ours = {pid for name, pids in groups.items() if name.startswith("holdfast") for pid in pids}
    end = time.monotonic() + 5
    while True:
        reap()
        living = [pid for pid in ours if read_command(pid)]
        if not living or time.monotonic() > end:
            return len(living)
        time.sleep(0.05)


def _cpu_ns(pid: int) -> int:
    """CPU time of every living thread. Source: kernel Documentation/scheduler/sched-stats.rst, first field, ns."""
    total = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
    except OSError:
        return total
    return total


def _memory(pids: list[int]) -> Row:
    """Resident, proportional and private memory in MiB, summed over the processes."""
    sums = {"Rss": 0, "Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                for line in file:
                    name, _, value = line.partition(":")
                    if name in sums:
                        sums[name] += int(value.split()[0])
        except OSError:
            continue
    private = sums["Private_Clean"] + sums["Private_Dirty"]
    names = {"rss_mib": sums["Rss"], "pss_mib": sums["Pss"], "private_mib": private}
    return {name: round(kib / 1024, 1) for name, kib in names.items()}
