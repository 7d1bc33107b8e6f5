"""Gives a running tree other limits: control group, CPUs and priority of each thread; whole, or as it was before."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.core.job.live_limits import describe_excess, find_new_memory
from holdfast.core.rules.rules import apply_rules
from holdfast.host.contain import limits
from holdfast.host.contain.create import set_limits
from holdfast.host.process import libc
from holdfast.host.process.processes import is_alive

from .start.containment import BY_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.host.contain.limits import LimitPlan
    from holdfast.model.identity import ProcessId
    from holdfast.model.job import JobSpec, Limits

    from .context import SupervisorContext
    from .start.containment import Containment

ROUNDS = 2
"""A process that was forked while its parent was changed is met in the second."""
IO_LEVEL_NORMAL = 4
"""What the kernel gives a process that never asked. Source: ioprio_set(2)."""


class LimitsRefused(Exception):
    """The limits stay as they were; the message says why, for people."""


def change_limits(
    context: SupervisorContext,
    containment: Containment,
    tree: Callable[[], Sequence[ProcessId]],
    after: JobSpec,
    *,
    force: bool,
) -> None:
    """Have the tree held by the limits of `after` instead of those of the context's job; `containment` says by what.

    Raises:
        LimitsRefused: nothing here can hold one of them, the tree is above one, or the kernel did not allow it.
    """
    before, group = context.spec, containment.group
    if not force:
        _require_room(containment, [process.pid for process in tree()], before.limits, after.limits)
    if group is not None:
        set_limits(group, after.limits, before.limits)
    plan = _plan(context, containment, after)
    known = {(limit.name, limit.asked) for limit in containment.plan.unenforceable}
    lost = [limit for limit in plan.unenforceable if (limit.name, limit.asked) not in known]
    # The kernel takes a limit that it cannot keep (memory in use) for an error: a watchdog instead would end the job.
    refused = {} if group is None else {n: why for n, why in group.refused.items() if _held_before(containment, n)}
    problems = [f"{limit.name} {limit.asked}: {limit.detail}" for limit in lost]
    problems += [f"{name}: {why}" for name, why in refused.items() if name not in {limit.name for limit in lost}]
    if not problems:
        problems = _apply(tree, containment.plan, plan, before, after)
    if problems:
        if group is not None:
            set_limits(group, before.limits, after.limits)
        _apply(tree, plan, containment.plan, after, before)
        raise LimitsRefused("; ".join(problems))
    containment.plan = plan


def _plan(context: SupervisorContext, containment: Containment, spec: JobSpec) -> LimitPlan:
    allowed = apply_rules(spec, context.rules)[0]
    return limits.plan_limits(
        spec.limits,
        containment.group,
        priority=context.choose_priority(allowed.priority).priority,
        nice=context.rules.nice,
        spread=context.run_id,
    )


def _held_before(containment: Containment, name: str) -> bool:
    return any(limit.name == name and limit.mechanism.value in BY_GROUP for limit in containment.plan.limits)


def _require_room(containment: Containment, pids: list[int], before: Limits, after: Limits) -> None:
    """Refuse a limit that the tree is above now: it would be killed, or could start nothing."""
    wanted = find_new_memory(before, after)
    if wanted is not None:
        used = None if containment.group is None else containment.group.usage().memory_anon_bytes
        used = limits.read_tree_memory(pids).memory_bytes if used is None else used
        if words := describe_excess(used, wanted):
            raise LimitsRefused(f"{words}; see --force")
    if after.tasks is not None and after.tasks != before.tasks and len(pids) > after.tasks:
        raise LimitsRefused(f"it has {len(pids)} processes, more than {after.tasks}; see --force")


def _apply(
    tree: Callable[[], Sequence[ProcessId]], old: LimitPlan, new: LimitPlan, before: JobSpec, after: JobSpec
) -> list[str]:
    """Set on every thread what changed for it; what could not be done, in words."""
    nice = None
    if before.priority is not after.priority and new.nice != old.nice:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        nice = own if new.nice is None else max(new.nice, own)
    cpus = (new.cpus or sorted(os.sched_getaffinity(0))) if new.cpus != old.cpus else ()
    if nice is None and not cpus:
        return []
    for _ in range(ROUNDS):
        for thread in _list_threads(tree()):
            try:
                if cpus:
                    os.sched_setaffinity(thread, cpus)
                if nice is not None:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
            except ProcessLookupError:
                continue
            except PermissionError:
                return [f"nice {nice}: only an administrator may raise a priority again"]
            except OSError as error:
                return [f"CPUs {','.join(map(str, cpus))}: {error.strerror}"]
            if nice is not None:
                # Beside the nice value it is only a hint, which some schedulers do not know.
                with contextlib.suppress(OSError):
                    level = IO_LEVEL_NORMAL if new.io_level is None else new.io_level
                    libc.set_io_priority(libc.IOPRIO_BEST_EFFORT, level, pid=thread)
    return []


def _list_threads(processes: Sequence[ProcessId]) -> Iterator[int]:
    for process in processes:
        try:
            threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        except OSError:
            continue
        if is_alive(process):
            yield from threads
