"""Reads the box soon after the end of an attempt: counters, disks, kernel log, memory daemons' messages.

This part cannot be repeated: counters go on counting what happens to others, the kernel log is overwritten. So it is
taken once and kept with the verdict. Plain values, as the baseline. Nothing here blocks: disks on network mounts and
the kernel log are read by children with deadlines, the journal by a program that is killed after one.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from holdfast.diagnosis.evidence import KernelLog, Reading
from holdfast.diagnosis.kernel.log import read_kernel_log
from holdfast.model import wire

from .baseline import read_counters, read_level

Facts = dict[str, Any]
KMSG = "/dev/kmsg"
JOURNAL_WITHIN_S = 3.0
JOURNAL_LINES = 50
JOURNALS = ("/run/log/journal", "/var/log/journal")
KILLERS = ("systemd-oomd", "earlyoom", "oomd", "nohang")
"""Syslog identifiers of daemons that kill for lack of memory before the kernel does."""


def look_at_box(baseline: Facts, ended_s: float, began_s: float, *, killed: bool, kernel_source: str = KMSG) -> Facts:
    """What the box says now of an attempt that lived from `began_s` to `ended_s` (epoch seconds).

    `killed` is False when the end cannot have been a memory daemon's doing, so that nobody is asked in vain.
    """
    levels = [level["path"] for level in _objects(baseline.get("memory_levels")) if isinstance(level.get("path"), str)]
    places = [
        (str(disk.get("role")), disk["path"])
        for disk in _objects(baseline.get("disks"))
        if isinstance(disk.get("path"), str)
    ]
    found = read_counters(levels, places)
    log = _read_kernel_log(kernel_source)
    return {
        **found,
        "kernel": {"unread": log.unread, "log": None if log.value is None else wire.encode(log.value)},
        "killers": _read_killers(began_s, ended_s) if killed else {"lines": [], "unread": ""},
    }


def read_own_group(cgroup: Facts) -> int | None:
    """OOM kills of a run's own group, by its record in the manifest, while the group is still there."""
    v1 = cgroup.get("v1")
    places = [cgroup.get("unified"), v1.get("memory") if isinstance(v1, dict) else None]
    for place in places:
        level = read_level(place) if isinstance(place, str) and place.startswith("/") else None
        if level is not None and isinstance(level["oom_kills"], int):
            return level["oom_kills"]
    return None


def decode_kernel(facts: object) -> Reading[KernelLog]:
    """The kernel log as a look has kept it."""
    if not isinstance(facts, dict):
        return Reading(unread="it was not looked at")
    if facts.get("unread"):
        return Reading(unread=str(facts["unread"]))
    try:
        return Reading(wire.decode(KernelLog, facts.get("log"), "kernel"))
    except wire.WireError as error:
        return Reading(unread=f"what was kept of it is damaged: {error}")


def _read_kernel_log(source: str) -> Reading[KernelLog]:
    return read_kernel_log(source=source)


def _objects(value: object) -> list[Facts]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_killers(began_s: float, ended_s: float) -> Facts:
    """What memory daemons wrote to the journal while the attempt lived.

    An account that may not read the system's journal gets an empty answer from journalctl, so the file is asked first.
    """
    program = shutil.which("journalctl")
    if program is None or not _can_read_journal():
        return {"lines": [], "unread": "there is no system journal that this account may read"}
    import subprocess

    # One second more on both sides: journalctl takes whole seconds.
    window = ("--since", f"@{int(began_s) - 1}", "--until", f"@{int(ended_s) + 2}")
    identifiers = [word for name in KILLERS for word in ("-t", name)]
    command = [program, "-q", "--no-pager", "-o", "short-iso", "-n", str(JOURNAL_LINES), *window, *identifiers]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=JOURNAL_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"lines": [], "unread": f"journalctl: {error}"}
    # 1 is "no entries" in newer versions; what it could not do stands on its standard error.
    if done.returncode != 0 and done.stderr.strip():
        return {"lines": [], "unread": f"journalctl: {done.stderr.decode('utf-8', 'replace').strip()[:200]}"}
    return {"lines": done.stdout.decode("utf-8", "replace").splitlines()[-JOURNAL_LINES:], "unread": ""}


def _can_read_journal() -> bool:
    for root in JOURNALS:
        try:
            machines = os.listdir(root)
        except OSError:
            continue
        if any(os.access(f"{root}/{machine}/system.journal", os.R_OK) for machine in machines):
            return True
    return False
