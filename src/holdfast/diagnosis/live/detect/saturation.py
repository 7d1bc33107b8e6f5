"""What is nearly used up: a disk that has requests all the time, descriptors against their limit (DIAG-13). Pure.

Context for every verdict but "it gets on": none of these proves a hang, each explains a slow or a failing run.
"""

from __future__ import annotations

from holdfast.diagnosis.live.case import Case
from holdfast.model.verdict import Clue

SATURATED = 0.95
"""A disk that had requests for so much of the time is the bottleneck, where it serves one at a time. A disk that serves
many at once can do more: then the pressure on tasks tells."""
STALLED = 0.10
NEARLY_ALL = 0.9


def find_saturation(case: Case) -> tuple[Clue, ...]:
    """The disks and the descriptors that are nearly used up."""
    stalled = case.box.pressure.get("io.some")
    busy = {name: share for name, share in case.box.disk_shares.items() if share >= SATURATED}
    # Without the kernel's pressure counters the disk's own word has to do.
    clues = [
        Clue(f"disk {name} had requests {share:.0%} of the time", "diskstats")
        for name, share in sorted(busy.items())
        if stalled is None or stalled >= STALLED
    ]
    for process in case.change.living:
        used, limit = process.after.files_open, process.after.files_limit
        if used is not None and limit and used >= NEARLY_ALL * limit:
            text = f"pid {process.pid} ({process.after.name}) has {used} of {limit} descriptors open (ulimit -n)"
            clues.append(Clue(text, f"/proc/{process.pid}/limits"))
    return tuple(clues[:4])
