"""What changed around the tree between two looks: the host's and the control groups' counters. Pure."""

from __future__ import annotations

from holdfast.model.record import field, record

from .change import TreeChange
from .gather.box import BoxCounters, GroupFacts


@record
class BoxChange:
    """The host and the tree's control groups between two looks; seconds unless said, None where not readable.

    `others_cores` is what processes outside of the tree used; `throttled_share` the part of the quota's periods in
    which the group was held back; `disk_shares` the part in which each disk had requests; `pressure` the part of the
    time (0 to 1) in which somebody stalled.
    """

    cpus: int
    allowed_cpus: float | None
    quota_cpus: float | None
    others_cores: float | None
    steal_cores: float | None
    load: float | None
    throttled_share: float | None
    throttled_s: float | None
    pressure: dict[str, float]
    group_memory_full: float | None
    memory_share: float | None
    reclaims: float | None
    frozen: bool
    unread: tuple[str, ...] = ()
    disk_shares: dict[str, float] = field(default_factory=dict)


def compare_boxes(before: BoxCounters, after: BoxCounters, tree: TreeChange) -> BoxChange:
    """The change of the box's counters over the same window as `tree`."""
    window = tree.window_s
    busy = _per_second(before.busy_s, after.busy_s, window)
    old = {group.path: group for group in before.groups}
    pairs = [(old[group.path], group) for group in after.groups if group.path in old]
    shares = [_throttled_share(*pair) for pair in pairs]
    lost = [_grown(was.throttled_s, new.throttled_s) for was, new in pairs]
    full = [_per_second(was.memory_full_s, new.memory_full_s, window) for was, new in pairs]
    highs = [_grown(was.memory_high, new.memory_high) for was, new in pairs]
    return BoxChange(
        cpus=after.cpus,
        allowed_cpus=after.allowed_cpus,
        quota_cpus=after.quota_cpus,
        others_cores=None if busy is None else max(0.0, busy - tree.cores),
        steal_cores=_per_second(before.steal_s, after.steal_s, window),
        load=after.load,
        throttled_share=_most(shares),
        throttled_s=_most(lost),
        pressure={
            name: (after.pressure[name] - value) / window
            for name, value in before.pressure.items()
            if name in after.pressure
        },
        group_memory_full=_most(full),
        memory_share=_most([_memory_share(group) for group in after.groups]),
        reclaims=_most(highs),
        frozen=any(group.frozen for group in after.groups),
        unread=after.unread,
        disk_shares={
            name: min(1.0, (after.disk_busy_s[name] - busy_s) / window)
            for name, busy_s in before.disk_busy_s.items()
            if name in after.disk_busy_s
        },
    )


def _most(values: list[float | None]) -> float | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _per_second(before: float | None, after: float | None, window: float) -> float | None:
    return None if before is None or after is None else (after - before) / window


def _throttled_share(before: GroupFacts, after: GroupFacts) -> float | None:
    if before.periods is None or after.periods is None:
        return None
    if before.throttled_periods is None or after.throttled_periods is None:
        return None
    periods = after.periods - before.periods
    return (after.throttled_periods - before.throttled_periods) / periods if periods > 0 else 0.0


def _memory_share(group: GroupFacts) -> float | None:
    if group.memory_bytes is None or not group.memory_limit_bytes:
        return None
    return group.memory_bytes / group.memory_limit_bytes
