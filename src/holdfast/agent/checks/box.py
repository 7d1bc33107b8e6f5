"""Checks of the box: memory, limits, containment, process limits, a fair share (PRE-08, PRE-19, PRE-22)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from holdfast.agent.plan.systemd_scope import plan_scope
from holdfast.agent.view.runs.leftovers import Leftovers, find_leftovers
from holdfast.core.job.limits import BoxShare, Mechanism, judge_share
from holdfast.host.contain import create
from holdfast.host.contain.containment import choose_level
from holdfast.host.contain.create import read_effective
from holdfast.host.contain.limits import plan_limits
from holdfast.host.process.processes import iterate_marked
from holdfast.model.finding import Finding
from holdfast.model.job import IsolationLevel, UnenforcedPolicy
from holdfast.model.units import format_bytes

from .context import CheckContext, failed, passed, unknown, warned

FEW_OPEN_FILES = 1024
"""Data loaders open one socket and several files per worker; the usual default is 1024 and wanted is more."""
FEW_PROCESSES = 512
SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
SMALL_SHM_BYTES = 256 * 1024**2
"""A container's default of 64 MiB ends in "bus error" in the first loader with workers."""


def check_memory(situation: CheckContext) -> Iterator[Finding]:
    """The memory ceiling of our own place in the cgroup tree, against what the job asks for (PRE-08)."""
    limits = read_effective()
    asked = situation.spec.limits.memory_bytes
    if limits.memory_bytes is None:
        total = _read_meminfo("MemTotal")
        seen = "no cgroup limits it" + (f"; the box has {format_bytes(total)}" if total is not None else "")
        ceiling = total
    else:
        ceiling = limits.memory_bytes
        seen = f"the ceiling here is {format_bytes(ceiling)} ({limits.sources.get('memory', 'cgroup')})"
    if limits.unreadable:
        yield unknown(
            "memory", "memory", f"{seen}; not readable: {', '.join(limits.unreadable)}", "ask an administrator"
        )
    elif asked is not None and ceiling is not None and asked > ceiling:
        evidence = f"asks for a limit of {format_bytes(asked)}, {seen}"
        yield warned(
            "memory", "limits.memory", evidence, f"ask for {format_bytes(ceiling)} at most; the ceiling ends it first"
        )
    else:
        yield passed("memory", "memory", seen)


def _read_meminfo(key: str) -> int | None:
    """One line of /proc/meminfo in bytes. Source: proc_meminfo(5); its kB are 1024 bytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def check_share(situation: CheckContext) -> Iterator[Finding]:
    """Threads, cores and memory asked for, against a fair share of this box (ETIQ-07)."""
    spec, limits = situation.spec, read_effective()
    cpus = limits.cpus or float(len(os.sched_getaffinity(0)))
    cards = len(situation.inventory.cards) if situation.inventory is not None else 0
    share = BoxShare(
        cpus=cpus,
        memory_bytes=limits.memory_bytes or _read_meminfo("MemTotal"),
        free_memory_bytes=_read_meminfo("MemAvailable"),
        cards=cards,
        cards_asked=spec.gpus.wanted,
    )
    stated = situation.job_environ.get("OMP_NUM_THREADS", "")
    threads = spec.threads or (int(stated) if stated.isascii() and stated.isdigit() else None)
    warnings = judge_share(share, threads=threads, cpus=spec.limits.cpus, memory_bytes=spec.limits.memory_bytes)
    for text in warnings:
        yield warned("share", "fair share", text, "ask for less: other people's jobs run here too")
    if not warnings:
        cores = "1 core" if cpus == 1 else f"{cpus:g} cores"
        yield passed("share", "fair share", f"{cores} here; the job asks for no more than its share")


def check_limits(situation: CheckContext) -> Iterator[Finding]:
    """Every limit that the job names can be held by something here; tried on a control group that is removed again."""
    asked = situation.spec.limits
    if asked == type(asked)(unenforced=asked.unenforced):
        return

    group = create.create_group(f"preflight-{os.getpid()}-{os.urandom(3).hex()}", asked)
    try:
        plan = plan_limits(asked, group)
    finally:
        if group is not None:
            group.remove()

    prospect = plan_scope(asked, plan, root=situation.root)
    if prospect.finding is not None:
        yield prospect.finding
    report = warned if asked.unenforced is UnenforcedPolicy.WARN else failed
    for limit in plan.limits:
        subject = f"limits.{limit.name}"
        if limit.name in prospect.holds:
            yield passed("limits", subject, f"{limit.asked}, to be held by {Mechanism.SYSTEMD_SCOPE.value}")
        elif limit.mechanism.value == "none":
            accept = "--limit-unenforced warn (in a job file limits: {unenforced: warn})"
            remedy = f"remove it, have cgroups delegated, or accept it: {accept}"
            yield report("limits", subject, f"{limit.asked}: nothing here can hold it ({limit.detail})", remedy)
        else:
            detail = f" ({limit.detail})" if limit.detail else ""
            yield passed("limits", subject, f"{limit.asked}, held by {limit.mechanism.value}{detail}")


def check_containment(situation: CheckContext) -> Iterator[Finding]:
    """The level of the containment ladder that the run will stand on."""
    wanted = situation.spec.containment
    chosen = choose_level(wanted)
    if chosen.level is None:
        remedy = "choose another level, or containment: auto"
        yield failed("containment", wanted.value, chosen.describe(), remedy)
    elif chosen.level is IsolationLevel.PROCESS_GROUP:
        seen = f"only {chosen.describe()}: what leaves its process group is found by its marker only"
        yield warned("containment", chosen.level.value, seen, "have user namespaces or cgroup delegation allowed here")
    else:
        yield passed("containment", chosen.level.value, chosen.describe())


def check_process_limits(situation: CheckContext) -> Iterator[Finding]:
    """Inherited limits that break training: address space, open files, processes, file size, CPU time (PRE-19)."""
    spec = situation.spec
    infinity = resource.RLIM_INFINITY
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != infinity:
        seen = f"an address-space limit of {format_bytes(space)} is set (ulimit -v)"
        if spec.gpus.wanted:
            why = f"{seen}; CUDA reserves far more address space than memory and fails to initialise"
            yield failed(
                "rlimits.address_space", "RLIMIT_AS", why, "ulimit -v unlimited; limit memory with limits.memory"
            )
        else:
            yield warned(
                "rlimits.address_space", "RLIMIT_AS", seen, "ulimit -v unlimited; limit memory with limits.memory"
            )
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != infinity:
        report = failed if size < max(spec.disk.checkpoint_bytes, 1024**2) else warned
        seen = f"a file-size limit of {format_bytes(size)} is set (ulimit -f); a larger checkpoint ends the job"
        yield report("rlimits.file_size", "RLIMIT_FSIZE", seen, "ulimit -f unlimited")
    seconds = resource.getrlimit(resource.RLIMIT_CPU)[0]
    if seconds != infinity:
        seen = f"a limit of {seconds} CPU seconds is set (ulimit -t); all threads count, so it ends a job early"
        yield warned("rlimits.cpu_time", "RLIMIT_CPU", seen, "ulimit -t unlimited; use timeout")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != infinity and soft < FEW_OPEN_FILES and not spec.limits.open_files:
        more = min(4096, hard) if hard != infinity else 4096
        remedy = f"--limit-open-files {more} (in a job file limits: {{open_files: {more}}})"
        yield warned("rlimits.open_files", "RLIMIT_NOFILE", f"only {soft} open files are allowed (ulimit -n)", remedy)
    tasks = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if tasks != infinity and tasks < FEW_PROCESSES and os.geteuid() != 0:
        seen = f"only {tasks} processes and threads are allowed for this account (ulimit -u)"
        yield warned("rlimits.processes", "RLIMIT_NPROC", seen, "ulimit -u unlimited, or fewer workers")
    yield passed("rlimits", "process limits", f"open files {soft if soft != infinity else 'unlimited'}")


def check_shared_memory(situation: CheckContext) -> Iterator[Finding]:
    """Shared memory is large enough for data-loader workers (PRE-19)."""
    path = situation.root + SHM
    try:
        facts = os.statvfs(path)
    except OSError as error:
        yield unknown("shm", SHM, f"not told: {error.strerror}", "mount a tmpfs there for data-loader workers")
        return
    size = facts.f_blocks * facts.f_frsize
    if size < SMALL_SHM_BYTES and (situation.spec.gpus.wanted or _names_workers(situation.spec.command)):
        seen = f"is only {format_bytes(size)}: data-loader workers hand batches through it and end with a bus error"
        yield warned("shm", SHM, seen, "start the container with --shm-size=8g (or --ipc=host), or use 0 workers")
    else:
        yield passed("shm", SHM, f"{format_bytes(size)} large, {format_bytes(facts.f_bavail * facts.f_frsize)} free")


def _names_workers(command: tuple[str, ...]) -> bool:
    return any("num_workers" in word.replace("-", "_") or word in ("--workers", "-j") for word in command)


def check_leftovers(situation: CheckContext) -> Iterator[Finding]:
    """Processes of the account's own runs that have ended (PRE-22). Told by their marker, never by name."""
    if next(iterate_marked(os.geteuid()), None) is None:
        yield passed("leftovers", "earlier runs", "no process of this account belongs to a run")
        return

    yield from describe_leftovers(find_leftovers(except_dir=situation.run_dir))


def describe_leftovers(seen: Leftovers) -> Iterator[Finding]:
    """One finding for each ended run with living processes, and for each marked process that proves nothing."""
    pids: dict[str, list[int]] = {}
    for one in seen.found:
        pids.setdefault(one.run_id, []).append(one.process.pid)
    for run_id, members in sorted(pids.items()):
        listed = ", ".join(map(str, sorted(members)[:10]))
        text = f"has ended, and {len(members)} of its processes still run: {listed}"
        yield warned("leftovers", run_id, text, f"look at them (ps -fp {min(members)}), then: holdfast doctor --reap")
    for other in seen.spared:
        report = warned if other.orphaned else unknown
        text = f"process {other.pid} ({other.command[:60]}) carries this run's marker and is left alone: {other.why}"
        yield report("leftovers", other.run_id, text, f"look at it: ps -fp {other.pid}")
    if not pids and not seen.spared:
        yield passed("leftovers", "earlier runs", "none of this account's ended runs has a living process")
