"""Which mechanism holds each limit of a job, and setting those that the job's own process carries.

Theory. A limit is held by the run's control group where one could be set (`create_group` wrote it and read it back),
else by the next best thing, which is named: the supervisor's watchdog for memory and tasks (it samples the whole tree
and ends it), CPU affinity for cores, an rlimit for open files. What nothing can hold is listed as unenforceable with
the reason, and preflight decides; no limit silently does nothing.

Never set: RLIMIT_AS (CUDA reserves address space far beyond its memory, B-44), RLIMIT_CPU (counts the seconds of all
threads together), RLIMIT_RSS (does nothing since Linux 2.4.30), RLIMIT_FSIZE (kills saves), RLIMIT_NPROC (counts all of
a user's processes on the box). No process is throttled by stop and continue signals (B-73).
"""

from __future__ import annotations

import errno
import math
import os
import resource
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.job.limits import Mechanism
from holdfast.host.process import libc
from holdfast.model.job import Limits, Priority
from holdfast.model.record import record

if TYPE_CHECKING:
    from .create import ControlGroup

NICE_LOW = 10
NICE_BACKGROUND = 19
NO_SWAP = "no control group holds the memory limit, so nothing can count its swap"
IO_LEVEL_LOW = 7


@record
class LimitInForce:
    """One limit that was asked for: its name in the job file, the value, what holds it, and what to know about that.

    With Mechanism.NONE it does not hold, and `detail` says why.
    """

    name: str
    asked: str
    mechanism: Mechanism
    detail: str = ""


@record
class LimitPlan:
    """Every limit asked for, and what the job's process must set on itself before exec.

    `open_files` is the RLIMIT_NOFILE to set (soft and hard), `cpus` the CPU numbers to bind to (empty: leave alone),
    `nice` the least nice value, `io_level` the best-effort level; None leaves them alone.
    """

    limits: tuple[LimitInForce, ...] = ()
    open_files: int | None = None
    cpus: tuple[int, ...] = ()
    nice: int | None = None
    io_level: int | None = None

    @property
    def unenforceable(self) -> tuple[LimitInForce, ...]:
        """The limits that nothing here can hold."""
        return tuple(limit for limit in self.limits if limit.mechanism is Mechanism.NONE)

    @property
    def watched(self) -> tuple[str, ...]:
        """The limits that hold only while the supervisor's watchdog looks: ``memory``, ``memory_high``, ``tasks``."""
        return tuple(limit.name for limit in self.limits if limit.mechanism is Mechanism.WATCHDOG)

    def mechanism_of(self, name: str) -> Mechanism | None:
        """What holds one limit; None when it was not asked for."""
        return next((limit.mechanism for limit in self.limits if limit.name == name), None)


def plan_limits(
    limits: Limits,
    group: ControlGroup | None,
    *,
    priority: Priority = Priority.LOW,
    nice: int = NICE_LOW,
    spread: str = "",
) -> LimitPlan:
    """Name the mechanism for each limit asked for.

    Args:
        limits: What the job asks for.
        group: The run's control group with its limits already set, or None when none could be made.
        priority: LOW is `nice` and best-effort level 7 (ETIQ-01), BACKGROUND nice 19 and that level; NORMAL leaves
            both alone, and so does AUTO, which whoever starts the job has decided by then.
        nice: What LOW means on this box (10, unless its rules file says otherwise).
        spread: The run's id: runs bound to few CPUs start at different ones, so that they do not pile up on CPU 0.
    """
    found = []
    for name, asked in _asked(limits):
        mechanism, detail = _hold(name, group)
        found.append(LimitInForce(name, asked, mechanism, detail))
    by_group = group is not None and "cpus" in group.enforced
    cpus, notes = _choose_cpus(limits, spread, quota_held=by_group)
    found += notes
    open_files, note = _plan_open_files(limits.open_files)
    low = priority in {Priority.LOW, Priority.BACKGROUND}
    nice = NICE_BACKGROUND if priority is Priority.BACKGROUND else nice
    return LimitPlan(
        limits=(*found, *note),
        open_files=open_files,
        cpus=cpus,
        nice=nice if low else None,
        io_level=IO_LEVEL_LOW if low else None,
    )


def _asked(limits: Limits) -> list[tuple[str, str]]:
    values = {
        "memory": limits.memory_bytes,
        "memory_high": limits.memory_high_bytes,
        "swap": limits.swap_bytes,
        "cpus": limits.cpus,
        "cpu_weight": limits.cpu_weight,
        "tasks": limits.tasks,
    }
    return [
        (name, f"{value:g}" if name == "cpus" else str(value)) for name, value in values.items() if value is not None
    ]


def _hold(name: str, group: ControlGroup | None) -> tuple[Mechanism, str]:
    if group is not None and name in group.enforced:
        return Mechanism(group.enforced[name]), ""
    why = (
        "no control group can be made here"
        if group is None
        else group.refused.get(name, NO_SWAP if name == "swap" else "it was not asked of the group")
    )
    if name in ("memory", "memory_high", "tasks"):
        return (
            Mechanism.WATCHDOG,
            f"{why}; the supervisor samples the whole tree, a burst between two samples can exceed it",
        )
    if name == "cpus":
        return Mechanism.AFFINITY, f"{why}; the job is bound to whole CPUs, shared with whoever else runs there"
    return Mechanism.NONE, why


def _choose_cpus(limits: Limits, spread: str, *, quota_held: bool) -> tuple[tuple[int, ...], list[LimitInForce]]:
    allowed = sorted(os.sched_getaffinity(0))
    notes: list[LimitInForce] = []
    if limits.affinity:
        asked = ",".join(str(cpu) for cpu in limits.affinity)
        usable = [cpu for cpu in allowed if cpu in limits.affinity]
        missing = sorted(set(limits.affinity) - set(usable))
        detail = f"not available here: CPU {', '.join(map(str, missing))}" if missing else ""
        mechanism = Mechanism.NONE if missing else Mechanism.AFFINITY
        notes.append(LimitInForce("affinity", asked, mechanism, detail))
        allowed = usable or allowed
        if not usable:
            return (), notes
    if limits.cpus is None or quota_held:
        return (tuple(allowed) if limits.affinity else ()), notes
    count = min(len(allowed), max(1, math.ceil(limits.cpus)))

    first = 0 if limits.affinity else zlib.crc32(spread.encode()) % len(allowed)
    return tuple(sorted((allowed + allowed)[first : first + count])), notes


def _plan_open_files(asked: int | None) -> tuple[int | None, tuple[LimitInForce, ...]]:
    if asked is None:
        return None, ()

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard in (resource.RLIM_INFINITY, asked) or asked < hard:
        return asked, (LimitInForce("open_files", str(asked), Mechanism.RLIMIT),)
    if os.geteuid() == 0 and asked <= _most_open_files():
        return asked, (LimitInForce("open_files", str(asked), Mechanism.RLIMIT, f"raised from the hard limit {hard}"),)
    detail = f"the hard limit here is {hard}, and only an administrator can raise it (limits.conf, LimitNOFILE=)"
    return hard, (LimitInForce("open_files", str(asked), Mechanism.NONE, detail),)


def _most_open_files() -> int:
    with open("/proc/sys/fs/nr_open", encoding="ascii") as file:
        return int(file.read())


def apply_in_child(plan: LimitPlan) -> tuple[str, ...]:
    """Set on the calling process what its plan says; for the job, between fork and exec.

    Returns:
        For people: what could not be done to the priorities (a sandbox without the call). Empty when all stands.

    Raises:
        OSError: a limit that preflight promised could not be set: the job must not start.
    """
    problems = []
    if plan.nice is not None:
        # Only ever nicer: who started us nicer than this meant it.
        nice = max(plan.nice, os.getpriority(os.PRIO_PROCESS, 0))
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError as error:
            problems.append(f"nice {nice} could not be set: {error.strerror}")
    if plan.io_level is not None:
        try:
            libc.set_io_priority(libc.IOPRIO_BEST_EFFORT, plan.io_level)
        except OSError as error:
            problems.append(f"I/O priority could not be set: {error.strerror}")
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    if plan.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan.open_files, plan.open_files))
    return tuple(problems)


def apply_to_others(pids: Iterable[int], plan: LimitPlan) -> tuple[str, ...]:
    """Set priority and CPUs on processes that somebody else has started; what could not be done, for people."""
    problems = []
    for pid in pids:
        try:
            if plan.nice is not None:
                os.setpriority(os.PRIO_PROCESS, pid, plan.nice)
            if plan.cpus:
                os.sched_setaffinity(pid, plan.cpus)
            if plan.io_level is not None:
                libc.set_io_priority(libc.IOPRIO_BEST_EFFORT, plan.io_level, pid=pid)
        except OSError as error:
            problems.append(f"pid {pid} keeps its priority: {error.strerror}")
    return tuple(problems)


@record
class TreeMemory:
    """Memory of a set of processes without a control group's help, in bytes.

    `exact` tells shared pages counted once (proportional set size plus swap) from resident sizes added up, which count
    them once per process and are therefore an upper bound. `unreadable` counts processes that exist and did not say.
    """

    memory_bytes: int
    exact: bool
    unreadable: int = 0


def read_tree_memory(pids: Iterable[int], *, limit_bytes: int | None = None) -> TreeMemory:
    """What the whole tree holds (LIM-04), as cheaply as the question allows.

    Resident sizes cost one short file each; proportional sizes make the kernel walk page tables (about a millisecond
    per GiB). With `limit_bytes` the exact figure is taken only when the upper bound exceeds it, which settles most
    samples; without it always.
    """
    listed = tuple(pids)
    if limit_bytes is not None:
        rough = _add_up(listed, exact=False)
        if rough.memory_bytes <= limit_bytes and not rough.unreadable:
            return rough
    return _add_up(listed, exact=True)


def _add_up(pids: tuple[int, ...], *, exact: bool) -> TreeMemory:
    total, unreadable, all_exact = 0, 0, exact
    for pid in pids:
        try:
            total += _read_proportional(pid) if exact else _read_resident(pid)
        except PermissionError:
            # Proportional sizes need the right to trace the process; resident ones everybody may read.
            all_exact = False
            try:
                total += _read_resident(pid)
            except OSError:
                unreadable += 1
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                unreadable += 1
    return TreeMemory(total, all_exact, unreadable)


def _read_resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read_proportional(pid: int) -> int:
    total = 0
    with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith((b"Pss:", b"SwapPss:")):
                total += int(line.split()[1]) * 1024
    return total
