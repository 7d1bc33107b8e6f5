"""One line about a place that bills, for whoever looks at its runs (GEN1): nothing stops a meter by itself."""

from __future__ import annotations

from holdfast.host import clock
from holdfast.model.record import record
from holdfast.model.units import format_duration

from .costs import QUOTA, PlaceCost

FINISHED_S = 600.0
"""From then on a place without a live run is "finished": before, somebody may still be at it."""
UNUSED_S = 3600.0
"""From then on a place in which nothing has run yet is "unused": before, somebody may be preparing it."""
SOON_S = 24 * 3600.0


@record
class Reminder:
    """A line about a place that bills. `urgent` names what a person is needed for, empty where nobody is."""

    place: str
    words: str
    urgent: str = ""


def remind(cost: PlaceCost) -> str:
    """What a place has cost, and whether anything still runs there; empty where nothing bills."""
    if not cost.bills or (cost.hours is None and cost.total is None) or (cost.metered == QUOTA and cost.cap is None):
        return ""
    words = f"{cost.place}: {describe_sum(cost)}"
    if cost.over_cap:
        words += f", above the cap of {cost.cap:g} {cost.unit}".rstrip()
    idle_s = _find_idle(cost)
    if idle_s is not None:
        words += (
            f"; its last run finished {format_duration(idle_s)} ago and it still bills: holdfast teardown {cost.place}"
        )
    unused_s = _find_unused(cost)
    if unused_s is not None:
        words += (
            f"; as far as this desk has seen nothing has run there in {format_duration(unused_s)}, and it bills: "
            f"holdfast teardown {cost.place}"
        )
    if cost.clocks:
        first = cost.clocks[0]
        due = f"in {format_duration(first.left_s)}" if first.left_s else "by its clock this may have happened"
        words += f"; {due}: {first.what}"
    return words


def find_urgent(cost: PlaceCost) -> str:
    """What of a place that bills a person is needed for, by a word that stays the same: told once a day."""
    urgent = (
        ("above its cap", cost.over_cap),
        ("a clock", bool(cost.clocks) and cost.clocks[0].left_s < SOON_S),
        ("finished", _find_idle(cost) is not None),
        ("unused", _find_unused(cost) is not None),
    )
    return next((f"{words} on {cost.at[:10]}" for words, so in urgent if so), "") if cost.bills else ""


def _find_idle(cost: PlaceCost) -> float | None:
    """Seconds for which a place has billed with nothing left to run; None where that is not so."""
    idle_s = clock.find_age(cost.last_ended_at, clock.parse_utc(cost.at))
    finished = not cost.live and idle_s is not None and idle_s >= FINISHED_S and cost.metered != QUOTA
    return idle_s if finished else None


def _find_unused(cost: PlaceCost) -> float | None:
    """Seconds for which a place has billed and nothing has run; None where that is not so."""
    if cost.live or cost.last_ended_at is not None or cost.metered == QUOTA or cost.hours is None:
        return None
    unused_s = cost.hours * 3600
    return unused_s if unused_s >= UNUSED_S else None


def describe_sum(cost: PlaceCost) -> str:
    """Hours, rate and sum: ``2.0 h at 1.99 USD = 3.98 USD``."""
    if cost.metered == QUOTA:
        return f"{cost.total or 0:.1f} h of cards used" + ("" if cost.cap is None else f" of {cost.cap:g} h")
    if cost.hours is None:
        return "not known: since when it bills is not written down"
    hours = f"{cost.hours:.1f} h"
    if cost.rate is None or cost.total is None:
        return f"rented for {hours}, and what an hour costs is not known"
    return f"{hours} at {cost.rate:g} {cost.unit}".rstrip() + f" = {cost.total:.2f} {cost.unit}".rstrip()
