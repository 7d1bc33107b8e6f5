"""How much of the box a job should use: threads, data-loader workers, a fair share; and the names of limit mechanisms.

Pure arithmetic on numbers that `host` has read. It decides defaults and warnings; it enforces nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from holdfast.model.record import record
from holdfast.model.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.model.job import Limits

MOST_THREADS = 8
"""More threads per process than this rarely help a training process and hurt its neighbours (RAIL-06)."""
GIB = 1024**3
DEFAULT_WORKER_BYTES = GIB
"""What a data-loader worker is assumed to need when nothing is known of the dataset."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
"""The variables by which the usual libraries size their thread pools when they are loaded."""

CONTROLLERS = {
    "memory": "memory",
    "memory_high": "memory",
    "swap": "memory",
    "cpus": "cpu",
    "cpu_weight": "cpu",
    "tasks": "pids",
}
"""Which of the kernel's controllers holds each limit that a control group can hold."""


class Mechanism(str, Enum):
    """What holds a limit in place; NONE is "nothing can here"."""

    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    SYSTEMD_SCOPE = "systemd_scope"
    RLIMIT = "rlimit"
    AFFINITY = "affinity"
    WATCHDOG = "watchdog"
    CONTAINER = "container"
    NONE = "none"


def count_cores(limits: Limits, cores: float, allowed: Collection[int]) -> float:
    """The cores that a job has under its own limits, of `cores` that its place has on the CPUs `allowed`.

    CPUs that its affinity names and that are not there count for nothing; when none of them is, it is not bound.
    """
    if limits.affinity:
        cores = min(cores, len({*limits.affinity} & {*allowed}) or cores)
    return cores if limits.cpus is None else min(limits.cpus, cores)


def cap_threads(cpus: float, *, processes: int = 1) -> int:
    """Threads for each of `processes` on `cpus` cores: at most 8, never above the slice, at least 1 (RAIL-06)."""
    return max(1, min(MOST_THREADS, int(cpus / max(processes, 1))))


def bound_workers(
    cpus: float, memory_bytes: int | None, *, dataset_bytes: int | None = None, processes: int = 1
) -> int:
    """Data-loader workers for each of `processes` (RAIL-17); 0 means: load in the main process.

    By CPU: one core of each process's share stays with the trainer. By memory: a tenth of the slice (at least 1 GiB)
    stays free and each process holds the dataset once itself; a worker is taken to need as much as the dataset again,
    since copy-on-write pages of Python objects are copied as they are touched.
    """
    by_cpu = int(cpus / max(processes, 1)) - 1
    if memory_bytes is None:
        return max(0, by_cpu)
    each = dataset_bytes or DEFAULT_WORKER_BYTES
    usable = (memory_bytes - max(GIB, memory_bytes // 10)) // max(processes, 1) - each
    return max(0, min(by_cpu, usable // each))


@record
class BoxShare:
    """What the box has, and how much of it a job may count on.

    `cpus` and `memory_bytes` are what the job's place may use (limits applied, not the host's totals),
    `free_memory_bytes` what nobody uses now. `cards` and `cards_asked` give the fair part on a box with cards: its
    share of the cards.
    """

    cpus: float
    memory_bytes: int | None = None
    free_memory_bytes: int | None = None
    cards: int = 0
    cards_asked: int = 0

    @property
    def part(self) -> float:
        """The fair part, 0 < part <= 1: cards asked of all cards, the whole where cards do not decide."""
        if self.cards <= 0 or self.cards_asked <= 0:
            return 1.0
        return min(1.0, self.cards_asked / self.cards)


def judge_share(
    share: BoxShare, *, threads: int | None, cpus: float | None, memory_bytes: int | None
) -> tuple[str, ...]:
    """Warnings, for people, about a request above its fair share (ETIQ-07); none when the request is fair.

    `threads` is the sum over the job's processes, `cpus` and `memory_bytes` the limits asked for; None is "not asked".
    """
    fair_cpus, warnings = share.cpus * share.part, []
    of_cards = f" for {share.cards_asked} of {format_count(share.cards, 'card')}" if share.part < 1 else ""
    for what, asked in (("threads", threads), ("cores", cpus)):
        if asked is not None and asked > fair_cpus:
            cores = "1 core" if share.cpus == 1 else f"{share.cpus:g} cores"
            warnings.append(
                f"{asked:g} {what} asked for, the fair share is {fair_cpus:.3g} of {cores}{of_cards}: "
                "they would slow down each other and everybody else"
            )
    if memory_bytes is None:
        return tuple(warnings)
    if share.memory_bytes is not None and memory_bytes > share.memory_bytes * share.part:
        fair = share.memory_bytes * share.part
        warnings.append(
            f"{format_bytes(memory_bytes)} of memory asked for, the fair share is {format_bytes(int(fair))} of "
            f"{format_bytes(share.memory_bytes)}{of_cards}"
        )
    if share.free_memory_bytes is not None and memory_bytes > share.free_memory_bytes:
        warnings.append(
            f"{format_bytes(memory_bytes)} of memory asked for, {format_bytes(share.free_memory_bytes)} are free now"
        )
    return tuple(warnings)
