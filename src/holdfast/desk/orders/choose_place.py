"""``run --on a,b``: the first of several places that has the cards now.

A place of kind slurm has a line of its own, so it takes any job: it is chosen where it is named after those that are
busy. A command that was cut off goes on at the place where it began, whatever is free by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.desk.connect import find_place, open_box
from holdfast.model.errors import HoldfastError, PlaceError, ResourceBusy, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM

from .submit import is_begun

if TYPE_CHECKING:
    from holdfast.model.place import Place

    from .build import Draft

ASK_LIMIT_S = 20.0


def choose_place(names: str, draft: Draft, *, waits: bool, tell: Callable[[str], None]) -> Place:
    """The place for a job among those of ``a,b,c``; `tell` hears why the ones before it are not.

    With `waits` (the job stands in line) and no free place it is the first one that answers.

    Raises:
        UsageError: an unknown place, or this machine among them.
        ResourceBusy: none has the cards now.
        PlaceError: none answers.
    """
    places = [find_place(name) for name in dict.fromkeys(filter(None, names.split(",")))]
    if any(place.name == LOCAL for place in places):
        raise UsageError("--on with several places chooses among places; this machine is none of them")
    for place in places:
        if is_begun(replace(draft, native=place.slurm), place):
            tell(f"it was begun at {place.name}, and goes on there")
            return place
    busy: list[Place] = []
    for place in places:
        if place.kind == SLURM:
            return place
        found = _ask(place, draft.job.gpus.wanted, tell)
        if found:
            return place
        if found is not None:
            busy.append(place)
    if busy and waits:
        tell(f"none is free; it waits at {busy[0].name}")
        return busy[0]
    named = ", ".join(place.name for place in busy or places)
    if busy:
        raise ResourceBusy(
            f"no place has the cards now: {named}", hint="--wait 2h stands in line at the first that answers"
        )
    raise PlaceError(f"no place answers: {named}", hint="holdfast place show NAME tries one")


def _ask(place: Place, count: int, tell: Callable[[str], None]) -> bool | None:
    """Whether a place has so many cards; None where it does not answer. What is not so is told."""
    try:
        answer = open_box(place).entry("cards", limit_s=ASK_LIMIT_S)
    except UsageError:
        raise
    except HoldfastError as error:
        tell(f"{place.name} is left out: {error}")
        return None
    free, reason = answer.get("free"), answer.get("reason")
    if isinstance(free, int) and free >= count and not reason:
        return True
    words = str(reason)[:200] if reason else f"{free} of {answer.get('total')} cards are free"
    tell(f"{place.name} has no room: {words}")
    return False
