"""How far a training is, by its own words: what is left, and a curve with few points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from .stall import BUSY_FACTOR, CEILING_S, FACTOR, FLOOR_S, STARTUP_S, STEPPING, count_done, read_count

OWN_NAMES = frozenset({"step", "epoch", "time"})
"""Keys of a line of metrics that say where it stands, and are no metric."""
STALE_S = 600.0
"""A heartbeat that is older says nothing of how long it takes still."""
LATE_S, LATE_STEPS = 60.0, 10
"""Nor does one that is so old, and older than so many steps take, while the job does steps."""


def estimate_left(beat: Mapping[str, object], now_s: float) -> float | None:
    """Seconds for the steps that are left, at the pace of the last heartbeat; None where it is old or too short."""
    told = beat.get("time")
    step, planned, pace = read_count(beat.get("step")), read_count(beat.get("planned_steps")), _read_pace(beat)
    if step is None or planned is None or pace is None:
        return None
    late_s = min(STALE_S, max(LATE_S, LATE_STEPS / pace)) if beat.get("phase") in STEPPING else STALE_S
    if isinstance(told, (int, float)) and now_s - told > late_s:
        return None
    return max(0, planned - step) / pace


def find_standstill(
    beat: Mapping[str, object], now_s: float, *, stated_s: float | None, startup_s: float | None, has_cards: bool
) -> float | None:
    """Seconds since the last heartbeat where they are more than a stall clock allows; None while they are not.

    From the heartbeat alone, so it is as coarse as its pace: the run's own clock (`core.run.stall`) knows more. A card
    may be at work, so a job that has some gets the longer limit. `stated_s` and `startup_s` are `stall.no_progress` and
    `stall.startup` of the job, None where it states none.
    """
    told, pace = beat.get("time"), _read_pace(beat)
    if not isinstance(told, (int, float)) or not 0 < told <= now_s or "step" not in beat or stated_s == 0:
        return None
    learned_s = None if pace is None else min(max(FACTOR / pace, FLOOR_S), CEILING_S)
    seen_s = learned_s if stated_s is None else stated_s if learned_s is not None or count_done(beat) else None
    if beat.get("phase") not in STEPPING or seen_s is None:
        seen_s = max(STARTUP_S if startup_s is None else startup_s, stated_s or 0.0)
    waited_s = now_s - told
    return waited_s if waited_s > seen_s * (BUSY_FACTOR if has_cards else 1.0) else None


def _read_pace(beat: Mapping[str, object]) -> float | None:
    pace = beat.get("steps_per_s")
    return pace if isinstance(pace, (int, float)) and pace > 0 else None


def thin_out(values: Sequence[float], points: int) -> tuple[float, ...]:
    """At most `points` values, each the mean of those that it stands for."""
    if len(values) <= points:
        return tuple(values)
    edges = [number * len(values) // points for number in range(points + 1)]
    return tuple(sum(value / (b - a) for value in values[a:b]) for a, b in pairwise(edges))


def spread_out(points: Sequence[tuple[float, float]], begin: float, end: float, cells: int) -> list[float | None]:
    """A course of (step, value) over `cells` of equal width from the step `begin` to `end`: the mean in each.

    A cell without a value has that of the one before; None where the course has not begun, or is over.
    """
    found: list[list[float]] = [[] for _ in range(cells)]
    for step, value in points:
        share = (step - begin) / (end - begin) if end > begin else 0.0
        found[min(cells - 1, max(0, int(share * cells)))].append(value)
    means = [sum(value / len(values) for value in values) if values else None for values in found]
    last = max((number for number, mean in enumerate(means) if mean is not None), default=-1)
    for number in range(1, last + 1):
        if means[number] is None:
            means[number] = means[number - 1]
    return means
