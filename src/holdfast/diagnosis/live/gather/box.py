"""The box around a process tree: CPU time, load, pressure, and the tree's control groups, as counters so far.

All of it is in /proc and /sys/fs/cgroup, which always answer. Source: proc_stat(5), proc_loadavg(5), the kernel's
Documentation/accounting/psi.rst, cgroup-v2.rst and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os

from holdfast.host.contain.create import read_effective
from holdfast.host.contain.group import is_frozen
from holdfast.model.pattern import compile_later
from holdfast.model.record import field, record

_PART = compile_later(r"^(?:loop|ram|zram|sr)\d|^(?:[shv]d[a-z]+|xvd[a-z]+)\d+$|^(?:nvme\d+n\d+|mmcblk\d+)p\d+$")
"""Parts of disks, and what is no disk."""


@record
class GroupFacts:
    """One control group directory, counters so far; None is "not readable here". Memory in bytes, times in seconds."""

    path: str
    cpu_s: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    oom_kills: int | None = None
    memory_high: int | None = None
    memory_full_s: float | None = None
    frozen: bool | None = None


@record
class BoxCounters:
    """The host's counters at one moment. `busy_s`, `steal_s` and pressures are seconds so far, over all CPUs.

    `disk_busy_s` says for each disk how long it had requests. `pressure` has ``cpu.some``, ``io.full`` and so on; a box
    without pressure counters has none, with why in `unread`.
    """

    cpus: int = 1
    busy_s: float | None = None
    steal_s: float | None = None
    load: float | None = None
    pressure: dict[str, float] = field(default_factory=dict)
    groups: tuple[GroupFacts, ...] = ()
    allowed_cpus: float | None = None
    quota_cpus: float | None = None
    disk_busy_s: dict[str, float] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def look_at_box(group_dirs: tuple[str, ...] = (), pid: int | None = None, *, proc: str = "/proc") -> BoxCounters:
    """The host's counters, those of these control groups, and how many CPUs the process `pid` may use."""
    unread: list[str] = []
    cpus, busy_s, steal_s = _read_cpu_times(f"{proc}/stat", unread)
    limits = read_effective(pid, proc=proc)
    unread += [f"{path} (it may hold a smaller limit)" for path in limits.unreadable[:3]]
    return BoxCounters(
        cpus=cpus,
        busy_s=busy_s,
        steal_s=steal_s,
        load=_read_load(f"{proc}/loadavg", unread),
        pressure=_read_pressures(f"{proc}/pressure", unread),
        groups=tuple(_read_group(directory) for directory in group_dirs),
        allowed_cpus=limits.cpus,
        quota_cpus=limits.cpu_quota,
        disk_busy_s=_read_disks(f"{proc}/diskstats"),
        unread=tuple(unread),
    )


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _read_cpu_times(path: str, unread: list[str]) -> tuple[int, float | None, float | None]:
    text = _text(path)
    if text is None:
        unread.append(path)
        return os.cpu_count() or 1, None, None
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    ticks = os.sysconf("SC_CLK_TCK")
    numbers = [int(word) for word in lines[0][1:9]]
    # user nice system idle iowait irq softirq steal
    busy = sum(numbers[:3]) + sum(numbers[5:7])
    return max(1, len(lines) - 1), busy / ticks, numbers[7] / ticks if len(numbers) > 7 else None


def _read_load(path: str, unread: list[str]) -> float | None:
    text = _text(path)
    if text is None:
        unread.append(path)
        return None
    return float(text.split()[0])


def _read_disks(path: str) -> dict[str, float]:
    """Seconds in which each whole disk had requests. Source: the kernel's Documentation/admin-guide/iostats.rst."""
    rows = [line.split() for line in (_text(path) or "").splitlines()]
    named = {row[2]: int(row[12]) / 1e3 for row in rows if len(row) > 12 and row[12].isdigit()}
    return {name: busy for name, busy in named.items() if not _PART.search(name)}


def _parse_pressure(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        words = line.split()
        total = next((word[6:] for word in words if word.startswith("total=")), "")
        if total.isdigit():
            found[words[0]] = int(total) / 1e6
    return found


def _read_pressures(directory: str, unread: list[str]) -> dict[str, float]:
    found = {}
    for name in ("cpu", "io", "memory"):
        text = _text(f"{directory}/{name}")
        if text is None:
            unread.append(f"{directory}/{name}")
            continue
        found.update({f"{name}.{kind}": value for kind, value in _parse_pressure(text).items()})
    return found


def _table(path: str) -> dict[str, int]:
    rows = (line.partition(" ") for line in (_text(path) or "").splitlines())
    return {name: int(value) for name, _, value in rows if value.strip().isdigit()}


def _number(path: str) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None


def _read_group(directory: str) -> GroupFacts:
    """One directory of a v1 or v2 tree: files of the other kind are absent and leave None."""
    cpu, events = _table(f"{directory}/cpu.stat"), _table(f"{directory}/memory.events")
    throttled = cpu.get("throttled_usec", cpu["throttled_time"] / 1e3 if "throttled_time" in cpu else None)
    spent_ns = _number(f"{directory}/cpuacct.usage")
    limit = _number(f"{directory}/memory.max")
    used = _number(f"{directory}/memory.current")
    kills = events.get("oom_kill", _table(f"{directory}/memory.oom_control").get("oom_kill"))
    return GroupFacts(
        path=directory,
        cpu_s=cpu["usage_usec"] / 1e6 if "usage_usec" in cpu else None if spent_ns is None else spent_ns / 1e9,
        periods=cpu.get("nr_periods"),
        throttled_periods=cpu.get("nr_throttled"),
        throttled_s=None if throttled is None else throttled / 1e6,
        memory_bytes=used if used is not None else _number(f"{directory}/memory.usage_in_bytes"),
        memory_limit_bytes=limit if limit is not None else _number(f"{directory}/memory.limit_in_bytes"),
        oom_kills=kills,
        memory_high=events.get("high"),
        memory_full_s=_parse_pressure(_text(f"{directory}/memory.pressure") or "").get("full"),
        frozen=is_frozen(directory),
    )
