"""The meter of a rented place: hours, money, idle share, countdowns. Pure; times are epoch seconds.

A provider bills from the start of the rent to its end, whether a run lives or not. A rate is of the whole machine: the
number of its cards is in the price already, and is never multiplied in again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.model.profile import Clock
from holdfast.model.record import record

HOUR_S = 3600.0


@record
class Countdown:
    """A danger clock that runs: when it began, and what is left of it (0: it is over, `what` may have happened)."""

    name: str
    what: str
    began_s: float
    left_s: float


def find_hours(since_s: float, now_s: float) -> float:
    """Hours that were billed so far; none before the rent begins."""
    return max(0.0, now_s - since_s) / HOUR_S


def find_idle_share(begin_s: float, end_s: float, busy: Iterable[tuple[float, float]]) -> float | None:
    """The share of a span in which none of the `busy` spans is, 0 to 1; None for an empty one."""
    if end_s <= begin_s:
        return None
    used, reached = 0.0, begin_s
    for began_s, ended_s in sorted(busy):
        first, last = max(began_s, reached), min(ended_s, end_s)
        if last > first:
            used += last - first
            reached = last
    return 1.0 - used / (end_s - begin_s)


def estimate_egress(gb: float, per_gb: float, times: int = 1) -> float:
    """What it costs to have `gb` leave a provider `times` times, at its price for one."""
    return gb * per_gb * times


def estimate_loss(interval_s: float, rate: float, machines: int = 1) -> float:
    """The most that an interruption costs: all since the last save, on each machine at its price for an hour."""
    return interval_s / HOUR_S * rate * machines


def find_countdowns(clocks: Sequence[Clock], began: Mapping[str, float], now_s: float) -> tuple[Countdown, ...]:
    """The clocks that run, the one with least time left first; `began` says since when its beginning is so."""
    running = [
        Countdown(clock.name, clock.what, began[clock.begins], max(0.0, began[clock.begins] + clock.after_s - now_s))
        for clock in clocks
        if clock.begins in began
    ]
    return tuple(sorted(running, key=lambda each: each.left_s))
