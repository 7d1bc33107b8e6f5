"""Watches the memory limit of a container or scheduler around a run that has none of its own (LIM-09, MON-10).

The kernel kills at such a limit as at one of ours, and does not say so. A run with a limit of its own is looked at by
`watchdog`; here a health sample is all the looking there is. What fills the limit may be others beside the run, so the
memory of the limited group as a whole counts, where it can be read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.run.trend import Alarm
from holdfast.host.contain.group import read_text
from holdfast.host.contain.tree import read_effective

from .limits import ask_to_save

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext

ALERT_SHARE = 0.9
WELL_SHARE = 0.8
"""The alert is over, and may come again, when less than this is used."""


class MemoryWatch:
    """Holds the memory of one run against the smallest limit that is in force for it."""

    def __init__(self, context: SupervisorContext, alert: Callable[..., None]) -> None:
        """The limit around the run is looked for at the first sample. `alert` is told an event's name and its facts."""
        self._context, self._alert = context, alert
        self._around: tuple[int | None, str] | None = None
        self._alarm = Alarm()

    def judge(self, used: int | None, leader: int | None) -> dict[str, object]:
        """Limit in force and share of it in use, for the sample.

        Args:
            used: memory of the run's tree that cannot be given back, bytes; None when it cannot be read.
            leader: the job's leader, whose place among the control groups counts.
        """
        own = self._context.spec.limits.memory_bytes
        if own is not None:
            return _describe(used, own)
        if self._around is None and leader is not None:
            self._around = find_limit(leader)
        limit, source = self._around or (None, "")
        if limit is None:
            return _describe(used, None)
        known = [value for value in (used, read_unreclaimable(os.path.dirname(source))) if value is not None]
        together = max(known, default=None)
        if together is not None:
            self._warn(together, limit, source)
        return _describe(together, limit)

    def _warn(self, used: int, limit: int, source: str) -> None:
        threshold = int(ALERT_SHARE * limit)
        if self._alarm.note(bad=used > threshold, well=used < WELL_SHARE * limit):
            facts = {"used_bytes": used, "threshold_bytes": threshold, "limit_bytes": limit}
            self._alert("memory_high", **facts, source=source)
            ask_to_save(self._context, facts)


def find_limit(leader: int) -> tuple[int | None, str]:
    """The smallest memory limit of any group around a process, and the file that says so; None: there is none."""
    effective = read_effective(leader)
    return effective.memory_bytes, effective.sources.get("memory", "")


def read_unreclaimable(directory: str) -> int | None:
    """Anonymous memory of a control group with all below it, bytes; None when it cannot be read.

    Source: Documentation/admin-guide/cgroup-v2.rst (``anon``), cgroup-v1/memory.rst (``total_rss``).
    """
    rows = dict(
        line.split(" ", 1) for line in (read_text(f"{directory}/memory.stat") or "").splitlines() if " " in line
    )
    found = rows.get("total_rss") or rows.get("anon") or ""
    return int(found) if found.isdigit() else None


def _describe(used: int | None, limit: int | None) -> dict[str, object]:
    share = None if used is None or not limit else round(used / limit, 4)
    return {"memory_limit_bytes": limit, "memory_share": share}
