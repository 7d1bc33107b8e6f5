"""The bill of a place so far: hours since the rent began, money or quota, idle share, what bills on its own, clocks.

Everything is of the desk: the user's own ``[NAME.rent]``, the profile, and what was last seen of runs. What nobody has
seen is said to be so; an idle share is of the time until the place was heard of last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.cost.meter import HOUR_S, Countdown, find_countdowns, find_hours, find_idle_share
from holdfast.desk.runs.registry import read_contact, read_sightings
from holdfast.desk.teardown.approvals import list_of_rent
from holdfast.desk.teardown.last_check import GONE, STOPPED, THERE, UNKNOWN, read_check
from holdfast.host import clock
from holdfast.model.errors import StorageError
from holdfast.model.place import Place, Rent
from holdfast.model.profile import Clock, Profile
from holdfast.model.record import record
from holdfast.model.sighting import Sighting

MONEY, QUOTA, NONE = "money", "quota", "none"
HOURS = "h"


@record
class PlaceCost:
    """What is known of a place's bill at `at` (ISO UTC).

    `metered` is as of the profile (``money`` where only a rent is stated). `hours` are billed since `since`, until
    `until` (None: it goes on). `used_h` are hours of cards that runs held, of all that was seen until `seen_until`;
    `idle_share` (0 to 1) is of the time since `since` in which no run held one. `total` is in `unit`: currency, or
    ``h`` where there is a quota. `over_cap`: the sum of `cap` is reached. `live` runs had not ended when last seen; the
    last of the others ended at `last_ended_at`. `clocks` run, `clocks_to_begin` do not, as far as is known. `also` is
    billed on its own. `ended` says how a machine was seen to be ended (empty: it was not). `unknown` says what is
    missing for a sum.
    """

    place: str
    at: str
    metered: str
    profile: str = ""
    since: str = ""
    until: str | None = None
    hours: float | None = None
    rate: float | None = None
    unit: str = ""
    total: float | None = None
    cap: float | None = None
    over_cap: bool = False
    used_h: float | None = None
    idle_share: float | None = None
    seen_until: str | None = None
    live: int = 0
    last_ended_at: str | None = None
    clocks: tuple[Countdown, ...] = ()
    clocks_to_begin: tuple[Clock, ...] = ()
    also: tuple[str, ...] = ()
    egress_per_gb: float | None = None
    ended: str = ""
    unknown: str = ""

    @property
    def bills(self) -> bool:
        """Whether it costs something now, as far as is known."""
        return self.metered != NONE and self.until is None


def find_cost(place: Place, profile: Profile | None, now_s: float) -> PlaceCost:
    """The bill of a place at a moment (epoch seconds)."""
    rent = place.rent or Rent()
    metered = profile.metered if profile is not None else MONEY if place.rent is not None else NONE
    at = clock.format_utc(now_s)
    if metered == NONE:
        return PlaceCost(place.name, at, NONE, place.profile)
    seen = read_sightings(place.name)
    begin_s = _read_moment(rent.since)
    heard_s = _read_moment(read_contact(place.name).last_contact)
    until, ended = _find_end(place, begin_s, heard_s)
    end_s = now_s if until is None else min(now_s, _read_moment(until) or now_s)
    hours = None if begin_s is None else find_hours(begin_s, end_s)
    known_s = None if heard_s is None else min(end_s, heard_s)
    spans = list(_list_spans(seen, known_s))
    used_h = _sum_hours(spans) if seen else None
    used = used_h if metered == QUOTA else hours
    total = used if metered == QUOTA else None if hours is None or rent.rate is None else hours * rent.rate
    idle = (
        None if begin_s is None or known_s is None else find_idle_share(begin_s, known_s, [span[:2] for span in spans])
    )
    over = [moment for each in seen if each.ended and (moment := _read_moment(_get_text(each, "ended_at")))]
    live = sum(not each.ended for each in seen)
    clocks = () if profile is None else profile.clocks
    began = {} if until is not None and ended.startswith(GONE) else _find_beginnings(place, begin_s, heard_s)
    began |= {"idle": max(over)} if over and not live and until is None else {}
    return PlaceCost(
        place=place.name,
        at=at,
        metered=metered,
        profile=place.profile,
        since=rent.since,
        until=until,
        hours=hours,
        rate=None if metered == QUOTA else rent.rate,
        unit=HOURS if metered == QUOTA else rent.currency or (profile.currency if profile is not None else ""),
        total=total,
        cap=rent.cap,
        over_cap=rent.cap is not None and total is not None and total >= rent.cap,
        used_h=used_h,
        idle_share=idle,
        seen_until=None if known_s is None else clock.format_utc(known_s),
        live=live,
        last_ended_at=clock.format_utc(max(over)) if over else None,
        clocks=find_countdowns(clocks, began, now_s),
        clocks_to_begin=tuple(each for each in clocks if each.begins not in began),
        also=rent.also,
        egress_per_gb=None if profile is None else profile.egress_per_gb,
        ended=ended,
        unknown=_name_unknown(place, metered, rent, begin_s),
    )


def _name_unknown(place: Place, metered: str, rent: Rent, begin_s: float | None) -> str:
    missing = [] if begin_s is not None else ["since"]
    missing += [] if rent.rate is not None or metered == QUOTA else ["rate"]
    if not missing or (metered == QUOTA and begin_s is None):
        return ""
    return f"no {' and no '.join(missing)} in [{place.name}.rent] of places.toml"


def _find_end(place: Place, begin_s: float | None, heard_s: float | None) -> tuple[str | None, str]:
    """When the meter was seen to have stopped (None: it goes on), and what was seen, in words.

    What was seen before the rent began is of another rent; a machine that has answered since was started again.
    """
    found = read_check(place)
    at_s = None if found is None else _read_moment(found.at)
    if found is None or at_s is None or found.state in (UNKNOWN, THERE) or (begin_s is not None and at_s < begin_s):
        return None, ""
    words = f"{found.state} at {found.at}: {found.seen}"
    if heard_s is not None and heard_s > at_s:
        return None, f"{words}; it has answered since"
    if found.state == STOPPED and not _stops_meter(place, found.verb):
        return None, f"{words}; what it bills when stopped goes on"
    return found.at, words


def _stops_meter(place: Place, verb: str) -> bool:
    try:
        acts = [each for each in list_of_rent(place) if each.verb == verb]
    except StorageError:
        return False
    return bool(acts) and acts[-1].stops_meter is True


def _find_beginnings(place: Place, begin_s: float | None, heard_s: float | None) -> dict[str, float]:
    """Since when what a clock waits for is so: the rent, and verbs that were approved since the place was heard of.

    Nobody may have typed the verb yet: a clock that is said too early costs nothing.
    """
    began = {} if begin_s is None else {"started": begin_s}
    try:
        used = list_of_rent(place)
    except StorageError:
        return began
    for each in used:
        at_s = _read_moment(each.at)
        if at_s is not None and at_s >= max(begin_s or 0.0, heard_s or 0.0):
            began[each.verb] = at_s
    return began


def _list_spans(seen: Sequence[Sighting], until_s: float | None) -> Iterator[tuple[float, float, int]]:
    """When runs held cards, and how many; one that lives, until the place was heard of last."""
    for each in seen:
        cards = _get_text(each, "cards")
        begin_s = _read_moment(_get_text(each, "started_at"))
        end_s = _read_moment(_get_text(each, "ended_at")) if each.ended else until_s
        if cards and begin_s is not None and end_s is not None and end_s > begin_s:
            yield begin_s, end_s, len(cards.split(","))


def _sum_hours(spans: Sequence[tuple[float, float, int]]) -> float:
    """Hours of cards: one run with two of them for an hour is two."""
    return sum((end_s - begin_s) * cards for begin_s, end_s, cards in spans) / HOUR_S


def _get_text(seen: Sighting, key: str) -> str:
    value = (seen.row or {}).get(key)
    return value if isinstance(value, str) else ""


def _read_moment(text: str | None) -> float | None:
    try:
        return clock.parse_utc(text) if text else None
    except ValueError:
        return None
