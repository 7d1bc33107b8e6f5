"""Records the box's counters at launch: a later difference is evidence, an absolute number is not (DIAG-02).

Plain values, for the manifest; the same reader is asked again at the end (`read_counters`). It is called on the way to
the start of a job, so it reads a few small kernel files and imports next to nothing. What could not be read is named
under `unread`: it is not zero.

Facts that it rests on. ``oom_kill`` of a group counts processes of it "killed by any kind of OOM killer", the box's
too (Documentation/admin-guide/cgroup-v2.rst, memory.events); on v2 a group's number includes those below it, on v1 it
does not. One kill may be counted more than once (seen on 6.1 with memory.oom.group), so it is only ever compared with
zero. v1's ``failcnt`` is not used: it stays 0 through a kill (seen on 6.18). The position in the kernel's log is
`monotonic_s`: the log's own numbers are had only by reading all of it, and its fallbacks have none.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.host import clock
from holdfast.host.contain.tree import find_cgroups, parse_limit
from holdfast.host.files import files
from holdfast.host.files.block_devices import find_block_devices
from holdfast.host.files.disks import DiskSpace, measure_space
from holdfast.host.files.filesystems import Mount, find_mount, read_mounts
from holdfast.host.process.processes import read_stat

if TYPE_CHECKING:
    from holdfast.host.contain.group import ControlGroup

MOST_LEVELS = 32
MOST_PLACES = 12
NOT_ASKED = "a network mount is not asked on the way to the start"
SHM = "/dev/shm"  # noqa: S108 - looked at, never written to
RLIMITS = ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK", "STACK", "DATA")
SIGHUP_BIT = 1

Facts = dict[str, Any]


def read_baseline(group: ControlGroup | None, places: Mapping[str, str], environ: Mapping[str, str]) -> Facts:
    """Everything that makes the end explicable later, at the launch of a job in `group`.

    `places` are paths by role (``run``, ``checkpoints``, ``data``, ...), `environ` the caller's environment.
    """
    return {
        **read_counters(list_levels(find_memory_directory(group)), list(places.items()), ask_network=False),
        "session": _read_session(environ),
        "rlimits": _read_rlimits(),
        "ptrace_scope": _whole(files.read_text_or_none("/proc/sys/kernel/yama/ptrace_scope")),
    }


def read_counters(levels: list[str], places: list[tuple[str, str]], *, ask_network: bool = True) -> Facts:
    """Boot, PID 1, OOM counters of the box and of memory groups, and the disks behind paths (by role), as they are.

    Without `ask_network` nothing is asked of another machine: the mount table alone speaks for its disks.
    """
    unread: dict[str, str] = {}
    try:
        boot: str | None = clock.boot_id()
    except OSError as error:
        boot, unread["boot_id"] = None, error.strerror or str(error)
    kills = _read_host_kills()
    if kills is None:
        unread["oom_kills_since_boot"] = "/proc/vmstat has no oom_kill, or cannot be read"
    init = _read_init_ticks()
    if init is None:
        unread["init_start_ticks"] = "/proc/1/stat cannot be read"
    return {
        "boot_id": boot,
        "init_start_ticks": init,
        "monotonic_s": round(clock.monotonic_s(), 3),
        "epoch_s": round(clock.epoch_s(), 3),
        "oom_kills_since_boot": kills,
        "memory_levels": [level for level in map(read_level, levels) if level is not None],
        "disks": _measure_disks(places[:MOST_PLACES], ask_network=ask_network),
        "unread": unread,
    }


def find_memory_directory(group: ControlGroup | None) -> str | None:
    """The directory whose memory counters a job in `group` moves: the group's own, else the place that we are in."""
    if group is not None:
        if "memory" in group.controllers and group.unified is not None:
            return group.unified
        if "memory" in group.v1:
            return group.v1["memory"]

    places = find_cgroups()
    v1 = places.v1_place("memory")
    if v1 is not None:
        return v1.path
    return None if places.unified is None else places.unified.path


def list_levels(directory: str | None) -> list[str]:
    """A group's directory and those of the groups above it, up to the root of its tree."""
    found: list[str] = []
    while directory and len(found) < MOST_LEVELS and os.path.exists(f"{directory}/cgroup.procs"):
        found.append(directory)
        directory = os.path.dirname(directory)
    return found


def read_level(directory: str) -> Facts | None:
    """OOM kills and limit of one memory group; None for one without the counter (v2's root), or that is gone."""
    for counter, limit in (("memory.events", "memory.max"), ("memory.oom_control", "memory.limit_in_bytes")):
        path = f"{directory}/{counter}"
        if not os.path.lexists(path):
            continue

        kills = _find_number(files.read_text_or_none(path), "oom_kill")
        bound = parse_limit(files.read_text_or_none(f"{directory}/{limit}"))
        return {"path": directory, "oom_kills": kills, "limit_bytes": bound}
    return None


def _find_number(text: str | None, name: str) -> int | None:
    for line in (text or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _read_host_kills() -> int | None:
    return _find_number(files.read_text_or_none("/proc/vmstat"), "oom_kill")


def _read_init_ticks() -> int | None:
    """When PID 1 of this place was started, in clock ticks since boot: a container's is its own."""
    init = read_stat(1)
    return None if init is None else init.start_ticks


def _measure_disks(places: list[tuple[str, str]], *, ask_network: bool) -> list[Facts]:
    """What is left on the disk behind each path. A server is asked once for each of its mounts: it may not answer."""
    mounts = read_mounts()
    asked: dict[str, Facts] = {}
    found: list[Facts] = []
    for role, path in places:
        named = {"role": role, "path": path}
        mount = find_mount(os.path.abspath(path), mounts)
        if mount is None or not mount.is_network:
            found.append({**named, **_measure(path, mounts)})
            continue
        point = mount.mount_point
        if not ask_network:
            asked[point] = {"mount_point": point, "kind": mount.kind, "read_only": mount.read_only, "unread": NOT_ASKED}
        elif point not in asked:
            asked[point] = _measure(path, mounts)
        found.append({**named, **asked[point]})
    return found


def _measure(path: str, mounts: tuple[Mount, ...]) -> Facts:
    try:
        space = measure_space(path, mounts)
    except OSError as error:
        return {"unread": error.strerror or str(error)}
    return {
        "mount_point": space.mount_point,
        "kind": space.kind,
        "free_bytes": space.free_bytes,
        "total_bytes": space.total_bytes,
        "free_inodes": space.free_inodes,
        "read_only": space.read_only,
        "devices": [] if space.is_network or space.is_memory else _list_devices(space),
    }


def _list_devices(space: DiskSpace) -> list[str] | None:
    """The block devices behind a disk; None where they cannot be told."""
    found = find_block_devices(space.device, space.source)
    return None if found is None else list(found)


def _read_session(environ: Mapping[str, str]) -> Facts:
    """What a hang-up could reach: the launcher's terminal, its disposition of SIGHUP, the login session around it."""
    status = files.read_text_or_none("/proc/self/status") or ""
    ignored = next((line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")), None)
    fields = (files.read_text_or_none("/proc/self/stat") or "").rpartition(")")[2].split()
    groups = files.read_text_or_none("/proc/self/cgroup") or ""
    return {
        # Field 7 of proc_pid_stat(5), counted from the state; 0 is no terminal.
        "tty_nr": int(fields[4]) if len(fields) > 4 else None,
        "hangup_ignored": None if ignored is None else bool(int(ignored, 16) & SIGHUP_BIT),
        "ssh": "SSH_CONNECTION" in environ,
        "multiplexer": next((name for name, key in (("tmux", "TMUX"), ("screen", "STY")) if key in environ), None),
        "login_scope": "/session-" in groups and ".scope" in groups,
    }


def _read_rlimits() -> dict[str, int | None]:
    """Soft limits, and the hard one of what a job may raise; None is unlimited."""
    found: dict[str, int | None] = {}
    for name in RLIMITS:
        soft = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
        found[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found["nofile_hard"] = None if hard == resource.RLIM_INFINITY else hard
    return found
