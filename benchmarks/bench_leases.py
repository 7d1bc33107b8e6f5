"""Leases under load: what a cycle costs, that no card is ever granted twice, and how fast a card changes hands.

Run it as ``python benchmarks/bench_leases.py`` (see ``--help``); ``--json`` prints one object for other programs. The
peers (gpu-gate, reslock) are measured beside us in the same run when they can be imported, and said to be absent
otherwise. They keep a lock file only, or a state file: no record, no witnesses, no line.

A double grant is found by a witness that shares nothing with the leases: each grant creates one file per card with
O_EXCL and removes it before it releases, so two holders at once collide there whatever the locks say.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.host import clock
from holdfast.host.lease import leases
from holdfast.host.lease.area import LeaseArea, open_area
from holdfast.host.lease.line import Waiter, wait_s
from holdfast.host.process import processes
from holdfast.model.lease import LeasedDevice, LeasePhase, LeaseRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a private directory in it
CARDS = tuple(LeasedDevice(f"GPU-{index:08x}-0000-4000-8000-000000000000", index, "Bench card") for index in range(8))


def record(number: int, devices: tuple[LeasedDevice, ...]) -> LeaseRecord:
    """The record of one run of this benchmark."""
    return LeaseRecord(
        run_id=f"20261120-104501-bench-{number:04x}",
        attempt=1,
        user="bench",
        uid=os.geteuid(),
        host="bench",
        since=clock.utc_now(),
        phase=LeasePhase.RUN,
        devices=devices,
        supervisor=processes.identify_self(),
        command="python train.py",
    )


@contextmanager
def fresh_area() -> Iterator[LeaseArea]:
    """An area of its own on the file system where leases usually lie."""
    base = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    path = tempfile.mkdtemp(prefix="holdfast-bench-", dir=base)
    try:
        yield open_area(f"{path}/area", environ={}, hand_written=f"{path}/none")
    finally:
        shutil.rmtree(path)


def describe(seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1e3, 3),
        "max_ms": round(ordered[-1] * 1e3, 3),
    }


def measure(cycle: Callable[[], None], repeats: int) -> dict[str, float]:
    """Wall time of `cycle`, and its mean CPU time."""
    cycle()
    times, cpu = [], time.process_time()
    for _ in range(repeats):
        begin = time.perf_counter()
        cycle()
        times.append(time.perf_counter() - begin)
    return {**describe(times), "cpu_mean_ms": round((time.process_time() - cpu) / repeats * 1e3, 3)}


def bench_cycle(cards: int, others: int, repeats: int) -> dict[str, float]:
    """Acquire and release of `cards` cards, with `others` other leases in the area."""
    with fresh_area() as area:
        beside = [leases.acquire_lease(area, record(100 + n, (CARDS[7 - n],))) for n in range(others)]

        def cycle() -> None:
            held = leases.acquire_lease(area, record(1, CARDS[:cards]))
            assert isinstance(held, leases.HeldLease)
            held.release()

        found = measure(cycle, repeats)
        for lease in beside:
            assert isinstance(lease, leases.HeldLease)
            lease.release()
        return found


def bench_peers(repeats: int) -> dict[str, dict[str, float] | str]:
    """The same cycle with peers: one card, one client, nothing else going on."""
    found: dict[str, dict[str, float] | str] = {}
    with fresh_area() as area:
        try:
            # Not a dependency, so not typed: measured where somebody installed it.
            from gpu_gate.lock import GpuClaim  # type: ignore[import-not-found]
        except ImportError:
            found["gpu-gate"] = "not installed"
        else:
            os.environ["GPU_GATE_LOCK_DIR"] = f"{area.directories[0]}/gpu-gate"

            def claim() -> None:
                with GpuClaim((0,)):
                    pass

            found["gpu-gate"] = measure(claim, repeats)
        try:
            from reslock import ResourcePool  # type: ignore[import-not-found]
        except ImportError:
            found["reslock"] = "not installed"
        else:
            pool = ResourcePool(f"{area.directories[0]}/reslock.json")
            pool.set_resources({"gpu": 8})

            def lease() -> None:
                pool.try_acquire(gpu=1).release()

            found["reslock"] = measure(lease, repeats)
    return found


def queued_ns() -> int:
    """How long this process has stood ready without a processor. Source: sched-stats.rst, second field, ns."""
    with open("/proc/self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1])


def client(area: LeaseArea, number: int, cycles: int, witnesses: str) -> dict[str, Any]:
    """One client of the storm: `cycles` granted leases on random cards, a quarter of them on two cards.

    Each grant is timed three times: by the wall clock; without the time that the client stood ready while others had
    the processors (``own``), which on a machine with fewer cores than clients is most of it; and in CPU time, which
    leaves out the short pauses too in which a client waits for the passing tries of others.
    """
    draw = random.Random(number)
    granted, refused, doubles = 0, 0, 0
    times: list[float] = []
    own_times: list[float] = []
    cpu_times: list[float] = []
    while granted < cycles:
        devices = tuple(draw.sample(CARDS, 2 if draw.random() < 0.25 else 1))
        lease = record(number, devices)
        used, queued, begin = time.process_time(), queued_ns(), time.perf_counter()
        outcome = leases.acquire_lease(area, lease)
        taken, queued_taking, used = time.perf_counter(), queued_ns() - queued, time.process_time() - used
        if not isinstance(outcome, leases.HeldLease):
            refused += 1
            continue
        made = []
        for device in devices:
            path = f"{witnesses}/{device.index}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                made.append(path)
            except FileExistsError:
                doubles += 1
        # Give the others the processor while the cards are ours: this is where a double grant would show.
        os.sched_yield()
        for path in made:
            os.unlink(path)
        using, queued, released = time.process_time(), queued_ns(), time.perf_counter()
        outcome.release()
        cpu_times.append(used + time.process_time() - using)
        times.append(taken - begin + time.perf_counter() - released)
        own_times.append(times[-1] - (queued_taking + queued_ns() - queued) / 1e9)
        granted += 1
    counts = {"granted": granted, "refused": refused, "doubles": doubles}
    return {**counts, "times": times, "own_times": own_times, "cpu_times": cpu_times}


def bench_storm(clients: int, cycles: int) -> dict[str, Any]:
    """Many processes on eight cards until `cycles` leases were granted in total."""
    with fresh_area() as area:
        witnesses = tempfile.mkdtemp(dir=os.path.dirname(area.directories[0]))
        share = [cycles // clients + (number < cycles % clients) for number in range(clients)]
        begin, pipes = time.perf_counter(), []
        for number in range(clients):
            reader, writer = os.pipe()
            if os.fork() == 0:
                code = 1
                try:
                    result = client(area, number, share[number], witnesses)
                    with os.fdopen(writer, "w") as file:
                        json.dump(result, file)
                    code = 0
                finally:
                    os._exit(code)
            os.close(writer)
            pipes.append(reader)
        results = []
        for reader in pipes:
            with os.fdopen(reader) as file:
                results.append(json.load(file))
        for _ in range(clients):
            os.wait()
        wall_s = time.perf_counter() - begin
    total = {key: sum(result[key] for result in results) for key in ("granted", "refused", "doubles")}
    wall, own, cpu = (
        describe([seconds for result in results for seconds in result[key]])
        for key in ("times", "own_times", "cpu_times")
    )
    return {
        "clients": clients,
        "cards": 8,
        **total,
        "wall_s": round(wall_s, 1),
        **wall,
        "own_p50_ms": own["p50_ms"],
        "cpu_p50_ms": cpu["p50_ms"],
        "cpu_p95_ms": cpu["p95_ms"],
    }


def start(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork `work`, which writes to the descriptor it is given; answers its pid and what to read."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def bench_hand_over(kill: bool, line: int, repeats: int) -> dict[str, float]:  # noqa: FBT001 - two ways to let go
    """From the end of a holder (release or SIGKILL) to the grant of the first of `line` waiting processes."""
    with fresh_area() as area:
        return describe([_hand_over_once(area, line, kill=kill) for _ in range(repeats)])


def _hand_over_once(area: LeaseArea, line: int, *, kill: bool) -> float:
    def hold(writer: int) -> None:
        held = leases.acquire_lease(area, record(1, CARDS[:1]))
        assert isinstance(held, leases.HeldLease)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        os.write(writer, b"held\n")
        signal.sigwait({signal.SIGUSR1})
        begin = time.monotonic_ns()
        held.release()
        os.write(writer, b"%d\n" % begin)

    def wait(number: int) -> Callable[[int], None]:
        def work(writer: int) -> None:
            waiter = Waiter(area, record(number, CARDS[:1]), CARDS[:1], 1)
            waiter.ready()
            os.write(writer, b"waiting\n")
            while True:
                select.select([waiter], [], [], wait_s(waiter, clock.monotonic_s() + 60))
                if not waiter.ready():
                    continue
                held = waiter.acquire(record(number, CARDS[:1]))
                if isinstance(held, leases.HeldLease):
                    os.write(writer, b"%d\n" % time.monotonic_ns())
                    return

        return work

    holder, told = start(hold)
    assert os.read(told, 64) == b"held\n"
    waiters = []
    for number in range(line):
        waiters.append(start(wait(10 + number)))
        assert os.read(waiters[-1][1], 64) == b"waiting\n"
    begin = time.monotonic_ns()
    os.kill(holder, signal.SIGKILL if kill else signal.SIGUSR1)
    os.waitpid(holder, 0)
    if not kill:
        begin = int(os.read(told, 64))
    got = int(os.read(waiters[0][1], 64))
    for pid, reader in waiters:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
    os.close(told)
    return (got - begin) / 1e9


def main() -> int:
    """Measure everything and print it; exit 1 after a double grant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--cycles", type=int, default=10_000, help="granted leases in the storm, all clients together")
    parser.add_argument("--repeats", type=int, default=1_000, help="cycles of one client alone")
    parser.add_argument("--hand-overs", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "cycle, 1 card": bench_cycle(1, 0, options.repeats),
        "cycle, 1 card beside 7 leases": bench_cycle(1, 7, options.repeats),
        "cycle, 8 cards": bench_cycle(8, 0, options.repeats),
    }
    found |= {f"cycle, 1 card, {name}": result for name, result in bench_peers(options.repeats).items()}
    found["hand-over, release, 1 waiter"] = bench_hand_over(False, 1, options.hand_overs)
    found["hand-over, release, 16 waiters"] = bench_hand_over(False, 16, options.hand_overs)
    found["hand-over, SIGKILL, 1 waiter"] = bench_hand_over(True, 1, options.hand_overs)
    found["storm"] = bench_storm(options.clients, options.cycles)
    if options.json:
        json.dump({"schema": 1, "results": found}, sys.stdout, indent=1)
        print()
    else:
        for name, result in found.items():
            values = result if isinstance(result, str) else "  ".join(f"{key} {value}" for key, value in result.items())
            print(f"{name:34} {values}", flush=True)
    return 1 if found["storm"]["doubles"] else 0


if __name__ == "__main__":
    sys.exit(main())
