"""Limits that nothing in the kernel holds here: the whole tree is looked at every second, and ended or reported.

The last resort of `host.limits`, and named as such in the manifest: a burst between two looks can exceed the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.events import StopWanted
from ..core.limits import Mechanism
from ..host.limits import read_tree_memory
from ..model.run import StopCause, StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..host.limits import LimitPlan
    from .context import Context

EVERY_S = 1.0


class Watchdog:
    """Looks at the tree that `list_pids` names until its timer ``watchdog`` is disarmed."""

    def __init__(self, context: Context, plan: LimitPlan, list_pids: Callable[[], list[int]]) -> None:
        """Nothing is looked at before `begin`."""
        self._context, self._list_pids = context, list_pids
        self._watched = {name for name in plan.watched if plan.mechanism_of(name) is Mechanism.WATCHDOG}
        self._warned = False

    def begin(self) -> None:
        """Look from now on."""
        self._context.loop.timers.arm("watchdog", EVERY_S, self._look)

    def _look(self) -> None:
        pids = self._list_pids()
        limits = self._context.spec.limits
        used = read_tree_memory(pids).memory_bytes if self._watched & {"memory", "memory_high"} else 0
        over = None
        if "memory" in self._watched and limits.memory_bytes is not None and used > limits.memory_bytes:
            over = f"the tree uses {used} bytes of memory, the limit is {limits.memory_bytes}"
        elif "tasks" in self._watched and limits.tasks is not None and len(pids) > limits.tasks:
            over = f"the tree has {len(pids)} processes, the limit is {limits.tasks}"
        if over is not None:
            self._context.recorder.event("limit_exceeded", what=over)
            self._context.emit(StopWanted(StopRequest(StopCause.MEMORY, "holdfast", force=True, detail=over)))
            return
        soft = limits.memory_high_bytes
        if "memory_high" in self._watched and soft is not None and used > soft and not self._warned:
            self._warned = True
            self._context.recorder.event("memory_high", used_bytes=used, limit_bytes=soft)
            self._context.notify("memory_high")
        self.begin()
