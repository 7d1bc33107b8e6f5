"""What holds a job: rung, control group, limits. Prepared before the start, found again from the manifest on adoption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.job import Rung

if TYPE_CHECKING:
    from ..host.cgroups import Group
    from ..host.limits import LimitPlan
    from .context import Context


@dataclass(slots=True)
class Gear:
    """What holds the job: rung, control group, limits. `rung_words` says why not a better one."""

    rung: Rung
    rung_words: str
    group: Group | None
    plan: LimitPlan


def reopen_gear(context: Context) -> Gear:
    """The gear that an earlier supervisor of this attempt prepared, as its manifest tells."""
    from ..host import limits
    from ..host.cgroups import open_group

    facts = context.recorder.read_manifest()
    found = facts.get("cgroup")
    group = None
    if isinstance(found, dict):
        group = open_group(
            str(found.get("name", "")),
            found.get("unified"),
            dict(found.get("v1") or {}),
            tuple(found.get("controllers") or ()),
        )
    rung = Rung(facts.get("containment", {}).get("rung", Rung.SUBREAPER.value))
    plan = limits.plan_limits(context.spec.limits, group, priority=context.spec.priority)
    return Gear(rung, rung.value, group, plan)
