"""Watches memory and tasks of the running tree each second: warns in time, ends it where nothing else does.

Two tasks. **Warning** (LIM-03, LIM-09): the kernel kills at a memory limit without a word, so when the tree passes the
soft limit, and again at nine tenths of the hard one, there is an event, a notice, and a request to the job to save
(``checkpoint_request.json``, which a job polls; no signal is ever sent as a question). Whatever holds the limit.
**Ending**: limits that nothing in the kernel holds here (mechanism ``watchdog``): a burst between two looks can exceed
them. The last resort of `host.contain.limits`, and named as such in the manifest.

A supervisor that takes over reads in the event stream what was said, and does not repeat it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from holdfast.agent.supervise.notify import say_facts
from holdfast.core.job.limits import Mechanism
from holdfast.core.run.events import StopWanted
from holdfast.host.clock import utc_now
from holdfast.host.contain.limits import read_tree_memory
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.run import StopCause, StopRequest
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.agent.supervise.start.containment import Containment

EVERY_S = 1.0
CLOSELY_S = 0.2
"""How often once the tree is near: the last tenth of a limit may be filled within a second."""
NEAR_SHARE = 0.6
"""Of the next threshold: from here on it is looked at closely."""
ALERT_SHARE = 0.9
"""Of the hard memory limit."""


class Watchdog:
    """Looks at the tree that `list_pids` names until its timer ``watchdog`` is disarmed."""

    def __init__(
        self, context: SupervisorContext, containment: Containment, list_pids: Callable[[], list[int]]
    ) -> None:
        """Nothing is looked at before `begin`."""
        self._context, self._containment, self._list_pids = context, containment, list_pids
        self._watched = {
            name for name in containment.plan.watched if containment.plan.mechanism_of(name) is Mechanism.WATCHDOG
        }
        limits = context.spec.limits
        alert = None if limits.memory_bytes is None else int(ALERT_SHARE * limits.memory_bytes)
        said = _read_said(context)
        marks = (limits.memory_high_bytes, alert)
        self._marks = sorted({mark for mark in marks if mark is not None and mark > said})

    def begin(self) -> None:
        """Look from now on; soon at first, because a job may take all its memory at once."""
        self._context.loop.timers.arm("watchdog", CLOSELY_S, self._look)

    def _look(self) -> None:
        limits = self._context.spec.limits
        pids = self._list_pids() if self._needs_pids() else []
        used = self._read_memory(pids)
        over = None
        if "memory" in self._watched and limits.memory_bytes is not None and used > limits.memory_bytes:
            over = f"the tree uses {format_bytes(used)} of memory, the limit is {format_bytes(limits.memory_bytes)}"
        elif "tasks" in self._watched and limits.tasks is not None and len(pids) > limits.tasks:
            over = f"the tree has {len(pids)} processes, the limit is {limits.tasks}"
        self._warn(used)
        if over is not None:
            self._context.recorder.event("limit_exceeded", what=over)
            self._context.emit(StopWanted(StopRequest(StopCause.MEMORY, "holdfast", force=True, detail=over)))
            return
        near = bool(self._marks) and used > NEAR_SHARE * self._marks[0]
        self._context.loop.timers.arm("watchdog", CLOSELY_S if near else EVERY_S, self._look)

    def _needs_pids(self) -> bool:
        """Listing the tree costs a walk over /proc; the group's counters do not."""
        return "tasks" in self._watched or self._read_group() is None

    def _read_group(self) -> int | None:
        group = self._containment.group
        return None if group is None else group.usage().memory_anon_bytes

    def _read_memory(self, pids: list[int]) -> int:
        counted = self._read_group()
        return read_tree_memory(pids).memory_bytes if counted is None else counted

    def _warn(self, used: int) -> None:
        """Say once for each mark that it was passed, and ask the job to save while it still can."""
        passed = [mark for mark in self._marks if used > mark]
        if not passed:
            return
        self._marks = [mark for mark in self._marks if mark not in passed]
        limit = self._context.spec.limits.memory_bytes
        facts = {"used_bytes": used, "threshold_bytes": passed[-1], "limit_bytes": limit}
        self._context.recorder.event("memory_high", **facts)
        ask_to_save(self._context, facts)
        self._context.notify("memory_high", reason=say_facts(facts))


def ask_to_save(context: SupervisorContext, facts: Mapping[str, object]) -> None:
    """Ask the job to save while its memory still lets it; no signal."""
    request = {"reason": "memory", "at": utc_now(), "by": "holdfast", "id": os.urandom(4).hex(), **facts}
    context.recorder.commit(wire.CHECKPOINT_REQUEST, wire.to_bytes(request))


def _read_said(context: SupervisorContext) -> int:
    """The highest threshold that an earlier supervisor of this attempt has spoken about; 0 without one."""
    said = 0
    try:
        for line in files.read_last_lines(context.recorder.path(wire.EVENTS)):
            if b'"memory_high"' in line:
                said = max(said, int(json.loads(line)["data"]["threshold_bytes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return said
    return said
