"""Which box this is, and whether something was recorded on it: the machine, its boot, and the table of processes.

A pid means something only in the table that it was taken from. Two boxes may have one host name (rentals), one machine
id (containers and machines from one image) or one boot (containers), so nothing is judged by a name: the same table
needs the same boot and the same PID namespace, and that a machine was started again needs a machine id that is its own.
Where the kernel tells no boot id, only a recorded process that is seen to live proves that this is its table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from holdfast.model.identity import BoxIdentity, ProcessId

from . import clock
from .files import files
from .process.processes import is_alive

NO_NAMESPACES = "none"
"""The PID namespace of a kernel that has none: there is one table."""
IMAGES_OWN = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/.singularity.d")
"""Files of a container, whose machine id is its image's. Source: docker, podman-run(1), systemd, apptainer."""
FIRST_NAMESPACE = "pid:[4026531836]"
"""The initial PID namespace. Source: include/linux/proc_ns.h, PROC_PID_INIT_INO."""


class BoxMatch(Enum):
    """What a recorded box is to this one."""

    SAME = "same"
    """The same processes are seen: what is not there is gone."""
    REBOOTED = "rebooted"
    """The same machine, started again since: whatever ran then is gone."""
    UNKNOWN = "unknown"
    """Another machine or container, or nothing proves that it is this one: nothing can be said of its processes."""


def read_box() -> BoxIdentity:
    """This box; what cannot be read is empty, and equals nothing."""
    return BoxIdentity(os.uname().nodename, _read_machine_id(), clock.boot_id(), _read_pid_namespace())


def compare_boxes(recorded: BoxIdentity, here: BoxIdentity) -> BoxMatch:
    """Whether what was recorded on one box can be judged on another; a name alone proves nothing, nor does a gap."""
    if not recorded.boot_id or not here.boot_id:
        return BoxMatch.UNKNOWN
    machines = {recorded.machine_id, here.machine_id}
    if "" not in machines and len(machines) > 1:
        return BoxMatch.UNKNOWN
    if recorded.boot_id == here.boot_id:
        same = recorded.pid_namespace and recorded.pid_namespace == here.pid_namespace
        return BoxMatch.SAME if same else BoxMatch.UNKNOWN
    proven = "" not in machines and recorded.host == here.host
    return BoxMatch.REBOOTED if proven else BoxMatch.UNKNOWN


def find_box(recorded: BoxIdentity, witnesses: Iterable[ProcessId | None]) -> BoxMatch:
    """What a recorded box is to this one; `witnesses` are processes that were recorded on it."""
    here = read_box()
    match = compare_boxes(recorded, here)
    if match is BoxMatch.UNKNOWN and may_be_same(recorded, here):
        seen = any(is_alive(process) for process in witnesses if process is not None)
        return BoxMatch.SAME if seen else BoxMatch.UNKNOWN
    return match


def may_be_same(recorded: BoxIdentity, here: BoxIdentity) -> bool:
    """Whether all agrees that is known, and a boot id is what is missing."""
    known = {recorded.machine_id, here.machine_id} - {""}
    named = (recorded.host, recorded.pid_namespace) == (here.host, here.pid_namespace)
    return named and len(known) < 2 and not (recorded.boot_id and here.boot_id)


def is_outside(recorded: BoxIdentity, here: BoxIdentity) -> bool:
    """Whether it was recorded on this very machine, outside of the container, or the job, that this looks from."""
    same_boot = bool(recorded.boot_id) and recorded.boot_id == here.boot_id
    return same_boot and recorded.pid_namespace == FIRST_NAMESPACE != here.pid_namespace


def _read_machine_id() -> str:
    """The machine id where it names one machine; empty in a container, where it may be that of an image.

    ``HOLDFAST_MACHINE_ID`` stands in for tests. Source: machine-id(5): "uninitialized" before the first boot has ended.
    """
    override = os.environ.get("HOLDFAST_MACHINE_ID")
    if override is not None:
        return override
    if _read_pid_namespace() not in (FIRST_NAMESPACE, NO_NAMESPACES) or any(map(os.path.exists, IMAGES_OWN)):
        return ""
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return ""  # a pod that shares the PID namespace of its node
    found = (files.read_text_or_none("/etc/machine-id") or "").strip()
    return found if len(found) == 32 else ""


def _read_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except FileNotFoundError:
        return NO_NAMESPACES if os.path.isdir("/proc/self/ns") else ""
    except OSError:
        return ""
