"""A job's containment: isolation level, control group, limits. Prepared at the start, read again from the manifest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.core.job.limits import Mechanism
from holdfast.host.contain import limits, members
from holdfast.host.contain.create import find_group, open_group
from holdfast.model.job import IsolationLevel
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent.supervise.context import SupervisorContext
    from holdfast.host.contain.create import ControlGroup
    from holdfast.host.contain.limits import LimitPlan
    from holdfast.host.contain.members import RunTree
    from holdfast.model.container import ContainerRecord
    from holdfast.model.identity import ProcessId

JOIN_ROUNDS = 4
"""A tree that forks while it is moved is looked at again, so often."""
BY_GROUP = (Mechanism.CGROUP_V2.value, Mechanism.CGROUP_V1.value, Mechanism.SYSTEMD_SCOPE.value)


@record(frozen=False)
class Containment:
    """What holds the job: level, control group, limits. `level_words` says why not a better one."""

    level: IsolationLevel
    level_words: str
    group: ControlGroup | None
    plan: LimitPlan
    outer: ControlGroup | None = None
    container: ContainerRecord | None = None

    @property
    def own_group(self) -> ControlGroup | None:
        """The group that we made, and have to remove; in `group` stands the container's where that has one."""
        return self.group if self.container is None or not self.container.groups else self.outer

    def enter_container(self, container: ContainerRecord, group: ControlGroup | None) -> None:
        """From now on the job is what is in this container; `group` is its own control group, where it has one."""
        own, self.container = self.own_group, container
        if group is not None:
            self.outer, self.group = own, group

    @property
    def joins_late(self) -> bool:
        """Whether the job may be moved into its group after exec instead of before.

        Moving a process waits for all CPUs, ten milliseconds on a quiet box (the kernel's cgroup_threadgroup_rwsem).
        Where the group only counts (no limit rests on it, and the PID namespace contains the job), nobody has to wait
        for that.
        """
        if self.container is not None:
            return False
        return self.group is not None and self.level is IsolationLevel.PID_NAMESPACE and not self.group.enforced


def reopen_containment(context: SupervisorContext) -> Containment:
    """The containment that an earlier supervisor of this attempt prepared, as its manifest tells."""
    facts = context.recorder.read_manifest()
    name = f"{context.run_id}.{context.attempt}"
    found = facts.get("cgroup")
    group = None
    if isinstance(found, dict):
        # A damaged record must not lead to somebody else's group: all in it would be killed.
        v1 = found.get("v1")
        pairs = v1.items() if isinstance(v1, dict) else ()
        trees = {str(kind): path for kind, path in pairs if _is_own(path, name)}
        unified = found.get("unified") if _is_own(found.get("unified"), name) else None
        group = open_group(name, unified, trees, tuple(found.get("controllers") or ()))
    group = group or find_group(name)
    if group is not None:
        group.enforced.update(_read_held(facts.get("limits")))
    level = _read_level(facts.get("containment"))
    priority = context.choose_priority(context.spec.priority).priority
    plan = limits.plan_limits(context.spec.limits, group, priority=priority)
    return Containment(level, level.value, group, plan)


def _is_own(path: object, name: str) -> bool:
    return isinstance(path, str) and os.path.basename(path) == name


def _read_level(recorded: object) -> IsolationLevel:
    """The recorded level; without a readable record the one that assumes least."""
    try:
        return IsolationLevel(recorded.get("level")) if isinstance(recorded, dict) else IsolationLevel.SUBREAPER
    except ValueError:
        return IsolationLevel.SUBREAPER


def _read_held(limits: object) -> dict[str, str]:
    """The limits that the group was seen to take when it was made, with the mechanism, as the manifest lists them."""
    found = {}
    for limit in limits if isinstance(limits, list) else []:
        if isinstance(limit, dict) and limit.get("mechanism") in BY_GROUP:
            found[str(limit.get("name"))] = str(limit["mechanism"])
    return found


def join_group(
    group: ControlGroup, keeper: ProcessId | None, find_tree: Callable[[], RunTree], log: Callable[[str], None]
) -> None:
    """Move everybody of a running tree into its group, `log` hears of whom not; what starts later begins there."""
    for _ in range(JOIN_ROUNDS):
        outside = _list_outside(group, keeper, find_tree)
        for pid in outside:
            try:
                group.add(pid)
            except ProcessLookupError:
                continue
            except OSError as error:
                log(f"pid {pid} could not be moved into {group.witness}: {error}")
        if not outside:
            return


def _list_outside(group: ControlGroup, keeper: ProcessId | None, find_tree: Callable[[], RunTree]) -> list[int]:
    """Who of the tree is not in its group. A living keeper knows: all of its namespace descends from it."""
    below = None if keeper is None else members.list_descendants(keeper)
    if below is None:
        found = members.find_members(find_tree())
        return [member.process.pid for member in found if member.proof is not members.MembershipProof.CGROUP]
    inside = set(group.pids() or ())
    return [pid for pid in below if pid not in inside]
