"""Where a process sits in the control-group hierarchies, and which limits really hold for it.

Theory. A box has a v2 tree, or v1 trees (one or more controllers each), or both ("hybrid"). A process's place is
``/proc/PID/cgroup`` read through the mounts of ``/proc/self/mountinfo``: the path there counts from the root of our
cgroup namespace, and a mount may show only a part of the tree, so the mount's own root is taken off first. A limit
holds when any ancestor has it; the smallest wins (PRE-08). "max", -1 and the v1 numbers near 2^63 mean none (B-22). A
level that cannot be read is named in `unreadable`: it is not evidence of no limit.

It only reads. Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/*; tested on Linux 6.18
(hybrid) and 6.1 (pure v2, pure v1).
"""

from __future__ import annotations

import errno
import os

from holdfast.host.files.filesystems import unescape
from holdfast.model.record import field, record

V1_CONTROLLERS = frozenset(
    {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "net_cls", "net_prio", "perf_event",
     "hugetlb", "rdma", "misc"}
)  # fmt: skip
NO_LIMIT_V1 = 1 << 60
"""From here on a v1 byte limit means none: the kernel prints 2^63 rounded down to a page."""


@record
class CgroupPlace:
    """Where a process sits in one mounted hierarchy.

    `path` is the directory of its cgroup, `mount` the mount point above it. `exact` is False when the cgroup lies
    outside of what the mount shows (a container with the host's paths): then `path` is the mount point itself.
    """

    version: int
    controllers: tuple[str, ...]
    mount: str
    path: str
    exact: bool = True

    def ancestors(self) -> list[str]:
        """The directories from the process's own cgroup up to the mount point."""
        levels, current = [self.path], self.path
        while current != self.mount and current.startswith(self.mount + "/"):
            current = current.rpartition("/")[0]
            levels.append(current)
        return levels


@record
class Hierarchies:
    """A process's places: in the v2 tree (None where it is not mounted) and in each v1 tree."""

    unified: CgroupPlace | None
    v1: tuple[CgroupPlace, ...]

    def v1_place(self, controller: str) -> CgroupPlace | None:
        """The place in the v1 tree that has `controller`."""
        return next((place for place in self.v1 if controller in place.controllers), None)

    def describe(self) -> str:
        """For people: which kind of tree this box has."""
        if self.unified is None:
            return "cgroup v1" if self.v1 else "no cgroups mounted"
        return "cgroup v1 and v2 (hybrid)" if self.v1 else "cgroup v2"


@record
class EffectiveLimits:
    """What a process may use at most. None is "no limit found".

    `cpu_quota` is in cores (1.5 is one and a half), `cpus_allowed` counts the CPUs of its affinity mask (which the
    kernel keeps inside its cpuset); `tasks` counts threads. `sources` says which file gave each limit, `unreadable`
    which files might have held a smaller one.
    """

    memory_bytes: int | None = None
    memory_high_bytes: int | None = None
    cpu_quota: float | None = None
    cpus_allowed: int | None = None
    tasks: int | None = None
    sources: dict[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @property
    def cpus(self) -> float | None:
        """How many cores' worth of time it can get: the smaller of quota and allowed CPUs."""
        known = [value for value in (self.cpu_quota, self.cpus_allowed) if value is not None]
        return min(known) if known else None


@record
class _Mount:
    version: int
    controllers: tuple[str, ...]
    root: str
    point: str


def find_cgroups(pid: int | None = None, *, proc: str = "/proc") -> Hierarchies:
    """The places of one process (ourselves when `pid` is None). `proc` is another /proc for tests.

    A process or table that cannot be read has no places.
    """
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mounts(file.read())
        with open(f"{proc}/{pid or 'self'}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            paths = parse_membership(file.read())
    except OSError:
        return Hierarchies(None, ())
    unified: CgroupPlace | None = None
    v1: dict[tuple[str, ...], CgroupPlace] = {}
    for mount in mounts:
        own = paths.get("") if mount.version == 2 else next((paths[c] for c in mount.controllers if c in paths), None)
        if own is None:
            continue
        place = _locate(mount, own)
        if mount.version == 2:
            unified = _better(unified, place)
        else:
            v1[mount.controllers] = _better(v1.get(mount.controllers), place)
    return Hierarchies(unified, tuple(v1.values()))


def _better(known: CgroupPlace | None, found: CgroupPlace) -> CgroupPlace:
    # Of several mounts of one tree, the one that shows our own place, then the one that shows most above it.
    if known is None:
        return found
    rank = (found.exact, len(found.ancestors()))
    return found if rank > (known.exact, len(known.ancestors())) else known


def _locate(mount: _Mount, own: str) -> CgroupPlace:
    root = mount.root.rstrip("/")
    inside = own == mount.root or own.startswith(root + "/")
    below = own[len(root) :].rstrip("/") if inside else ""
    # A path that climbs out of our cgroup namespace ("/../x") is not below the mount, whatever it begins with.
    if not inside or "/.." in below:
        return CgroupPlace(mount.version, mount.controllers, mount.point, mount.point, exact=False)
    return CgroupPlace(mount.version, mount.controllers, mount.point, mount.point + below)


def parse_mounts(text: str) -> list[_Mount]:
    """The cgroup mounts in a mountinfo table. Source: proc_pid_mountinfo(5)."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = tuple(name for name in kinds[2].split(",") if name in V1_CONTROLLERS)
        version = 2 if kinds[0] == "cgroup2" else 1
        if version == 2 or controllers:
            found.append(_Mount(version, () if version == 2 else controllers, unescape(fields[3]), unescape(fields[4])))
    return found


def parse_membership(text: str) -> dict[str, str]:
    """Controller -> path from ``/proc/PID/cgroup``; the v2 tree has the empty name. Source: cgroups(7)."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, separator, path = rest.partition(":")
        # The kernel marks a cgroup that was removed under its last process.
        path = path.removesuffix(" (deleted)")
        if not separator:
            continue
        if number == "0" and not names:
            paths[""] = path
        paths.update((name, path) for name in names.split(",") if name and not name.startswith("name="))
    return paths


class _Reader:
    """Smallest limit so far, by name, with where it came from."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self.unreadable: list[str] = []

    def text(self, path: str) -> str | None:
        """A file's content; None when it is absent (no such controller at this level) or unreadable (then noted)."""
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                self.unreadable.append(path)
            return None

    def offer(self, name: str, value: float | None, path: str) -> None:
        if value is not None and value < self.values.get(name, float("inf")):
            self.values[name], self.sources[name] = value, path

    def whole(self, name: str) -> int | None:
        return int(self.values[name]) if name in self.values else None


def parse_limit(text: str | None) -> int | None:
    """A byte or task limit in any form the kernel writes: ``max``, -1 and v1's huge numbers are None."""
    if text is None or not text.isdigit():
        return None
    return None if int(text) >= NO_LIMIT_V1 else int(text)


def parse_quota(quota: str | None, period: str | None) -> float | None:
    """Cores from a quota and its period in microseconds; None when there is no quota."""
    if quota is None or period is None or not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def read_effective(pid: int | None = None, *, proc: str = "/proc") -> EffectiveLimits:
    """The limits that hold for a process (ourselves when None): the smallest of all levels (PRE-08, LIM-08)."""
    places, reader = find_cgroups(pid, proc=proc), _Reader()
    if places.unified is not None:
        for level in places.unified.ancestors():
            reader.offer("memory", parse_limit(reader.text(f"{level}/memory.max")), f"{level}/memory.max")
            reader.offer("memory_high", parse_limit(reader.text(f"{level}/memory.high")), f"{level}/memory.high")
            reader.offer("tasks", parse_limit(reader.text(f"{level}/pids.max")), f"{level}/pids.max")
            quota, _, period = (reader.text(f"{level}/cpu.max") or "").partition(" ")
            reader.offer("cpu_quota", parse_quota(quota, period), f"{level}/cpu.max")
    for place in places.v1:
        _read_v1(reader, place)
    try:
        allowed: int | None = len(os.sched_getaffinity(pid or 0))
    except OSError:
        allowed = None
    return EffectiveLimits(
        memory_bytes=reader.whole("memory"),
        memory_high_bytes=reader.whole("memory_high"),
        cpu_quota=reader.values.get("cpu_quota"),
        cpus_allowed=allowed,
        tasks=reader.whole("tasks"),
        sources=reader.sources,
        unreadable=tuple(reader.unreadable),
    )


def _read_v1(reader: _Reader, place: CgroupPlace) -> None:
    for level in place.ancestors():
        if "memory" in place.controllers:
            path = f"{level}/memory.limit_in_bytes"
            reader.offer("memory", parse_limit(reader.text(path)), path)
        if "cpu" in place.controllers:
            path = f"{level}/cpu.cfs_quota_us"
            reader.offer("cpu_quota", parse_quota(reader.text(path), reader.text(f"{level}/cpu.cfs_period_us")), path)
        if "pids" in place.controllers:
            path = f"{level}/pids.max"
            reader.offer("tasks", parse_limit(reader.text(path)), path)
    if "memory" in place.controllers:
        # v1 tells the smallest limit above us even where the mount hides the levels above.
        path = f"{place.path}/memory.stat"
        for line in (reader.text(path) or "").splitlines():
            if line.startswith("hierarchical_memory_limit "):
                reader.offer("memory", parse_limit(line.split()[1]), path)
