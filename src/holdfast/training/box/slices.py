"""How much of the box this process may use, and the loader settings that fit into it (LIB-14).

The advice is for a start: few workers that surely fit. A loader that is seen to be the bottleneck gets more by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.model.record import record

GIB = 1024**3
WORKER_BYTES = GIB
"""What a worker and its prefetched batches are taken to need when nothing is known of the data."""
MOST_WORKERS = 8
"""More rarely help before it was measured that loading is what the training waits for."""
WORKERS_BLIND = 2
"""When the memory is not known."""
PREFETCH = 2
"""Batches that each worker prepares ahead; torch's own default."""
_NO_LIMIT = 1 << 60
# cgroup v1 says "no limit" by a number near 2^63. Source: Documentation/admin-guide/cgroup-v1/memory.rst.


@record
class Slice:
    """What this process and its children may use: cores, and bytes of memory (None: not known)."""

    cores: float
    memory_bytes: int | None


@record
class LoaderAdvice:
    """Arguments for a torch DataLoader, and why; `prefetch_factor` is None without workers, as torch wants it."""

    num_workers: int
    persistent_workers: bool
    pin_memory: bool
    prefetch_factor: int | None
    why: str


def advise_loader(
    cores: float, memory_bytes: int | None, gpus: int = 1, ranks: int = 1, *, bound: int | None = None
) -> LoaderAdvice:
    """Loader settings for each of `ranks` processes that share `cores` and `memory_bytes`.

    One core of each process's share stays with the trainer. Half of its memory, and at least 1 GiB, stays free for the
    trainer and the page cache; each worker is taken to need 1 GiB.

    Args:
        cores: Cores of the slice, may be a fraction.
        memory_bytes: Memory of the slice, None when not known: then 2 workers at most.
        gpus: Cards that the processes feed; batches are pinned only when there are any.
        ranks: Processes with a loader of their own.
        bound: The supervisor's bound on workers for each process (``HOLDFAST_WORKERS``), None without one.
    """
    ranks = max(ranks, 1)
    limits = {f"{cores / ranks:g} cores each, one for the trainer": max(0, int(cores / ranks) - 1)}
    if memory_bytes is None:
        limits["the memory is not known"] = WORKERS_BLIND
    else:
        each = memory_bytes // ranks
        usable = each - max(GIB, each // 2)
        limits[f"{each / GIB:.3g} GiB each, 1 GiB for a worker, half kept free"] = max(0, usable // WORKER_BYTES)
    if bound is not None:
        limits["the supervisor's bound"] = max(0, bound)
    limits["more only when loading is seen to be slow"] = MOST_WORKERS
    workers = min(limits.values())
    reason = next(reason for reason, limit in limits.items() if limit == workers)
    return LoaderAdvice(
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=gpus > 0,
        prefetch_factor=PREFETCH if workers else None,
        why=f"{workers} workers: {reason}",
    )


def measure_slice(*, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> Slice:
    """What this process may use: its CPU affinity and quota, the machine's memory and the limits of its cgroups.

    Every cgroup from our own up to the top counts, because a limit above us holds for us. In a container our own may
    be mounted as the top, so that the path that the kernel names is not there: its parents are tried all the same.
    """
    cores = float(len(os.sched_getaffinity(0)))
    memory = _read_total(f"{proc}/meminfo")
    for directory in _directories(f"{proc}/self/cgroup", groups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read_numbers(f"{directory}/{name}")
            if limit and 0 < limit[0] < _NO_LIMIT:
                memory = limit[0] if memory is None else min(memory, limit[0])
        quota = _read_numbers(f"{directory}/cpu.max")
        if len(quota) < 2:
            quota = [*_read_numbers(f"{directory}/cpu.cfs_quota_us"), *_read_numbers(f"{directory}/cpu.cfs_period_us")]
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:
            cores = min(cores, quota[0] / quota[1])
    return Slice(cores, memory)


def _directories(membership: str, groups: str) -> Iterator[str]:
    """The directories of our cgroups and of all above them, in the usual mounts of v2, v1 and both. cgroups(7)."""
    for line in _read_text(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        tops = [f"{groups}/{controllers}", *(f"{groups}/{one}" for one in controllers.split(","))]
        for top in dict.fromkeys(tops) if controllers else (groups, f"{groups}/unified"):
            parts = [part for part in path.split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                yield "/".join([top, *parts[:depth]])


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _read_numbers(path: str) -> list[int]:
    """The whole numbers of a kernel file; none when it cannot be read, or begins with ``max``."""
    numbers = []
    for word in _read_text(path).split():
        if not word.lstrip("-").isascii() or not word.lstrip("-").isdigit():
            return []
        numbers.append(int(word))
    return numbers


def _read_total(path: str) -> int | None:
    for line in _read_text(path).splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return None
