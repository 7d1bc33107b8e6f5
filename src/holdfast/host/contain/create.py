"""Makes the control group of a run beside our own place, writes its limits, and finds it again.

Theory. Groups are named ``holdfast/<run-id>.<attempt>`` and made below the *nearest* ancestor of our own cgroup that
can give the controllers we want, so that every limit above us keeps holding for the job. On v2 a cgroup that has
processes cannot hand controllers to children (the "no internal processes" rule; the real root is exempt), so that
ancestor is usually our parent: the job becomes our sibling, and no process but the job is ever moved. The one
exception: when we are the only process of our cgroup (a delegated scope or service made for us, see
`host.contain.scopes`), we step down into a leaf ``supervisor`` ourselves. Where v2 offers no controllers (hybrid
boxes), a bare v2 group is made for its kill and empty events, and v1 groups for limits and accounts. The supervisor and
the keeper stay outside of the group: killing it never kills those who must report it.

Each limit is written, read back, and put down as enforced by a mechanism or refused with a reason; nothing is assumed.
All reads answer None for "cannot tell". Membership is the kernel's word: whoever is in the group was started by the
job.

Source: cgroups(7), Documentation/admin-guide/cgroup-v2.rst; ``cgroup.kill`` since Linux 5.14, ``memory.peak`` since
5.19.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from holdfast.core.job.limits import Mechanism
from holdfast.model.job import Limits
from holdfast.model.record import record

from .group import TOP, ControlGroup, GroupUsage, is_populated, read_text, remove_tree, try_write
from .tree import CgroupPlace, EffectiveLimits, Hierarchies, find_cgroups, read_effective

__all__ = [
    "ControlGroup",
    "EffectiveLimits",
    "GroupUsage",
    "Hierarchies",
    "create_group",
    "find_cgroups",
    "find_group",
    "is_populated",
    "list_empty_groups",
    "open_group",
    "read_effective",
    "set_limits",
]  # fmt: skip

PERIOD_US = 100_000
"""The kernel's own default period: half a core is 50000 of 100000 (LIM-05)."""
LEAST_QUOTA_US = 1000
"""The kernel refuses less. Source: kernel/sched/core.c, min_cfs_quota_period."""
MEMORY_AND_SWAP = "memory.memsw.limit_in_bytes"
NO_LIMITS = Limits()
WANTED = ("memory", "cpu", "pids")
STALE_MANY, STALE_AFTER_S = 32, 3600.0
V1_WANTED = ("memory", "cpu", "cpuacct", "pids", "freezer")


def create_group(
    name: str, limits: Limits | None = None, *, hierarchies: Hierarchies | None = None
) -> ControlGroup | None:
    """Make the group `name` (``<run-id>.<attempt>``) near our own place and set `limits` on it.

    Returns:
        None when no hierarchy lets us make one. Every limit asked for is in `enforced` or `refused` of a group.

    Raises:
        FileExistsError: a group of that name exists and has processes.
        ValueError: the name cannot be one directory.
    """
    if not name or "/" in name or name.startswith(".") or "\n" in name:
        raise ValueError(f"{name!r} cannot name a control group")
    places = hierarchies or find_cgroups()
    made: list[str] = []
    try:
        unified, controllers = _create_unified(places.unified, name)
        made += [unified] if unified else []
        v1: dict[str, str] = {}
        for controller in V1_WANTED:
            place = places.v1_place(controller)
            if place is None or controller in controllers:
                continue
            # Controllers mounted together share one directory.
            shared = next((v1[other] for other in place.controllers if other in v1), None)
            directory = shared or _create_v1(place, name)
            if directory is not None:
                v1[controller] = directory
                made.append(directory)
    except FileExistsError:
        for directory in made:
            remove_tree(directory)
        raise
    if not made:
        return None
    group = ControlGroup(name, unified, v1, controllers)
    set_limits(group, limits or NO_LIMITS)
    return group


def open_group(
    name: str, unified: str | None, v1: dict[str, str], controllers: tuple[str, ...] = ()
) -> ControlGroup | None:
    """The group that was written down earlier, for adoption; None when none of its directories is there any more."""
    alive = unified if unified is not None and os.path.isdir(unified) else None
    trees = {controller: path for controller, path in v1.items() if os.path.isdir(path)}
    return ControlGroup(name, alive, trees, controllers if alive else ()) if alive or trees else None


def find_group(name: str) -> ControlGroup | None:
    """The group of that name near our own place, for a run whose records do not tell where; None when there is none."""
    found = dict[str, str]()
    for controllers, top in _list_tops():
        if os.path.isdir(f"{top}/{name}"):
            found.update(dict.fromkeys(controllers or ("",), f"{top}/{name}"))
    unified = found.pop("", None)
    return ControlGroup(name, unified, found) if unified or found else None


def list_empty_groups() -> set[str]:
    """Names of the groups near our own place in which no process is."""
    found: dict[str, bool] = {}
    for _, top in _list_tops():
        try:
            paths = [entry.path for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for path in paths:
            name = os.path.basename(path)
            found[name] = found.get(name, True) and is_populated(path) is False
    return {name for name, empty in found.items() if empty}


def _list_tops() -> Iterator[tuple[tuple[str, ...], str]]:
    """Where `create_group` would put groups from here or from beside us: controllers (none: v2) and directory."""
    places = find_cgroups()
    for place in (*([places.unified] if places.unified else ()), *places.v1):
        for parent in place.ancestors():
            yield (() if place is places.unified else place.controllers), f"{parent}/{TOP}"


def _create_unified(place: CgroupPlace | None, name: str) -> tuple[str | None, tuple[str, ...]]:
    if place is None:
        return None, ()
    offered = [c for c in WANTED if c in (read_text(f"{place.mount}/cgroup.controllers") or "").split()]
    parent = _choose_parent(place, offered)
    if parent is None:
        return None, ()
    top = f"{parent}/{TOP}"

    def prepare() -> None:
        _hand_down(parent, offered)
        _hand_down(top, offered)

    directory = _make_directory(top, name, prepare=prepare)
    if directory is None:
        return None, ()
    if read_text(f"{directory}/cgroup.type") == "domain invalid":
        remove_tree(directory)
        return None, ()
    return directory, tuple(c for c in WANTED if c in (read_text(f"{directory}/cgroup.controllers") or "").split())


def _choose_parent(place: CgroupPlace, offered: list[str]) -> str | None:
    """The nearest ancestor that hands down everything offered, else the one that hands down most, else None.

    Moving the job there needs its ``cgroup.procs``: it is the common ancestor of the job's old and new place.
    """
    best: tuple[int, str] | None = None
    if _is_own_scope(place.path) and offered and _step_down(place.path):
        # The slice above could be used too, where the user manager made the scope; but only the scope is ours.
        return place.path
    for parent in place.ancestors():
        if not (os.access(parent, os.W_OK) and os.access(f"{parent}/cgroup.procs", os.W_OK)):
            continue
        given = len(_hand_down(parent, offered))
        if given == len(offered):
            return parent
        if best is None or given > best[0]:
            best = (given, parent)
    if offered and _step_down(place.path):
        return place.path
    return None if best is None else best[1]


def _is_own_scope(path: str) -> bool:
    """Whether a cgroup is a scope that was made for one run (host/contain/scopes.py)."""
    name = path.rpartition("/")[2]
    return name.startswith(f"{TOP}-") and name.endswith(".scope")


def _hand_down(parent: str, offered: list[str]) -> list[str]:
    """Enable what can be enabled for the children of `parent`; one by one, since one refusal refuses a whole write.

    Never where processes sit, except in the real root (it alone has no ``cgroup.type``): the kernel would refuse memory
    but take cpu and pids, and turn every child into an invalid one that no process can join (seen on 6.1).
    """
    control = f"{parent}/cgroup.subtree_control"
    enabled = (read_text(control) or "").split()
    if read_text(f"{parent}/cgroup.procs") and os.path.exists(f"{parent}/cgroup.type"):
        return [name for name in offered if name in enabled]
    return [name for name in offered if name in enabled or try_write(control, f"+{name}") is None]


def _step_down(directory: str) -> bool:
    """Move ourselves into a leaf when we are alone in our cgroup, which then may hand its controllers down."""
    if read_text(f"{directory}/cgroup.procs") != str(os.getpid()):
        return False
    leaf = f"{directory}/supervisor"
    try:
        os.mkdir(leaf, 0o755)
    except FileExistsError:
        pass
    except OSError:
        return False
    return try_write(f"{leaf}/cgroup.procs", "0") is None


def _create_v1(place: CgroupPlace, name: str) -> str | None:
    if not os.access(place.path, os.W_OK):
        return None
    return _make_directory(f"{place.path}/{TOP}", name)


def _make_directory(top: str, name: str, *, prepare: Callable[[], None] | None = None) -> str | None:
    """``top/name``, exclusively ours; `prepare` runs once `top` exists. None when it cannot be made."""
    directory = f"{top}/{name}"
    for _ in range(5):
        try:
            if not os.path.isdir(top):
                os.mkdir(top, 0o755)
        except FileExistsError:
            pass
        except OSError:
            return None
        if prepare is not None:
            prepare()
        try:
            os.mkdir(directory, 0o755)
        except FileNotFoundError:
            continue  # another run's end removed the empty top between our two steps
        except FileExistsError:
            if is_populated(directory) is not False or not remove_tree(directory):
                raise
            continue
        except OSError:
            return None
        _sweep_stale(top, name)
        return directory
    return None


def _sweep_stale(top: str, name: str) -> None:
    """Remove empty groups that runs left whose end nobody was there to see, now and then: a box has thousands of runs.

    Only what is old and has no process: a run that is just starting has an empty group too.
    """
    if name.startswith("probe-"):
        return
    try:
        entries = [entry for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if len(entries) < STALE_MANY:
        return
    for entry in entries:
        try:
            old = time.time() - entry.stat(follow_symlinks=False).st_ctime > STALE_AFTER_S
        except OSError:
            continue
        if old and is_populated(entry.path) is False:
            remove_tree(entry.path)


# ------------------------------------------------------------------------------------------------------- setting limits
UNLIMITED_V1 = "-1"
"""Source: Documentation/admin-guide/cgroup-v1/memory.rst, scheduler/sched-bwc.rst."""


@record
class _Wish:
    """One limit: its name, the kernel's controller, and what to write in v2 and in v1 (empty: v1 has no such limit)."""

    limit: str
    controller: str
    unified: tuple[tuple[str, str], ...]
    v1: tuple[tuple[str, str], ...]


def set_limits(group: ControlGroup, asked: Limits, before: Limits = NO_LIMITS) -> None:
    """Write what is asked for that was not so before, and take away what is asked for no more.

    Every limit asked for is in `enforced` or `refused` afterwards.
    """
    if asked.memory_bytes != before.memory_bytes and "memory" in group.v1:
        # Memory and swap together are never below memory alone: first out of the way, set anew below.
        try_write(f"{group.v1['memory']}/{MEMORY_AND_SWAP}", UNLIMITED_V1)
    old = {wish.limit: wish for wish in _list_wishes(before)}
    wishes = _list_wishes(asked)
    for name in old.keys() - {wish.limit for wish in wishes}:
        group.enforced.pop(name, None)
        group.refused.pop(name, None)
        _lift(group, old[name])
    for wish in wishes:
        if wish == old.get(wish.limit) and wish.limit in group.enforced:
            continue
        _hold(group, wish)
    if asked.memory_bytes is not None and "memory" in group.enforced:
        _limit_swap(group, asked.memory_bytes, asked.swap_bytes)


def _list_wishes(asked: Limits) -> list[_Wish]:
    wishes: list[_Wish] = []
    if asked.memory_bytes is not None:
        value = str(asked.memory_bytes)
        wishes.append(_Wish("memory", "memory", (("memory.max", value),), (("memory.limit_in_bytes", value),)))
    if asked.memory_high_bytes is not None:
        wishes.append(_Wish("memory_high", "memory", (("memory.high", str(asked.memory_high_bytes)),), ()))
    if asked.cpus is not None:
        quota = str(max(LEAST_QUOTA_US, round(asked.cpus * PERIOD_US)))
        v1 = (("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", quota))
        wishes.append(_Wish("cpus", "cpu", (("cpu.max", f"{quota} {PERIOD_US}"),), v1))
    if asked.cpu_weight is not None:
        shares = str(min(262144, max(2, asked.cpu_weight * 1024 // 100)))
        wishes.append(_Wish("cpu_weight", "cpu", (("cpu.weight", str(asked.cpu_weight)),), (("cpu.shares", shares),)))
    if asked.tasks is not None:
        value = str(asked.tasks)
        wishes.append(_Wish("tasks", "pids", (("pids.max", value),), (("pids.max", value),)))
    return wishes


def _hold(group: ControlGroup, wish: _Wish) -> None:
    in_scope = group.unified is not None and ".scope/" in group.unified and f"/{TOP}-" in group.unified
    if wish.controller in group.controllers and group.unified is not None:
        why = _write_and_check(group.unified, wish.unified)
        mechanism = Mechanism.SYSTEMD_SCOPE if in_scope else Mechanism.CGROUP_V2
    elif wish.controller in group.v1 and wish.v1:
        why, mechanism = _write_and_check(group.v1[wish.controller], wish.v1), Mechanism.CGROUP_V1
    else:
        why, mechanism = f"no {wish.controller} controller that can hold it is given to us here", Mechanism.NONE
    group.enforced.pop(wish.limit, None)
    group.refused.pop(wish.limit, None)
    if why is None:
        group.enforced[wish.limit] = mechanism.value
    else:
        group.refused[wish.limit] = why


def _lift(group: ControlGroup, wish: _Wish) -> None:
    """Take a limit away again; where the kernel has none of it, there is nothing to take away."""
    free = {"cpu.weight": "100", "cpu.shares": "1024", "cpu.cfs_period_us": str(PERIOD_US), "pids.max": "max"}
    if wish.controller in group.controllers and group.unified is not None:
        for name, _ in wish.unified:
            try_write(f"{group.unified}/{name}", free.get(name, "max"))
    elif wish.controller in group.v1:
        for name, _ in wish.v1:
            try_write(f"{group.v1[wish.controller]}/{name}", free.get(name, UNLIMITED_V1))


def _limit_swap(group: ControlGroup, memory_bytes: int, swap_bytes: int | None) -> None:
    """Beside a memory limit: so much swap as was asked for, or none, because one that spills into swap is none."""
    if "memory" in group.controllers:
        place, value = f"{group.unified}/memory.swap.max", swap_bytes or 0
    elif "memory" in group.v1:
        place, value = f"{group.v1['memory']}/{MEMORY_AND_SWAP}", memory_bytes + (swap_bytes or 0)
    else:
        return
    directory, _, name = place.rpartition("/")
    why = _write_and_check(directory, ((name, str(value)),))
    group.enforced.pop("swap", None)
    group.refused.pop("swap", None)
    if swap_bytes is None:
        # Nobody asked: kernels without swap accounting lack these files.
        return
    if why is None:
        group.enforced["swap"] = group.enforced["memory"]
    else:
        group.refused["swap"] = f"this kernel does not count swap ({why})"


def _write_and_check(directory: str, files: Sequence[tuple[str, str]]) -> str | None:
    """Write values, read them back; None when they stand, else why not. The kernel rounds bytes down to whole pages."""
    for name, value in files:
        failure = try_write(f"{directory}/{name}", value)
        if failure is not None:
            return f"{directory}/{name}: {failure}"
        got = read_text(f"{directory}/{name}")
        if got == value:
            continue
        page = os.sysconf("SC_PAGE_SIZE")
        if got is None or not got.isdigit() or not value.isdigit() or not 0 <= int(value) - int(got) < page:
            return f"{directory}/{name}: wrote {value}, reads {got}"
    return None
