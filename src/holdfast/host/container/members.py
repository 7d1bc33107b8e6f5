"""Whose processes a container's are: its control group, or the PID namespace of its first process.

The kernel's word in both cases, readable by other accounts and without the runtime: what holds when its client, its
daemon or our supervisor was killed. A container without a control group of its own (Podman without root on cgroup v1)
has the namespace alone: when its first process ends, the kernel ends all others in it (pid_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.job.limits import Mechanism
from holdfast.host.contain.group import ControlGroup
from holdfast.host.contain.namespaces import read_namespace
from holdfast.host.contain.tree import find_cgroups
from holdfast.host.process import pidfd
from holdfast.host.process.processes import is_alive, read_stat
from holdfast.host.process.table import read_inner_pids
from holdfast.model.container import ContainerRecord, ResolvedImage
from holdfast.model.record import replace

if TYPE_CHECKING:
    from holdfast.host.contain.members import Member, RunTree

HELD_BY_RUNTIMES = ("memory", "swap", "cpus", "cpu_weight", "tasks")
MONITOR = "conmon"
"""Source: conmon(8); Podman's parent of a container's first process."""
STARTERS = ("starter", "apptainer", "singularity", "Apptainer", "Singularity")
"""Source: apptainer, cmd/starter; "Apptainer runtime parent" is what it calls itself."""


def find_groups(pid: int, container: str) -> tuple[str, ...]:
    """The directories of a process's control group, v2 first, where it is the container's own: named by its id.

    In a hierarchy in which its runtime makes none, the group is the one of the runtime's daemon or client.
    """
    ours, theirs = find_cgroups(), find_cgroups(pid)
    known = {place.path for place in (*ours.v1, *([ours.unified] if ours.unified else ()))}
    places = (*([theirs.unified] if theirs.unified else ()), *theirs.v1)
    found = dict.fromkeys(place.path for place in places if place.exact and container in place.path)
    return tuple(path for path in found if path not in known and not _is_above(path, known))


def _is_above(path: str, known: Iterable[str]) -> bool:
    return any(other.startswith(f"{path}/") for other in known)


def foresee_group(resolved: ResolvedImage) -> ControlGroup:
    """What the control group that a runtime will make holds, and what it does not."""
    name = resolved.runtime.value
    held = (one for one in HELD_BY_RUNTIMES if one not in resolved.unheld)
    refused = dict.fromkeys(resolved.unheld, f"{name} says that its kernel has nothing to hold it by")
    return ControlGroup("", enforced=dict.fromkeys(held, Mechanism.CONTAINER.value), refused=refused)


def open_group(container: ContainerRecord) -> ControlGroup | None:
    """The container's own control group, as data; None where it has none.

    Nothing here makes or removes it: that is the runtime's.
    """
    if not container.groups:
        return None
    unified: str | None = None
    controllers: tuple[str, ...] = ()
    v1: dict[str, str] = {}
    for path in container.groups:
        if os.path.exists(f"{path}/cgroup.controllers") or (not v1 and "/unified/" in path):
            unified = path
            controllers = tuple(_read_words(f"{path}/cgroup.controllers"))
            continue
        mount = find_cgroups()
        names = next((p.controllers for p in mount.v1 if path.startswith(f"{p.mount}/")), ())
        v1.update(dict.fromkeys(names, path))
    path = container.groups[0]
    parent, _, name = path.rpartition("/")
    return ControlGroup(name, unified, v1, controllers, top=parent.rpartition("/")[2])


def _read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def select_inside(container: ContainerRecord, pids: Iterable[int]) -> set[int]:
    """Those of these processes that are inside."""
    group = open_group(container)
    if group is not None:
        return set(pids) & set(group.pids() or ())
    if container.init is None or not is_alive(container.init):
        return set()
    namespace = read_namespace(container.init.pid)
    return {pid for pid in pids if namespace and read_namespace(pid) == namespace}


def choose_gentle(container: ContainerRecord | None, found: list[Member], *, has_init: bool) -> list[Member]:
    """Whom a gentle signal is for: the job inside; not the runtime's client, which would leave, nor an init.

    Without a `container` all of them are our own descendants, the runtime's starter among them.
    """
    if container is None:
        return [member for member in found if not _is_starter(member)] or found
    if container.init is None:
        return found
    pids = select_inside(container, (member.process.pid for member in found))
    inside = [member for member in found if member.process.pid in pids]
    job = [member for member in inside if member.process.pid != container.init.pid]
    return job if job and has_init else inside


def _is_starter(member: Member) -> bool:
    """Whether it is the runtime's own: its parent outside, or the first process of the namespace that it made."""
    return member.name.startswith(STARTERS) or read_inner_pids(member.process.pid)[1:][-1:] == (1,)


def complete_tree(container: ContainerRecord, tree: RunTree) -> RunTree:
    """The tree of a run with what proves who is inside its container."""
    return replace(tree, group=open_group(container) or tree.group, first=container.init)


def is_paused(container: ContainerRecord) -> bool:
    """Whether its runtime, or somebody else, has frozen all inside: nothing there acts on a signal then."""
    group = open_group(container)
    return group is not None and group.is_frozen()


def thaw(container: ContainerRecord) -> None:
    """Let all inside go on without the runtime, as far as we may."""
    group = open_group(container)
    if group is not None:
        group.thaw()


def end_paused(container: ContainerRecord, *, within_s: float) -> None:
    """KILL all inside of a paused container, and wait for its monitor, their parent, which writes the end down.

    Podman removes no container that it takes for paused and of whose end nobody told it: it asks for a resume of what
    is gone, for good (seen with 4.3.1). So the monitor is not killed together with what it watches.
    """
    group = open_group(container)
    if group is None or container.init is None or not is_alive(container.init):
        return
    first = read_stat(container.init.pid)
    parent = None if first is None else read_stat(first.ppid)
    monitor = None
    if parent is not None and parent.comm == MONITOR:
        # Without a descriptor to be had it is not waited for: KILL goes out all the same.
        with contextlib.suppress(OSError):
            monitor = pidfd.hold(parent.pid, parent.start_ticks)
    try:
        group.kill()
        if monitor is not None:
            monitor.wait(within_s)
    finally:
        if monitor is not None:
            monitor.close()


def has_living(container: ContainerRecord) -> bool:
    """Whether anything may be inside."""
    if container.init is None:
        return False
    group = open_group(container)
    return is_alive(container.init) or bool(group is not None and group.pids())
