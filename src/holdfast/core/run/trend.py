"""Estimates how fast something is used up, and how long it lasts, from samples that jump (STOR-09, MON-10). Pure.

The slope is the median of the slopes of all pairs of samples (Theil and Sen): a checkpoint that is written and one that
is deleted are outliers to it, not a trend. Its uncertainty is the middle half of those slopes. Times are seconds on any
clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.record import record

LEAST_SAMPLES = 6
MOST_SAMPLES = 40
ALARM_S = 2 * 3600.0
"""Less time than this until nothing is left is told."""
CLEAR_S = 3 * 3600.0
"""More than this again takes it back: what hovers around the limit is told once."""
SLOW_FACTOR = 3.0
"""How much longer than `ALARM_S` the slow estimate may be: beyond it, nobody knows."""


@record
class Trend:
    """Change for each second: the median of all pairs, and the middle half (`low` <= `slope` <= `high`)."""

    slope: float
    low: float
    high: float


@record
class TimeLeft:
    """Seconds until nothing is left: likely, at the earliest, at the latest; None is "not in sight"."""

    likely_s: float | None
    earliest_s: float | None
    latest_s: float | None


def find_trend(samples: Iterable[tuple[float, float]]) -> Trend | None:
    """The trend of (time, value) samples in the order of their times; None when there are fewer than 6."""
    points = list(samples)[-MOST_SAMPLES:]
    if len(points) < LEAST_SAMPLES:
        return None
    slopes = sorted(
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for index, sooner in enumerate(points)
        for later in points[index + 1 :]
        if later[0] > sooner[0]
    )
    if not slopes:
        return None
    middle, quarter = len(slopes) // 2, len(slopes) // 4
    return Trend(slopes[middle], slopes[quarter], slopes[-1 - quarter])


def find_time_left(left: float, trend: Trend) -> TimeLeft:
    """When `left` is used up if it goes on like this; a trend that rises uses nothing up."""
    likely, earliest, latest = (left / -slope if slope < 0 else None for slope in (trend.slope, trend.low, trend.high))
    return TimeLeft(likely, earliest, latest)


class Alarm:
    """Whether something is to be told: once, and again only after it was well in between."""

    def __init__(self) -> None:
        """All is well."""
        self.raised = False

    def note(self, *, bad: bool, well: bool) -> bool:
        """True when it has just turned bad. Neither `bad` nor `well`: it stays as it is."""
        if bad and not self.raised:
            self.raised = True
            return True
        if well and not bad:
            self.raised = False
        return False


def is_soon(left: TimeLeft) -> bool:
    """Whether the end is near enough to be told, and sure enough: the slow estimate says soon, too."""
    if left.likely_s is None or left.latest_s is None:
        return False
    return left.likely_s < ALARM_S and left.latest_s < SLOW_FACTOR * ALARM_S


def is_far(left: TimeLeft) -> bool:
    """Whether the end is so far that an alarm is over."""
    return left.likely_s is None or left.likely_s > CLEAR_S


def find_median(values: Iterable[float]) -> float | None:
    """The median; None of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
