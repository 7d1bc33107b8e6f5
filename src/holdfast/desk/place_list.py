"""What is known of places, one or all, as the verbs of ``holdfast place`` show it; and whether they answer now."""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.model.errors import HoldfastError, TooLate
from holdfast.model.place import BoxFacts, Place
from holdfast.model.record import record, replace

from .connect import find_place, open_box
from .places.config import places_path, read_places
from .places.facts import read_facts
from .runs.at_once import Asking
from .runs.registry import list_seen_places

REACH_LIMIT_S = 10.0
REACHED = "here"
NEEDED = ("tar",)
"""Tools whose absence is a warning; what else is missing is only named."""
MOST_PARTITIONS = 50


@record
class PlaceView:
    """A place as it is configured and what was measured of it.

    `source` is the file it stands in, or the alias. `problem` says why facts that are there do not count. `reach` is
    None where it was not asked, else ``here`` or the code of the error, and `reason` its words.
    """

    place: Place
    source: str
    facts: BoxFacts | None = None
    problem: str = ""
    reach: str | None = None
    reason: str = ""


@record
class PlacePage:
    """All that is known of a place. `place` is as configured, `facts` as measured last; null: never, as it is now.

    `root` is where runs lie, `warnings` are what to mind, `reach` and `reason` as with `ls --probe`; null: not asked.
    """

    name: str
    kind: str
    host: str | None
    root: str | None
    measured_at: str | None
    place: Place
    source: str
    facts: BoxFacts | None
    warnings: tuple[str, ...]
    problem: str
    reach: str | None
    reason: str


@record
class PlaceList:
    """Every place that is configured, and the aliases of ssh of which something is known."""

    places: tuple[PlacePage, ...]


def describe_place(view: PlaceView) -> PlacePage:
    """The page of a place, with the warnings that a person sees first."""
    place, facts = view.place, view.facts
    return PlacePage(
        name=place.name,
        kind=place.kind,
        host=place.host,
        root=place.root if place.root or facts is None else facts.root,
        measured_at=None if facts is None else facts.measured_at,
        place=place,
        source=view.source,
        facts=facts,
        warnings=() if facts is None else tuple(list_warnings(facts, place)),
        problem=view.problem,
        reach=view.reach,
        reason=view.reason,
    )


def list_warnings(facts: BoxFacts, place: Place | None = None) -> list[str]:
    """What to mind on the box."""
    missing = [f"{name} is not there" for name in NEEDED if name not in facts.tools]
    return [*facts.warnings, *missing, *_list_unknown_partitions(facts, place)]


def _list_unknown_partitions(facts: BoxFacts, place: Place | None) -> list[str]:
    if facts.slurm is None or place is None or "partition" not in place.slurm or not facts.slurm.partitions:
        return []
    known = [partition.name for partition in facts.slurm.partitions]
    unknown = [name for name in place.slurm["partition"].split(",") if name not in known]
    return [f"partition={name} of the place: Slurm shows {', '.join(known[:MOST_PARTITIONS])}" for name in unknown]


def view_place(place: Place) -> PlaceView:
    """What is known of a place; nothing is asked."""
    stored = read_facts(place)
    source = places_path() if place.configured else f"Host {place.host} of ssh's configuration"
    return PlaceView(place, source if place.host or place.root else "this machine", stored.facts, stored.problem)


def view_places() -> list[PlaceView]:
    """All configured places, then the aliases of ssh of which something is kept.

    Raises:
        UsageError, NotPermitted, StorageError: as of `read_places`.
    """
    configured = read_places()
    found = [view_place(place) for place in configured.values()]
    for name in list_seen_places():
        if name not in configured:
            try:
                found.append(view_place(find_place(name)))
            except HoldfastError:
                continue  # it was an alias once
    return found


def ask_places(views: Sequence[PlaceView]) -> list[PlaceView]:
    """The same with whether each answers now; all are asked at once, each for `REACH_LIMIT_S` at most."""
    asking = Asking(views, _ask, name=lambda view: f"reach {view.place.name}")
    return asking.collect(time.monotonic() + REACH_LIMIT_S, lambda view: _is_late(view, TooLate.code))


def _ask(view: PlaceView) -> PlaceView:
    try:
        open_box(view.place).transport.run("exit 0", limit_s=REACH_LIMIT_S)
    except TooLate as error:
        return _is_late(view, error.code)
    except HoldfastError as error:
        return replace(view, reach=error.code, reason=str(error))
    return replace(view, reach=REACHED)


def _is_late(view: PlaceView, code: str) -> PlaceView:
    return replace(view, reach=code, reason=f"{view.place.name}: no answer within {REACH_LIMIT_S:g} s")
