"""What is believed of a container's record, and of a pid that somebody names as a container's first process.

The record (`container.json`), and the file into which Podman's monitor writes a pid, lie in the run directory, which
whoever is inside may write to. A daemon in a VM, or on another box, counts in a table of processes of its own. So who
is inside is the kernel's word alone.
"""

from __future__ import annotations

import os
import re

from holdfast.host.files import files
from holdfast.host.files.filesystems import find_mount, read_mounts
from holdfast.host.process.processes import identify, is_alive, list_pids
from holdfast.model import wire
from holdfast.model.container import CONTAINER_RECORD, INNER_ROOM, ROOM, ContainerRecord
from holdfast.model.identity import ProcessId
from holdfast.model.record import record, replace

from .members import find_groups, is_paused, select_inside

ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
REMOVED = "//deleted"
"""Behind the root of a mount whose directory is gone. Source: Linux, fs/d_path.c, dentry_path."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
"""An id or a name, and no option of the runtime. Source: docker-create(1), --name."""


def is_first(pid: int) -> bool:
    """Whether a process is the first of a PID namespace below ours. Source: proc_pid_status(5), NSpid."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("NSpid:")), "")
    except OSError:
        return False
    inner = line.split()[1:]
    return len(inner) > 1 and inner[-1] == "1"


def prove_first(pid: int, container: str, room: str) -> ProcessId | None:
    """Who has this pid, where the kernel proves that it is the first process of this very container; else None.

    It is the first of a PID namespace below ours, and what it sees as its room is `room`: one directory of one kernel,
    which nobody else has there, also where it was removed from here. That can be seen by root; by the account, of what
    runs in a user namespace of its own (rootless) or, below a daemon of root, under its own number. Where its root may
    not be looked into (an image's own user below a daemon of root; an image on FUSE, which lets nobody in from outside)
    its mount table tells the same, which everybody may read. One that is about to end and waits for others has neither:
    its control group has the container's whole id, which the runtime drew at random. Source: ptrace(2), "Ptrace access
    mode checking"; proc_pid_root(5); proc_pid_mountinfo(5); pid_namespaces(7); that the root is gone first was seen
    with Linux 6.18.
    """
    found = identify(pid)
    if found is None or not is_first(pid):
        return None
    try:
        there = os.stat(f"/proc/{pid}/root{INNER_ROOM}")
        proven = os.path.samestat(there, os.stat(room)) or _mounts(pid, room, gone=True)
    except PermissionError:
        proven = _mounts(pid, room) or _is_in_group_of(pid, container)
    except OSError:
        # A link of the image's may lead elsewhere when it is followed from here.
        proven = _mounts(pid, room) or (not os.path.exists(f"/proc/{pid}/root") and _is_in_group_of(pid, container))
    return found if proven and is_alive(found) else None


def _mounts(pid: int, room: str, *, gone: bool = False) -> bool:
    """Whether a directory of ours is mounted where a process is, by both mount tables: one part of one file system.

    One that was removed from here meanwhile is there all the same, and is told as such; with `gone` only that counts.
    """
    path = os.path.realpath(room)
    here = find_mount(path, read_mounts())
    if here is None:
        return False
    wanted = os.path.normpath(os.path.join(here.root, os.path.relpath(path, here.mount_point)))
    there = read_mounts(f"/proc/{pid}/mountinfo")
    roots = {wanted + REMOVED} if gone else {wanted, wanted + REMOVED}
    return any(mount.device == here.device and mount.root in roots for mount in there)


def _is_in_group_of(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return ID.fullmatch(container) is not None and container in file.read()
    except OSError:
        return False


def read_record(directory: str) -> ContainerRecord | None:
    """The container of the attempt in `directory`; None where none was created, or its record cannot be read.

    `init` and `groups` are as the kernel tells them now: a first process that is not proven is none. One that has
    ended stays, without groups: with it all in its PID namespace have ended (pid_namespaces(7)).
    """
    try:
        data = files.read_bytes(f"{directory}/{CONTAINER_RECORD}")
        found = wire.from_bytes(ContainerRecord, data, CONTAINER_RECORD)
    except (OSError, wire.WireError):
        return None
    if NAME.fullmatch(found.id) is None:
        return None
    if found.init is None or not is_alive(found.init):
        return replace(found, groups=())
    pid = found.init.pid
    # The id, by which the runtime is asked for more, has to be that process's, too.
    named = _is_in_group_of(pid, found.id) if found.groups else ID.fullmatch(found.id) is not None
    if named and prove_first(pid, found.id, f"{directory}/{ROOM}") is not None:
        return replace(found, groups=find_groups(pid, found.id) if found.groups else ())
    return replace(found, init=None, groups=())


@record
class ContainerLook:
    """An attempt's container as it is now: `pids` are who is inside, none where its first process does not live."""

    container: ContainerRecord
    pids: tuple[int, ...]
    paused: bool


def look_inside(directory: str) -> ContainerLook | None:
    """The container of the attempt in `directory`, seen from outside; None where it has none."""
    found = read_record(directory)
    if found is None or found.init is None or not is_alive(found.init):
        return None if found is None else ContainerLook(found, (), paused=False)
    return ContainerLook(found, tuple(sorted(select_inside(found, list_pids()))), is_paused(found))
