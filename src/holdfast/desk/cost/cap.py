"""A place whose cap is reached takes nothing new (COST-09); what runs there is left alone."""

from __future__ import annotations

import time

from holdfast.model.errors import PreflightFailed
from holdfast.model.place import Place

from .costs import find_cost
from .every import find_profile
from .reminder import describe_sum


def refuse_over_cap(place: Place) -> None:
    """Refuse to begin something at a place that has cost what its owner wants to spend there.

    Raises:
        PreflightFailed: the cap is reached, or nobody can tell.
    """
    if place.rent is None or place.rent.cap is None:
        return
    cost = find_cost(place, find_profile(place)[0], time.time())
    if cost.unknown and cost.bills:
        raise PreflightFailed(
            f"whether {place.name} has reached its cap cannot be told: {cost.unknown}",
            hint=f"write it there, or take `cap` out of [{place.name}.rent]",
        )
    if not cost.over_cap or not cost.bills:
        return
    raise PreflightFailed(
        f"{place.name} has reached its cap of {place.rent.cap:g} {cost.unit}".rstrip() + f": {describe_sum(cost)}",
        hint=f"raise `cap` in [{place.name}.rent] of places.toml, or end the place: holdfast teardown {place.name}",
    )
