"""The bills of all places at once, and the reminders of those that bill."""

from __future__ import annotations

import time
from collections.abc import Iterable

from holdfast.desk.places.config import read_places
from holdfast.desk.profiles.read import profile_of_place
from holdfast.model.errors import HoldfastError
from holdfast.model.place import Place
from holdfast.model.profile import Profile
from holdfast.model.record import record

from .costs import NONE, PlaceCost, find_cost
from .reminder import Reminder, find_urgent, remind


@record
class Estimate:
    """A sum that was asked for, and how it comes about, in words."""

    what: str
    sum: float | None
    words: str


@record
class Costs:
    """The bills of places with a meter or a quota, and `problems` of those whose profile cannot be read."""

    places: tuple[PlaceCost, ...]
    problems: tuple[str, ...] = ()
    estimates: tuple[Estimate, ...] = ()


def list_costs(place: Place | None = None) -> Costs:
    """The bill of a place, or of all that have one.

    Raises:
        UsageError, NotPermitted, StorageError: as of `read_places`.
    """
    found, problems, now_s = [], [], time.time()
    for each in [place] if place is not None else read_places().values():
        profile, problem = find_profile(each)
        problems += [problem] if problem else []
        cost = find_cost(each, profile, now_s)
        if place is not None or cost.metered != NONE:
            found.append(cost)
    return Costs(tuple(found), tuple(problems))


def find_profile(place: Place) -> tuple[Profile | None, str]:
    """A place's profile, and why it cannot be read; without one a stated rent still counts."""
    try:
        return profile_of_place(place.profile, place.name), ""
    except HoldfastError as error:
        return None, f"{place.name}: its profile cannot be used: {error}"


def list_reminders(places: Iterable[Place]) -> list[Reminder]:
    """A line for each of these places that bills."""
    rented = [each for each in places if each.rent is not None or each.profile]
    now_s = time.time()
    costs = [find_cost(each, find_profile(each)[0], now_s) for each in rented]
    return [Reminder(cost.place, words, find_urgent(cost)) for cost in costs if (words := remind(cost))]
