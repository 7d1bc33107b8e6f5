"""The bills of places for people: a row each, or all of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.desk.cost.costs import NONE, QUOTA
from holdfast.desk.cost.reminder import describe_sum, remind
from holdfast.desk.places.config import places_path
from holdfast.model.place import LOCAL
from holdfast.model.units import format_duration

from . import clean, note, pairs, table

if TYPE_CHECKING:
    from holdfast.desk.cost.costs import PlaceCost
    from holdfast.desk.cost.every import Costs


def print_costs(found: Costs, *, named: str | None) -> None:
    """A row for each place, or all that is known of the one that was named."""
    for problem in found.problems:
        note(problem)
    if named is not None:
        _print_one(found)
        return
    if not found.places:
        note("no place has a meter or a quota: `profile` and [NAME.rent] of places.toml say of one that it has")
        return
    headers = ("place", "since", "hours", "an hour", "sum", "idle", "cap", "state")
    table(headers, [_row(cost) for cost in found.places], right=(2, 3, 4, 5, 6))
    for cost in found.places:
        for words in filter(None, (cost.unknown and f"{cost.place}: {cost.unknown}", remind(cost))):
            note(words)


def _row(cost: PlaceCost) -> tuple[object, ...]:
    return (
        cost.place,
        cost.since[:16] or None,
        None if cost.hours is None else f"{cost.hours:.1f}",
        None if cost.rate is None else f"{cost.rate:g}",
        None if cost.total is None else f"{cost.total:.2f} {cost.unit}".rstrip(),
        _describe_idle(cost),
        None if cost.cap is None else f"{cost.cap:g}",
        _describe_state(cost),
    )


def _describe_idle(cost: PlaceCost) -> str | None:
    return None if cost.idle_share is None else f"{100 * cost.idle_share:.0f} %"


def _describe_state(cost: PlaceCost) -> str:
    if cost.until is not None:
        return "ended"
    if cost.live:
        return f"{cost.live} live"
    return "idle" if cost.seen_until else "never seen"


def _print_one(found: Costs) -> None:
    [cost] = found.places
    if cost.metered == NONE:
        print(_describe_no_meter(cost))
    else:
        pairs(list(_describe(cost)))
        if cost.unknown:
            note(f'{cost.unknown}; write there ({places_path()}), such as: since = "2026-11-23T08:00Z", rate = 1.99')
    for each in found.estimates:
        amount = "not known" if each.sum is None else f"{each.sum:.2f} {cost.unit}".rstrip()
        print(clean(f"{each.what}: {amount} ({each.words})"))


def _describe_no_meter(cost: PlaceCost) -> str:
    if cost.place == LOCAL or cost.profile:
        return f"{cost.place} has no meter" + (f": it is of the profile {cost.profile}" if cost.profile else "")
    words = f"{cost.place} has no meter: {places_path()} says nothing of one. If it is rented, write there:"
    return f'{words}\n[{cost.place}.rent]\nsince = "2026-11-23T08:00Z"\nrate = 1.99\ncurrency = "USD"'


def _describe(cost: PlaceCost) -> Iterator[tuple[str, object]]:
    yield "place", f"{cost.place}" + (f" ({cost.profile})" if cost.profile else "")
    yield "so far", describe_sum(cost)
    if cost.ended:
        yield "the machine", cost.ended
    if cost.idle_share is not None:
        yield "idle", f"{_describe_idle(cost)} of the time until {cost.seen_until} no run held a card"
    if cost.metered != QUOTA and cost.used_h is not None:
        yield "hours of cards", f"{cost.used_h:.1f}"
    if cost.cap is not None:
        reached = "reached: nothing new is begun there" if cost.over_cap else "not reached"
        yield "cap", f"{cost.cap:g} {cost.unit}".rstrip() + f", {reached}"
    runs = f"{cost.live} live" if cost.live else "none lives"
    yield "runs", runs + (f", the last that ended did at {cost.last_ended_at}" if cost.last_ended_at else "")
    for each in cost.clocks:
        left = f"in {format_duration(each.left_s)}" if each.left_s else "now, or it has happened"
        yield f"clock: {each.name}", f"{left}: {each.what}"
    for clock in cost.clocks_to_begin:
        yield f"clock: {clock.name}", f"{format_duration(clock.after_s)} after {clock.begins}: {clock.what}"
    if cost.also:
        yield "bills on its own", "\n".join(cost.also)
    if cost.egress_per_gb is not None:
        yield "egress", f"{cost.egress_per_gb:g} {cost.unit} a GB that leaves it".replace("  ", " ")
    if cost.bills:
        yield "to end it", f"holdfast teardown {cost.place}"
