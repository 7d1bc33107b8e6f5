"""``run --on a,b``: the first of several places that has the cards now.

They are asked at once, and heard in the order in which they are named: a place is waited for by those after it alone.
A place of kind slurm has a line of its own, so it takes any job: it is chosen where it is named after those that are
busy. A command that was cut off goes on at the place where it began, whatever is free by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.desk.connect import find_place, open_box
from holdfast.desk.runs.at_once import Asking
from holdfast.model.errors import HoldfastError, PlaceError, PreflightFailed, ResourceBusy, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record, replace
from holdfast.model.slurm import SLURM
from holdfast.model.units import format_count
from holdfast.transfer.contact import CONTACT_LIMIT_S, PUSH_LIMIT_S

from .submit import is_begun

if TYPE_CHECKING:
    from holdfast.model.place import Place

    from .build import Draft

ASK_LIMIT_S = 20.0
LONGEST_S = CONTACT_LIMIT_S + PUSH_LIMIT_S + ASK_LIMIT_S
"""For a box that gets holdfast first; one that cannot be reached says so long before."""


@record
class _Room:
    """Whether a place has the cards now (None: it does not answer), and what is told where it has not.

    `may_have`: they may be free some time; it has not fewer than that.
    """

    is_free: bool | None
    words: str = ""
    may_have: bool = True


def choose_place(names: str, draft: Draft, *, waits: bool, tell: Callable[[str], None]) -> Place:
    """The place for a job among those of ``a,b,c``; `tell` hears why the ones before it are not.

    With `waits` (the job stands in line) and no free place it is the first one that answers.

    Raises:
        UsageError: an unknown place, or this machine among them.
        ResourceBusy: none has the cards now.
        PreflightFailed: none has so many.
        PlaceError: none answers.
    """
    places = [find_place(name) for name in dict.fromkeys(filter(None, names.split(",")))]
    if any(place.name == LOCAL for place in places):
        raise UsageError("--on with several places chooses among places; this machine is none of them")
    for place in places:
        if is_begun(replace(draft, native=place.slurm), place):
            tell(f"it was begun at {place.name}, and goes on there")
            return place
    end, count = time.monotonic() + LONGEST_S, draft.job.gpus.wanted
    asked = {
        each.name: Asking([each], lambda place: _ask(place, count), name=lambda place: f"cards of {place.name}")
        for each in takewhile(lambda place: place.kind != SLURM, places)
    }
    busy: list[Place] = []
    small: list[str] = []
    for place in places:
        if place.kind == SLURM:
            return place
        [room] = asked[place.name].collect(end, _is_late)
        if room.is_free:
            return place
        tell(room.words)
        if not room.may_have:
            small.append(place.name)
        elif room.is_free is not None:
            busy.append(place)
    if busy and waits:
        tell(f"none is free; it waits at {busy[0].name}")
        return busy[0]
    named = ", ".join(place.name for place in busy or places)
    if busy:
        raise ResourceBusy(
            f"no place has the cards now: {named}", hint="--wait 2h stands in line at the first that answers"
        )
    if small:
        raise PreflightFailed(
            f"of the places that answer none has {format_count(count, 'card')}: {', '.join(small)}",
            hint="name one that has them, or ask for fewer (--gpus)",
        )
    raise PlaceError(f"no place answers: {named}", hint="holdfast place show NAME tries one")


def _is_late(place: Place) -> _Room:
    return _Room(None, f"{place.name} is left out: it does not answer")


def _ask(place: Place, count: int) -> _Room:
    """Whether a place has so many cards."""
    try:
        answer = open_box(place).entry("cards", limit_s=ASK_LIMIT_S)
    except UsageError:
        raise
    except HoldfastError as error:
        return _Room(None, f"{place.name} is left out: {error}")
    free, reason = answer.get("free"), answer.get("reason")
    if isinstance(free, int) and free >= count and not reason:
        return _Room(is_free=True)
    total = answer.get("total")
    words = str(reason)[:200] if reason else f"{free} of {total} cards are free"
    may_have = bool(reason) or not isinstance(total, int) or total >= count
    return _Room(False, f"{place.name} has no room: {words}", may_have=may_have)
