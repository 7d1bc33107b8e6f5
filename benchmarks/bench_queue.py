"""The queue: many short commands from a file on two slots, ten thousand jobs, and a card between two of them.

A command appends one line to a file of its own accord, so what has run is counted the same way for everybody. The
time begins with the first command that hands in and ends when every line is there; ours ends when `holdfast wait` has
said that all of them are proven done. CPU time is that of all processes of it, our own excluded.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks import bench_handover
from benchmarks.measuring import CannotMeasure, call, end_descendants, must, reap, wait_until
from benchmarks.ours import HOLDFAST, SHARED_MEMORY, Holdfast, HoldfastQueue
from benchmarks.peers import Gflow, GqLocal, Nq, Place, SimpleGpuScheduler, TaskSpooler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.measuring import Row
    from benchmarks.peers import Queue

SLOTS = 2
FULL = "holdfast submit --lines, full records"
ENQUEUE, LIST, WORKER = "enqueue, 10,000 jobs", "queue ls, 10,000 jobs", "worker, 10,000 jobs"
HAND_OVER = "card idle between two jobs, simulated card"
MANY = 10_000
SLOW_JOBS = 20
"""How many jobs for peers that take tenths of a second for each."""


class TwoSlots(TaskSpooler):
    """task-spooler with two slots."""

    def begin(self) -> None:
        """As for one, then two."""
        super().begin()
        self.run(self.tsp, "-S", str(SLOTS))


class TwoCards(SimpleGpuScheduler):
    """simple_gpu_scheduler with two cards."""

    cards = tuple(str(number) for number in range(SLOTS))


def measure(directory: str, nvml: Mapping[str, str], payload: str, *, quick: bool, peers: bool) -> dict[str, Row]:
    """Everything about the queue, ours and, where they do the same, the peers'."""
    jobs, rounds = (40, 1) if quick else (200, 3)
    places = (f"{directory}/{number}" for number in range(1000))
    found: dict[str, Row] = {}
    found[FULL] = _median(lambda: _run_ours(next(places), payload, jobs), rounds)
    found["xargs -P2 (no queue)"] = _median(lambda: _run_xargs(next(places), payload, jobs), rounds)
    for kind in (TwoCards, TwoSlots, Nq, Gflow, GqLocal) if peers else ():
        count = SLOW_JOBS if kind in (Gflow, GqLocal) else jobs
        each = rounds if count == jobs else 1
        found[kind.name] = _median(
            lambda kind=kind, count=count: _run_peer(kind(Place(next(places), nvml)), payload, count),  # type: ignore[misc]
            each,
        )
    found |= _measure_many(next(places), rounds=3 if quick else 9)
    found[HAND_OVER] = _hand_over(next(places), payload, jobs=3 if quick else 20)
    return found


def _median(work: Callable[[], Row], rounds: int) -> Row:
    """The round with the median time; what cannot be measured says why."""
    rows = []
    for _ in range(rounds):
        try:
            rows.append(work())
        except CannotMeasure as problem:
            return {"note": str(problem)}
        finally:
            end_descendants()
    return sorted(rows, key=lambda row: float(row["wall_s"] or 0))[len(rows) // 2]


def _cpu_s() -> float:
    """CPU seconds of all children that were reaped so far, and of those that they had reaped."""
    reap()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _count(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def _row(jobs: int, wall_s: float, cpu_s: float) -> Row:
    return {
        "n": jobs,
        "wall_s": round(wall_s, 3),
        "per_job_ms": round(wall_s / jobs * 1e3, 2),
        "cpu_s": round(cpu_s, 2),
    }


class _Ours:
    """A queue of ours in a directory of its own; runs and queue lie on the disk, locks of cards in memory."""

    def __init__(self, directory: str) -> None:
        self.place = Place(directory)
        self.leases = tempfile.mkdtemp(prefix="holdfast-bench-", dir=SHARED_MEMORY)
        self.environ = {
            **self.place.environ,
            "HOLDFAST_RUNS": f"{directory}/runs",
            "HOLDFAST_QUEUE": f"{directory}/queue",
            "HOLDFAST_LEASE_DIR": f"{self.leases}/area",
        }

    def __call__(self, *words: str, timeout_s: float = 300.0) -> str:
        return must([HOLDFAST, *words], self.environ, self.place.directory, timeout_s=timeout_s).output

    def wait_left(self) -> None:
        """Until the worker has gone, and with it all that it started."""
        wait_until(lambda: end_of(self.worker()), 30, "the worker to leave")

    def worker(self) -> int:
        """The pid of the worker that was there last; 0 when there never was one."""
        try:
            with open(f"{self.environ['HOLDFAST_QUEUE']}/worker.lock", encoding="utf-8") as file:
                return int(json.load(file)["process"]["pid"])
        except (OSError, ValueError, KeyError):
            return 0

    def close(self) -> None:
        shutil.rmtree(self.leases, ignore_errors=True)


def end_of(pid: int) -> bool:
    """Whether a process of ours has ended; it is reaped."""
    reap()
    return not os.path.exists(f"/proc/{pid}")


def _run_ours(directory: str, payload: str, jobs: int) -> Row:
    ours = _Ours(directory)
    stamps, commands = f"{directory}/stamps", f"{directory}/commands"
    with open(commands, "w", encoding="utf-8") as file:
        # Each line is another command, because equal lines are one job; the payload reads 0.17 as 0.
        file.writelines(f"{payload} stamp {stamps} 0.{number}\n" for number in range(jobs))
    try:
        before, began = _cpu_s(), time.monotonic()
        ours("submit", "--lines", commands, "--group", "g", "--max-parallel", str(SLOTS))
        ours("wait", "g/")
        wall_s = time.monotonic() - began
        ours.wait_left()
        ran = _count(stamps)
        if ran != jobs:
            raise CannotMeasure(f"{ran} commands ran of {jobs}")
        return _row(jobs, wall_s, _cpu_s() - before)
    finally:
        ours.close()


def _run_xargs(directory: str, payload: str, jobs: int) -> Row:
    """What two slots without any queue take: the floor."""
    place, stamps = Place(directory), f"{directory}/stamps"
    environ = place.environ
    numbers = f"{directory}/numbers"
    with open(numbers, "w", encoding="ascii") as file:
        file.writelines(f"{number}\n" for number in range(jobs))
    before, began = _cpu_s(), time.monotonic()
    argv = ["xargs", "-a", numbers, "-P", str(SLOTS), "-I", "{}", payload, "stamp", stamps, "0.{}"]
    must(argv, environ, directory)
    wall_s = time.monotonic() - began
    return _row(jobs, wall_s, _cpu_s() - before)


def _run_peer(queue: Queue, payload: str, jobs: int) -> Row:
    stamps = f"{queue.place.directory}/stamps"
    before = _cpu_s()
    queue.begin()
    began = time.monotonic()
    try:
        for _ in range(jobs):
            queue.submit([payload, "stamp", stamps, "0"], cards=0)
        wait_until(lambda: _count(stamps) == jobs, 120, f"{jobs} commands to end")
        wall_s = time.monotonic() - began
    finally:
        queue.finish()
        end_descendants()
    return _row(jobs, wall_s, _cpu_s() - before)


def _measure_many(directory: str, *, rounds: int) -> dict[str, Row]:
    """Ten thousand jobs: handed in, listed, and held by a worker while one of them runs."""
    ours = _Ours(directory)
    commands = f"{directory}/commands"
    with open(commands, "w", encoding="utf-8") as file:
        file.writelines(f"true {number}\n" for number in range(MANY))
    found: dict[str, Row] = {}
    try:
        handed = must(
            [HOLDFAST, "submit", "--lines", commands, "--group", "many", "--paused"],
            ours.environ,
            directory,
            timeout_s=60,
        )
        found[ENQUEUE] = {"n": MANY, "wall_s": round(handed.wall_s, 3), "cpu_s": round(handed.cpu_s, 2)}
        calls = [call([HOLDFAST, "queue", "ls"], ours.environ) for _ in range(rounds)]
        found[LIST] = {
            "n": rounds,
            "p50_ms": round(statistics.median(one.wall_s for one in calls) * 1e3, 1),
            "cpu_p50_ms": round(statistics.median(one.cpu_s for one in calls) * 1e3, 1),
        }
        ours("queue", "set", "--cpu-slots", "1")
        ours("submit", "--name", "long", "--group", "long", "--", "sleep", "30")
        ours("queue", "resume", "many")
        wait_until(lambda: len(os.listdir(ours.environ["HOLDFAST_RUNS"])) > 0, 20, "the first job to run")
        found[WORKER] = {"n": MANY, "rss_mib": _rss_mib(ours.worker())}
    except (CannotMeasure, OSError) as problem:
        found.setdefault(WORKER, {"note": str(problem)})
    finally:
        end_descendants()
        ours.close()
    return found


def _rss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return round(int(file.read().split("VmRSS:")[1].split()[0]) / 1024, 1)


def _hand_over(directory: str, payload: str, *, jobs: int) -> Row:
    queue: Holdfast = HoldfastQueue(Place(directory), simulated=1)
    try:
        return bench_handover.hand_over(queue, f"{directory}/stamps", payload, jobs, alone=False)
    except CannotMeasure as problem:
        return {"note": str(problem)}
    finally:
        end_descendants()
