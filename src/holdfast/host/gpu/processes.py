"""Classifies the processes on a card from /proc: whose they are, and what a holder is to us.

NVML gives pids; which PID namespace they count in depends on driver and container runtime. So an absent pid is a
ghost only where the process table is complete for us: the initial PID namespace (LEASE-12, bug B-19). Everything that
reads another process's entry can block when that process is stuck in the driver, so `gather_facts` runs in the probe
child and fills its result as it goes; `classify_holder` is pure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.host.process.processes import RUN_ID, list_values, read_command, read_environment, read_stat, user_name
from holdfast.model.gpu import GpuProcess, HolderKind
from holdfast.model.record import record

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial PID namespace. Source: Linux include/linux/proc_ns.h, PROC_PID_INIT_INO (since 3.8), the same
number as PID_NS_INIT_INO in include/uapi/linux/nsfs.h (6.18)."""
COMMAND_MAX = 200
"""Characters of a command line kept for display."""


@record
class ProcessView:
    """How much of the box's process table we see.

    `initial` is True only in the initial PID namespace; `hidden` is True where /proc hides other users' processes.
    """

    initial: bool
    hidden: bool

    @property
    def complete(self) -> bool:
        """Whether a pid that is not in our table is nowhere on the box."""
        return self.initial and not self.hidden


def read_process_view() -> ProcessView:
    """Which part of the process table this process sees. An unreadable answer counts as the lesser part."""
    hidden = _hides_processes()
    try:
        initial = os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        initial = False
    if initial and not hidden:
        # A second witness, since sandboxes imitate inode numbers: pid 2 of a real kernel is its thread daemon.
        stat = read_stat(2)
        initial = stat is not None and stat.comm == "kthreadd"
    return ProcessView(initial=initial, hidden=hidden)


def _hides_processes() -> bool:
    """Whether /proc is mounted so that we do not see everyone. Source: proc(5), hidepid=2|invisible|4|ptraceable."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return True
    options = [fields[3].split(",") for fields in mounts if len(fields) > 3 and fields[1] == "/proc"]
    last = options[-1] if options else []
    hides = any(option in last for option in ("hidepid=2", "hidepid=invisible", "hidepid=4", "hidepid=ptraceable"))
    return hides and os.geteuid() != 0


def gather_facts(pids: Iterable[int], into: dict[Any, Any], mark: Callable[[str], None], *, devices: bool) -> None:
    """Fill `into` with what /proc says of each pid, safest first, calling `mark` before each read that can block.

    `devices` also looks for an open card in the process's descriptors: needed where pids may belong to another
    namespace and meet one of ours by chance.
    """
    for pid in pids:
        facts: dict[str, Any] = {"exists": False}
        mark(f"/proc/{pid}/stat")
        stat = read_stat(pid) if pid > 0 else None
        if stat is None:
            facts["exists"] = "hidden" if pid > 0 and _answers_to_null_signal(pid) else False
            into[pid] = facts
            continue
        facts.update(exists=True, start_ticks=stat.start_ticks, command=f"[{stat.comm}]")
        facts["age_s"] = max(time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK"), 0.0)
        into[pid] = facts
        facts.update(_read_status(pid))
        mark(f"/proc/{pid}/environ")
        facts["run_id"] = _read_run_id(pid)
        mark(f"/proc/{pid}/cmdline")
        facts["command"] = (read_command(pid) or facts["command"])[:COMMAND_MAX]
        if devices:
            mark(f"/proc/{pid}/fd")
            facts["holds_device"] = _holds_device(pid)
        mark("getpwuid")
        if facts.get("uid") is not None:
            facts["user"] = user_name(facts["uid"])


def _answers_to_null_signal(pid: int) -> bool:
    """Whether a process that /proc hides exists. Source: proc(5), hidepid: kill(2) with signal 0 still tells."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _read_status(pid: int) -> dict[str, Any]:
    """The real uid (a process may hide its owner from stat) and whether it lives in a PID namespace below ours."""
    found: dict[str, Any] = {}
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Uid:"):
                    found["uid"] = int(line.split()[1])
                elif line.startswith("NSpid:"):
                    found["nested"] = len(line.split()) > 2
    except OSError:
        pass  # gone since, or not ours to read: the facts stay unknown
    return found


def _read_run_id(pid: int) -> str | None:
    found = list_values(read_environment(pid) or b"", RUN_ID)
    return os.fsdecode(found[0]) if found else None


def _holds_device(pid: int) -> bool | None:
    """Whether the process has a card open; None when its descriptors are not ours to read."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for name in names:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def classify_holder(pid: int, facts: Mapping[str, Any] | None, view: ProcessView) -> HolderKind:
    """What a process on a card is to us, from what the process table said (None: nothing was learned in time)."""
    if facts is None:
        return HolderKind.UNKNOWN
    if pid <= 0:  # a driver that translates pids writes 0 for one outside our namespace
        return HolderKind.UNKNOWN if view.initial else HolderKind.OTHER_NAMESPACE
    if facts.get("run_id") and (view.initial or facts.get("holds_device")):
        return HolderKind.MANAGED
    if not view.initial:
        return _classify_inside_namespace(facts)
    if facts["exists"] is True:
        return HolderKind.OTHER_NAMESPACE if facts.get("nested") else HolderKind.UNMANAGED
    return HolderKind.GHOST if facts["exists"] is False and not view.hidden else HolderKind.UNKNOWN


def _classify_inside_namespace(facts: Mapping[str, Any]) -> HolderKind:
    """In a container: a pid of the host may meet one of ours by chance, so the card must be open in that process."""
    if facts["exists"] is False or facts.get("holds_device") is False:
        return HolderKind.OTHER_NAMESPACE
    return HolderKind.UNMANAGED if facts.get("holds_device") else HolderKind.UNKNOWN


def describe_process(
    pid: int, used_bytes: int | None, facts: Mapping[str, Any] | None, view: ProcessView
) -> GpuProcess:
    """One process on a card with all that is known of it.

    Names are left out where the pid is not the process that we see under that number.
    """
    kind = classify_holder(pid, facts, view)
    foreign = kind is HolderKind.OTHER_NAMESPACE and not (facts and facts.get("nested") and view.initial)
    known = {} if facts is None or foreign else facts
    return GpuProcess(
        pid=pid,
        kind=kind,
        used_bytes=used_bytes,
        user=known.get("user"),
        command=known.get("command"),
        age_s=known.get("age_s"),
        run_id=known.get("run_id"),
        start_ticks=known.get("start_ticks"),
    )
