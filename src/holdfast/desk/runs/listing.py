"""One list of the runs here and elsewhere: who is asked, what is shown by its last sighting, and with which age.

Of each run three facts are kept apart: what is `desired` of it, what was seen of it last (`condition`, `seen_at`), and
whether its place could be reached now (`reach`). A place that gives no answer changes none of them but the last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.desk.places.config import read_places
from holdfast.host import clock
from holdfast.model.ids import name_of
from holdfast.model.place import LOCAL, Place
from holdfast.model.record import record, replace
from holdfast.model.run import SCHEMA
from holdfast.model.sighting import Poll, Reach, Sighting

from .answer import clean_text, read_answer
from .pending import NOT_SENT, REFUSED, has_queued_jobs, list_pending
from .poll import DEADLINE_S, PATIENT_S, OpenBox, begin_polls, list_open
from .registry import (
    MOST_ENDED,
    Contact,
    SeenLine,
    count_unkept,
    decode_line,
    find_damage,
    list_seen_places,
    read_contact,
    read_lines,
)

LONGEST_REASON = 300
NOT_ASKED = "not asked"
"""`PlaceState.reach` of a place that this list did without."""


@record
class PlacedRun:
    """A run and its place: what `holdfast ls` has of a run (`store.index.IndexRow`), and when that was seen.

    `seen_at` is by the desk's clock; `fresh`: now. `reach` is ``here`` (it can be looked at), ``unreachable`` or ``not
    asked``; `reason` says more. `elapsed_s` is how long it ran when it was seen, by its own box's clock. `desired` is
    what was asked of it. `submitted_by` and `submitted_from` are who began it, from which desk.
    """

    place: str
    run_id: str
    name: str
    attempt: int | None
    condition: str
    exit_code: int | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    cards: str
    step: int | None
    loss: str | None
    note: str
    failure: str
    ended: bool
    root: str
    run_dir: str
    desired: str | None
    seen_at: str
    fresh: bool
    reach: str
    reason: str
    elapsed_s: float | None
    submitted_by: str | None
    submitted_from: str | None
    planned_steps: int | None = None
    left_s: float | None = None
    standstill_s: float | None = None


@record
class PlaceState:
    """A place of the list: whether it answered now, when it did last, and why not; `notice` is about its answer.

    `asked`: it was asked for this list. One that has just failed is not, and still counts as unreachable.
    """

    place: str
    reach: str
    asked: bool
    last_contact: str | None = None
    failed_at: str | None = None
    why: str = ""
    reason: str = ""
    notice: str = ""


@record
class PlacedRuns:
    """Runs of several places, newest first. `total` is how many there are of those asked for, `known` of all.

    `notice` is a sentence for people about the index of this machine, None when it is well.
    """

    runs: tuple[PlacedRun, ...]
    total: int
    known: int
    notice: str | None
    places: tuple[PlaceState, ...]


class Keep(Protocol):
    """Which runs are wanted."""

    def __call__(
        self, run_id: str, condition: str, *, ended: bool, failure: str, moments: tuple[str | None, ...]
    ) -> bool:
        """Of a run of that condition, which has ended or not, whose failure is of that class; it began then."""
        ...


@record
class Wanted:
    """What is asked for: `named` places are asked in any case and waited for longer; `everything`: all of them.

    `limit` bounds the ended runs that are shown, None: all that are known; `most` those that are looked at. `keep` says
    which runs are wanted (None: all).
    """

    named: bool = False
    everything: bool = False
    limit: int | None = 30
    most: int = 5000
    keep: Keep | None = None


def list_places() -> list[Place]:
    """The configured places, and those that were used without being configured.

    Raises:
        HoldfastError: ``places.toml`` cannot be read.
    """
    configured = read_places()
    used = [Place(name, host=name, configured=False) for name in list_seen_places() if name not in configured]
    return [*configured.values(), *(place for place in used if place.name != LOCAL)]


def list_runs(
    places: Sequence[Place],
    wanted: Wanted,
    *,
    open_box: OpenBox,
    look_here: Callable[[int], Mapping[str, Any]] | None,
    deadline_s: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> PlacedRuns:
    """The runs of these places, and with `look_here` (an answer of ``agent poll``) those of this machine.

    `tell` hears what is waited for beyond the deadline.

    A run that this machine has shown is not shown again by a place that is this machine; one below the configured root
    of such a place is shown as the place's.
    Asked is who is named, who has runs that had not ended, whoever has never answered, and who has more ended runs than
    are kept of it, where they may belong to the list; a place that failed a moment ago is not asked again before its
    time, unless it is named.
    """
    now_s = clock.epoch_s()
    contacts = {place.name: read_contact(place.name) for place in places}
    damage = {place.name: find_damage(place.name) for place in places}  # a look makes the file anew
    beside = {place.name for place in places if place.host is None}
    limit = wanted.most if wanted.limit is None else wanted.limit
    if wanted.keep is not None:
        limit = max(limit, MOST_ENDED)  # the newest may not be those
    asked = [place for place in places if _is_asked(place, contacts[place.name], wanted, limit, now_s)]
    limit_s = deadline_s or (PATIENT_S if wanted.named else DEADLINE_S)
    # What this machine has is shown, and counted, once: for that all of it is looked at.
    every = dict.fromkeys(beside, wanted.most)
    polling = begin_polls(asked, deadline_s=limit_s, open_box=open_box, limit=limit, limits=every)
    polls = {}
    if look_here is not None:
        polls[LOCAL] = read_answer(LOCAL, {"schema": SCHEMA, **look_here(wanted.most)}, at=clock.utc_now())
        assert polls[LOCAL].unreachable is None, polls[LOCAL].unreachable
    polls |= {poll.place: poll for poll in polling.collect(tell)}
    states = tuple(
        _add_damage(_describe_place(place.name, contacts[place.name], polls.get(place.name)), damage[place.name])
        for place in places
    )
    reach = {state.place: state.reach for state in states}
    names = [*([LOCAL] if look_here is not None else []), *reach]
    here = set(polls[LOCAL].sightings) if LOCAL in polls else set()
    gathered = {name: _gather(name, polls.get(name)) for name in names}
    found = [item for items in gathered.values() for item in items]
    lines = [item for item in found if item[1] not in beside or item[0].run_id not in here]
    owners = find_owners(places)
    lines = [(line, _find_owner(owners, seen) if name == LOCAL else name, seen) for line, name, seen in lines]
    lines.sort(key=lambda item: item[0].run_id, reverse=True)
    shown, total = _choose(lines, wanted, reach)
    unkept = sum(
        count_unkept(polls.get(name), [line for line, _, _ in items], contacts.get(name, Contact()))
        for name, items in gathered.items()
        if name not in beside or not here
    )
    notice = polls[LOCAL].notice or None if LOCAL in polls else None
    return PlacedRuns(tuple(shown), total + (unkept if wanted.keep is None else 0), len(lines) + unkept, notice, states)


def find_owners(places: Sequence[Place]) -> dict[str, str]:
    """The names of the places that are this machine, by the runs roots that they have of their own."""
    return {os.path.expanduser(place.root): place.name for place in places if place.host is None and place.root}


def _find_owner(owners: Mapping[str, str], seen: Sighting | None) -> str:
    row = (seen.row if seen is not None else None) or {}
    return owners.get(str(row.get("root")), LOCAL)


def _is_asked(place: Place, contact: Contact, wanted: Wanted, limit: int, now_s: float) -> bool:
    if wanted.named or wanted.everything:
        return True
    if not contact.is_due(now_s):
        return False
    if contact.last_contact is None or list_open(place.name) or has_queued_jobs(place.name):
        return True
    return contact.unkept > 0 and sum(line.ended for line in read_lines(place.name)) < min(limit, MOST_ENDED)


def _describe_place(name: str, before: Contact, poll: Poll | None) -> PlaceState:
    if poll is None:
        failed = before.failures > 0
        return PlaceState(
            name,
            Reach.UNREACHABLE.value if failed else NOT_ASKED,
            False,
            before.last_contact,
            before.failed_at,
            before.why,
            before.reason,
        )
    if poll.unreachable is not None:
        return PlaceState(name, Reach.UNREACHABLE.value, True, before.last_contact, poll.at, poll.why, poll.unreachable)
    return PlaceState(name, Reach.HERE.value, True, poll.at, notice=poll.notice)


def _add_damage(state: PlaceState, damage: str) -> PlaceState:
    if not damage:
        return state
    said = f"what was last seen of it cannot all be read ({damage}); holdfast reconcile {state.place} makes it again"
    return replace(state, notice="; ".join(filter(None, (state.notice, said))))


def _gather(place: str, poll: Poll | None) -> list[tuple[SeenLine, str, Sighting | None]]:
    """What is known of a place's runs; with the sighting where it was seen now."""
    fresh = {} if poll is None else poll.sightings
    found: list[tuple[SeenLine, str, Sighting | None]] = [
        (SeenLine(each.run_id, each.ended, each.seen_at, ""), place, each) for each in fresh.values()
    ]
    if place == LOCAL:
        return found
    whole = (line for line in read_lines(place) if line.text.endswith("}"))  # the others are said to be damaged
    found += [(line, place, None) for line in whole if line.run_id not in fresh]
    have = {line.run_id for line, _, _ in found}
    for entry, condition in list_pending(place, clock.epoch_s()):
        if entry.run_id not in have:
            over, reason = condition in (REFUSED, NOT_SENT), clean_text(entry.message, LONGEST_REASON)
            ordered = Sighting(place, entry.run_id, entry.at, "desk", Reach.HERE, condition, ended=over, reason=reason)
            found.append((SeenLine(entry.run_id, over, entry.at, ""), place, ordered))
    return found


def _choose(
    lines: Sequence[tuple[SeenLine, str, Sighting | None]], wanted: Wanted, reach: Mapping[str, str]
) -> tuple[list[PlacedRun], int]:
    """All that have not ended, and the newest that have; how many there are. Only what is shown is decoded."""
    shown: list[PlacedRun] = []
    total, left = 0, wanted.limit
    for line, place, fresh in lines:
        hidden = line.ended and left is not None and left <= 0
        if hidden and wanted.keep is None:
            total += 1
            continue
        sighting = fresh or decode_line(place, line)
        if sighting is None or not _is_kept(sighting, wanted.keep):
            continue
        total += 1
        if hidden:
            continue
        if line.ended and left is not None:
            left -= 1
        seen_now = fresh is not None and fresh.by == "agent"
        way = Reach.HERE.value if seen_now else reach.get(place, Reach.HERE.value)
        shown.append(_place_run(sighting, place, way, fresh=seen_now))
    return shown, total


def _is_kept(sighting: Sighting, keep: Keep | None) -> bool:
    if keep is None:
        return True
    row: Mapping[str, Any] = sighting.row or {}
    moments = (row.get("started_at"), row.get("created_at"))
    failure = str(row.get("failure") or "")
    return keep(sighting.run_id, sighting.condition, ended=sighting.ended, failure=failure, moments=moments)


def _place_run(sighting: Sighting, place: str, reach: str, *, fresh: bool) -> PlacedRun:
    row: Mapping[str, Any] = sighting.row or {}
    own = sighting.reach is not Reach.HERE
    return PlacedRun(
        place=place,
        run_id=sighting.run_id,
        name=name_of(sighting.run_id),
        attempt=row.get("attempt"),
        condition=sighting.condition,
        exit_code=sighting.exit_code,
        created_at=row.get("created_at") or "",
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        cards=row.get("cards") or "",
        step=row.get("step"),
        planned_steps=row.get("planned_steps"),
        left_s=row.get("left_s") if fresh else None,
        standstill_s=row.get("standstill_s") if fresh else None,
        loss=row.get("loss"),
        note=row.get("note") or "",
        failure=row.get("failure") or "",
        ended=sighting.ended,
        root=row.get("root") or "",
        run_dir=row.get("run_dir") or "",
        desired=sighting.desired,
        seen_at=sighting.seen_at,
        fresh=fresh,
        reach=sighting.reach.value if own else reach,
        reason=sighting.reason,
        elapsed_s=row.get("elapsed_s"),
        submitted_by=row.get("submitted_by"),
        submitted_from=row.get("submitted_from"),
    )
