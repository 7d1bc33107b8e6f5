"""Finds out whether the fabric manager runs, which cards behind an NVSwitch need to reach each other (GPUH-10).

The manager is a system daemon of root's. Its process is looked for to say whether it is there; nothing is ever sent to
it. In a container it may run outside, where nobody here sees it.
"""

from __future__ import annotations

import os

from holdfast.model.finding import Finding, Level
from holdfast.model.record import record

DAEMON = "nv-fabricmanager"
COMM_LENGTH = 15
"""A process name is cut to this length. Source: include/linux/sched.h, TASK_COMM_LEN."""


@record
class Fabric:
    """The switches' device nodes, and whether the manager runs (None: it would not be seen from here)."""

    switches: tuple[str, ...] = ()
    running: bool | None = None


def read_fabric(*, dev: str = "/dev", proc: str = "/proc", sees_everyone: bool) -> Fabric:
    """Look for NVSwitch nodes and, when there are some, for the manager's process.

    `sees_everyone` is whether the process table is complete for us (`host.gpu.processes.read_process_view`).
    """
    try:
        names = sorted(os.listdir(dev))
    except OSError:
        return Fabric()
    switches = tuple(name for name in names if name.startswith("nvidia-nvswitch") and name[-1:].isdigit())
    if not switches:
        return Fabric()
    if _finds_daemon(proc):
        return Fabric(switches, running=True)
    return Fabric(switches, running=False if sees_everyone else None)


def _finds_daemon(proc: str) -> bool:
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"{proc}/{name}").st_uid != 0:
                continue
            with open(f"{proc}/{name}/comm", encoding="utf-8", errors="replace") as file:
                if file.read().rstrip("\n") == DAEMON[:COMM_LENGTH]:
                    return True
        except OSError:
            continue
    return False


def judge_fabric(fabric: Fabric) -> Finding | None:
    """The finding for a box with NVSwitch; None where there is none."""
    if not fabric.switches:
        return None
    subject = f"{len(fabric.switches)} NVSwitch"
    if fabric.running:
        return Finding("gpu.fabric", Level.PASS, subject, "the fabric manager runs")
    action = "ask the administrator for `systemctl start nvidia-fabricmanager`"
    if fabric.running is None:
        words = "whether the fabric manager runs cannot be seen from this container"
        return Finding("gpu.fabric", Level.UNKNOWN, subject, words, action)
    words = "no fabric manager (nv-fabricmanager) runs: jobs on several cards fail with error 802 or hang"
    return Finding("gpu.fabric", Level.FAIL, subject, words, action)
