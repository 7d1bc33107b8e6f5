"""Many places asked at once for their runs, with one deadline for all; what they answer is kept in the registry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from holdfast.desk.orders.journal import Step, list_orders, note_step, read_journal
from holdfast.host import clock
from holdfast.model.errors import HoldfastError, InternalError, TooLate
from holdfast.model.place import Place
from holdfast.model.run import SCHEMA
from holdfast.model.sighting import Poll
from holdfast.transport.base import Transport

from .answer import MALFORMED, read_answer
from .at_once import Asking
from .pending import list_unanswered
from .registry import ABSENT, forget, list_unfinished, read_contact, read_sightings, record_poll

DEADLINE_S = 2.5
"""For `holdfast ls` over many places; whoever names a place waits longer."""
PATIENT_S = 30.0
MOST_ASKED = 500
"""Runs that are asked about by id; a place names those that have not ended by itself."""


class Answers(Protocol):
    """What of `transfer.box.Box` is used here."""

    transport: Transport

    @property
    def is_met(self) -> bool:
        """Whether holdfast of this version is there."""
        ...

    def entry(self, name: str, words: Sequence[str] = (), *, limit_s: float) -> dict[str, Any]:
        """Call an internal entry there."""
        ...


OpenBox = Callable[[Place], Answers]


class Polling:
    """Places that are being asked; made by `begin_polls`."""

    def __init__(self, asking: Asking[_Look, Poll], at: str, end: float, deadline_s: float) -> None:
        """`end` is on the monotonic clock."""
        self._asking, self._at, self._end, self._deadline_s = asking, at, end, deadline_s

    def collect(self, tell: Callable[[str], None] = lambda _: None) -> list[Poll]:
        """What each place has answered, once all have or the time is up; recorded.

        A place that answers, and is being sent holdfast itself, is waited for longer: `tell` hears of it once.
        """
        told: set[str] = set()

        def is_busy(look: _Look) -> bool:
            if look.is_being_met and look.place.name not in told:
                told.add(look.place.name)
                tell(f"{look.place.name} answers, and has no holdfast of this version yet; it is being sent there")
            return look.is_being_met

        longest = max(self._end, time.monotonic() + PATIENT_S)
        return self._asking.collect(
            self._end,
            lambda look: _too_late(look.place, self._at, self._deadline_s),
            hear=record_poll,
            is_busy=is_busy,
            longest=longest,
        )


def begin_polls(
    places: Sequence[Place],
    *,
    deadline_s: float,
    open_box: OpenBox,
    limit: int | None = 30,
    limits: Mapping[str, int] | None = None,
    ids: Mapping[str, Sequence[str]] | None = None,
) -> Polling:
    """Ask places, all at the same time; `Polling.collect` answers what they say, in their order.

    Args:
        places: Each is asked once.
        deadline_s: After this every answer counts as none.
        open_box: How a place is reached.
        limit: Ended runs of each; None: only the runs of `ids`.
        limits: Another limit for some, by the name of the place.
        ids: Runs to ask for, by the name of the place; None: `list_open`.
    """
    at, end = clock.utc_now(), time.monotonic() + deadline_s
    looks = [_Look(p, tuple(list_open(p.name) if ids is None else ids.get(p.name, ()))[:MOST_ASKED]) for p in places]
    limits = limits or {}

    def ask(look: _Look) -> Poll:
        try:
            return poll_place(look, limit=limits.get(look.place.name, limit), at=at, end=end, open_box=open_box)
        except TooLate:
            return _too_late(look.place, at, deadline_s)

    asking = Asking(looks, ask, name=lambda look: f"poll {look.place.name}")
    return Polling(asking, at, end, deadline_s)


def poll_places(
    places: Sequence[Place],
    *,
    deadline_s: float,
    open_box: OpenBox,
    limit: int | None = 30,
    ids: Mapping[str, Sequence[str]] | None = None,
) -> list[Poll]:
    """One look at each place, in their order; as `begin_polls`."""
    return begin_polls(places, deadline_s=deadline_s, open_box=open_box, limit=limit, ids=ids).collect()


def list_open(place: str) -> list[str]:
    """The ids of a place's runs that had not ended, and of orders that may be one."""
    return list(dict.fromkeys([*(entry.run_id for entry in list_unanswered(place)), *list_unfinished(place)]))


class _Look:
    """One look at one place. `is_being_met`: it could be reached, and holdfast itself is sent there first."""

    def __init__(self, place: Place, ids: tuple[str, ...]) -> None:
        self.place, self.ids = place, ids
        self.is_being_met = False


def _too_late(place: Place, at: str, deadline_s: float) -> Poll:
    return Poll(place.name, at, unreachable=f"no answer within {deadline_s:g} s", why=TooLate.code)


def poll_place(look: _Look, *, limit: int | None, at: str, end: float, open_box: OpenBox) -> Poll:
    """One look at one place until `end` (monotonic); whatever kept it from answering is the answer then.

    Raises:
        TooLate: the time was up.
    """
    place = look.place
    words = [*(() if limit is None else ("--limit", str(limit))), *look.ids]
    try:
        box = open_box(place)
        if not box.is_met:
            box.transport.run("exit 0", limit_s=max(0.1, end - time.monotonic()))
            look.is_being_met = True
        limit_s = PATIENT_S if look.is_being_met else max(0.1, end - time.monotonic())
        answer = box.entry("poll", words, limit_s=limit_s)
    except TooLate:
        raise
    except InternalError as error:
        return Poll(place.name, at, unreachable=str(error), why=MALFORMED)
    except RecursionError:
        return Poll(place.name, at, unreachable="its answer was not understood: it is nested too deep", why=MALFORMED)
    except (HoldfastError, OSError) as error:
        return Poll(place.name, at, unreachable=str(error), why=find_class(error))
    return read_answer(place.name, answer, at=at, asked=look.ids, only=limit is None)


def record_row(place: str, run_id: str, data: bytes) -> bool:
    """Keep what a box says of one run, as JSON, and whether it has ended; nothing where it is no row of that run."""
    try:
        answer = {"schema": SCHEMA, "runs": [json.loads(data)]}
    except (ValueError, RecursionError):
        return False
    poll = read_answer(place, answer, at=clock.utc_now(), asked=(run_id,), only=True)
    if poll.sightings:
        record_poll(poll)
    return run_id in poll.sightings and poll.sightings[run_id].ended


def look_again(places: Sequence[Place], *, open_box: OpenBox, removed: Sequence[str] = ()) -> list[Poll]:
    """After a command that changed or awaited runs: look at these places once, so that the next list knows it.

    What cannot be told stays as it was. The runs `removed` are forgotten where they are not there any more; of those
    that were there until now the journal says so. Where a runs root cannot be read there nobody knows.
    """
    there = {place.name: {s.run_id for s in read_sightings(place.name) if s.condition != ABSENT} for place in places}
    ids = {place.name: [*removed, *list_open(place.name)] for place in places}
    polls = poll_places(places, deadline_s=DEADLINE_S, open_box=open_box, ids=ids)
    for poll in polls:
        gone = set[str]() if poll.missing_roots else set(poll.absent).intersection(removed)
        forget(poll.place, gone)
        _note_removed(poll.place, gone & there[poll.place])
    return polls


def _note_removed(place: str, run_ids: set[str]) -> None:
    """Write into the journal which orders this desk has had removed; of what cannot be written it stays as taken."""
    with suppress(HoldfastError):
        orders = list_orders(read_journal(place))
        for run_id in sorted(run_ids & orders.keys()):
            note_step(place, Step.REMOVED, run_id)


def is_due(place: str) -> bool:
    """Whether it is worth asking: it has not failed to answer a moment ago."""
    return read_contact(place).is_due(clock.epoch_s())


def find_class(error: Exception) -> str:
    """The class of a failure: ``dns``, ``timed out`` ..., else the error's code."""
    if isinstance(error, HoldfastError):
        why = error.details.get("why")
        return why if isinstance(why, str) and why else error.code
    return "storage"
