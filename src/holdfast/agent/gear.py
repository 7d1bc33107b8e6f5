"""What holds a job: rung, control group, limits. Prepared before the start, found again in the manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.limits import Mechanism
from ..model.job import Rung

if TYPE_CHECKING:
    from ..host.cgroups import Group
    from ..host.limits import LimitPlan
    from .context import Context

BY_GROUP = (Mechanism.CGROUP_V2.value, Mechanism.CGROUP_V1.value, Mechanism.SYSTEMD_SCOPE.value)


@dataclass(slots=True)
class Gear:
    """What holds the job: rung, control group, limits. `rung_words` says why not a better one."""

    rung: Rung
    rung_words: str
    group: Group | None
    plan: LimitPlan

    @property
    def joins_late(self) -> bool:
        """Whether the job may be moved into its group after exec instead of before.

        Moving a process waits for all CPUs, ten milliseconds on a quiet box (the kernel's cgroup_threadgroup_rwsem).
        Where the group only counts (no limit rests on it, and the PID namespace contains the job), nobody has to wait
        for that.
        """
        return self.group is not None and self.rung is Rung.PID_NAMESPACE and not self.group.enforced


def reopen_gear(context: Context) -> Gear:
    """The gear that an earlier supervisor of this attempt prepared, as its manifest tells."""
    from ..host import limits
    from ..host.cgroups import open_group

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
    if group is not None:
        group.enforced.update(_read_held(facts.get("limits")))
    rung = _read_rung(facts.get("containment"))
    plan = limits.plan_limits(context.spec.limits, group, priority=context.spec.priority)
    return Gear(rung, rung.value, group, plan)


def _is_own(path: object, name: str) -> bool:
    return isinstance(path, str) and os.path.basename(path) == name


def _read_rung(recorded: object) -> Rung:
    """The recorded rung; without a readable record the one that assumes least."""
    try:
        return Rung(recorded.get("rung")) if isinstance(recorded, dict) else Rung.SUBREAPER
    except ValueError:
        return Rung.SUBREAPER


def _read_held(limits: object) -> dict[str, str]:
    """The limits that the group was seen to take when it was made, with the mechanism, as the manifest lists them."""
    found = {}
    for limit in limits if isinstance(limits, list) else []:
        if isinstance(limit, dict) and limit.get("mechanism") in BY_GROUP:
            found[str(limit.get("name"))] = str(limit["mechanism"])
    return found
