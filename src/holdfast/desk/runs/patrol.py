"""One patrol over this machine and all places: each looks at its own runs, all at the same time.

A place answers what its own ``holdfast patrol --json`` says; what was told before (``--since-last``) is remembered at
this desk, so that it takes nothing from an entry of a clock there. A place that gives no answer delays nobody, and
nothing follows from it for its runs: where some had not ended, whether they need a person cannot be told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from holdfast.agent.patrol.news import Recalled, recall, tell_all, tell_news
from holdfast.agent.patrol.report import PatrolLine, PatrolReport, describe_run, describe_tick
from holdfast.agent.patrol.tell import Ways
from holdfast.agent.patrol.tick import ObservedRun, PatrolResult
from holdfast.core.patrol.patrol import PatrolRemark, RunJudgement, say_unseen
from holdfast.desk.route.hints import name_place
from holdfast.host import clock
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, PlaceError, TooLate
from holdfast.model.ids import is_run_id
from holdfast.model.place import Place
from holdfast.model.record import fields, record, replace
from holdfast.model.sighting import Poll, Reach
from holdfast.transport.base import Done, Transport

from .answer import LARGEST_NUMBER, LONGEST_PATH, MALFORMED, MOST_ROWS, clean_text
from .at_once import Asking
from .listing import PlaceState, find_owners
from .poll import find_class
from .registry import list_unfinished, read_contact, record_poll

REACH_S = 5.0
"""Within which a place has to answer at all."""
LOOK_S = 60.0
"""For its look, which takes half a minute at most, and for holdfast itself where it is not there yet."""
MOST_LINES = 50
LONGEST_TEXT = 500
MOST_NAMED = 3
Made = TypeVar("Made")


class Looks(Protocol):
    """What of `transfer.box.Box` is used here."""

    transport: Transport

    def run(self, argv: Sequence[str], *, limit_s: float) -> Done:
        """Run ``holdfast ARGV`` there to its end."""
        ...


@record
class PlacedLine(PatrolLine):
    """One run in a look, and its place."""

    place: str


@record
class PlacedPatrol(PatrolReport):
    """One look at every run here and elsewhere.

    `places` says of each place whether it answered; `unseen` of which runs that had not ended nothing could be seen, by
    place.
    """

    runs: tuple[PlacedLine, ...]
    places: tuple[PlaceState, ...]
    unseen: dict[str, int]


@record
class _Look:
    """What came of one place: its look, or why there is none."""

    place: str
    at: str
    tick: PatrolResult | None
    why: str = ""
    reason: str = ""


def patrol_places(
    places: Sequence[Place],
    *,
    open_box: Callable[[Place], Looks],
    look_here: Callable[[], PatrolResult] | None,
    since_last: bool,
    ways: Ways | None,
    local: str,
    remind: Callable[[], Mapping[str, Mapping[str, str]]],
) -> tuple[PlacedPatrol, list[Recalled]]:
    """Look once at every run of these places, and with `look_here` of this machine, which is called `local`.

    `remind` says what else a person is needed for, by place, in words by a name of their own. The looks that come with
    the answer are to be remembered once it was shown (`news.remember`); there are none where people were told.
    """
    at, began = clock.utc_now(), time.monotonic()
    asking = Asking(places, lambda place: _look(place, open_box, at), name=lambda place: f"patrol {place.name}")
    ticks: dict[str, PatrolResult] = {} if look_here is None else {local: look_here()}

    def late(place: Place) -> _Look:
        return _Look(place.name, at, None, "too_late", f"no answer within {LOOK_S:g} s")

    before = {place.name: read_contact(place.name) for place in places}
    looks = asking.collect(began + REACH_S + LOOK_S, late, hear=_record)
    ticks |= {look.place: look.tick for look in looks if look.tick is not None}
    ticks = tell_once(ticks, places, local)
    unseen = {look.place: len(list_unfinished(look.place)) for look in looks if look.tick is None}
    unseen = {place: number for place, number in unseen.items() if number}
    besides = _find_besides(unseen, remind())
    recalled = _recall_all(ticks, besides, at, local) if since_last else {}
    ticks |= {place: recalled[place].tick for place in ticks if since_last}
    named = {place: _name_actions(tick, place, local) for place, tick in ticks.items()}
    whole = replace(_join(at, named, local), took_s=round(time.monotonic() - began, 3))
    notes: list[str] = []
    if ways is not None and since_last:
        notes = tell_news(tuple(recalled.values()), whole, ways)
    elif ways is not None:
        notes = tell_all(whole, {f"{p} {n}": text for p, texts in besides.items() for n, text in texts.items()}, ways)
    silent = [look.place for look in looks if look.tick is None]
    code = whole.exit_code or int(bool(unseen))
    if len(places) == 1 and look_here is None and silent:
        code = PlaceError.exit_code
    found = _extend(
        PlacedPatrol,
        describe_tick(whole, tuple(notes)),
        summary="; ".join(filter(None, (whole.summary, _name_silent(silent)))),
        exit_code=code,
        escalate=bool(whole.exit_code),
        notice="; ".join(filter(None, (tick.notice for tick in ticks.values()))),
        runs=tuple(
            _extend(PlacedLine, describe_run(seen), place=place) for place, tick in named.items() for seen in tick.seen
        ),
        places=tuple(_describe_place(look, before[look.place].last_contact) for look in looks),
        unseen=unseen,
    )
    return found, list(recalled.values()) if ways is None else []


def _find_besides(unseen: Mapping[str, int], more: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """What a person is needed for besides the runs that were seen, by place and a name of its own."""
    found = {place: dict(texts) for place, texts in more.items()}
    for place, number in unseen.items():
        found.setdefault(place, {})["silent"] = f"{place} does not answer; {say_unseen(place, number)}"
    return found


def _recall_all(
    ticks: Mapping[str, PatrolResult], besides: Mapping[str, dict[str, str]], at: str, local: str
) -> dict[str, Recalled]:
    """Each place's look against what was told of it before."""
    nothing = PatrolResult(at, os.uname().nodename, (), ())
    return {
        place: recall(ticks.get(place, nothing), "" if place == local else f"places/{place}", besides.get(place))
        for place in dict.fromkeys((*ticks, *besides))
    }


def _extend(made: type[Made], base: PatrolLine | PatrolReport, **more: object) -> Made:
    """A record with all that `base` has, and more."""
    return made(**{**{field.name: getattr(base, field.name) for field in fields(base)}, **more})


def _look(place: Place, open_box: Callable[[Place], Looks], at: str) -> _Look:
    """One look at one place; whatever kept it from answering is the answer then."""
    limit_s = REACH_S
    try:
        box = open_box(place)
        box.transport.run("exit 0", limit_s=limit_s)
        limit_s = LOOK_S
        done = box.run(("patrol", "--json"), limit_s=limit_s)
        return _Look(place.name, at, read_report(done))
    except wire.WireError as error:
        return _Look(place.name, at, None, MALFORMED, f"its answer was not understood: {clean_text(str(error), 300)}")
    except TooLate as error:
        return _Look(place.name, at, None, error.code, f"no answer within {limit_s:g} s")
    except (HoldfastError, OSError) as error:
        return _Look(place.name, at, None, find_class(error), str(error))


def read_report(done: Done) -> PatrolResult:
    """The look that a place has answered; a stranger's text, so each field counts by its type and size.

    Raises:
        WireError: it is none.
    """
    try:
        value = json.loads(done.out)
    except (ValueError, RecursionError) as error:
        said = done.err.decode("utf-8", "replace").strip().splitlines() or ["nothing was said"]
        raise wire.WireError(f"exit code {done.code}: {said[-1]}") from error
    if not isinstance(value, dict) or done.cut:
        raise wire.WireError("it is no object" if not done.cut else "it is too long")
    problem = value.get("error")
    if isinstance(problem, dict):
        raise wire.WireError(str(problem.get("message")))
    runs = value.get("runs")
    if not isinstance(runs, list) or len(runs) > MOST_ROWS:
        raise wire.WireError("it has no list of runs")
    seen = tuple(_read_run(item) for item in runs)
    blind = value.get("blind")
    return PatrolResult(
        at=clean_text(str(value.get("at")), 40),
        host=clean_text(str(value.get("host")), 100),
        roots=tuple(dict.fromkeys(os.path.dirname(each.run_dir) for each in seen)),
        seen=seen,
        blind=tuple(clean_text(str(text), LONGEST_TEXT) for text in blind[:MOST_LINES])
        if isinstance(blind, list)
        else (),
        foreign=_read_number(value.get("other_accounts")),
    )


def _read_run(item: object) -> ObservedRun:
    line = wire.decode(PatrolLine, item)
    if not is_run_id(line.run_id) or not line.lines:
        raise wire.WireError("a run of it has no id, or nothing is said of it")
    remarks = [
        PatrolRemark(
            clean_text(each.row, 60),
            clean_text(each.text, LONGEST_TEXT),
            each.escalate,
            clean_text(each.action, LONGEST_TEXT),
        )
        for each in line.lines[:MOST_LINES]
    ]
    return ObservedRun(
        run_id=line.run_id,
        run_dir=clean_text(line.run_dir, LONGEST_PATH),
        attempt=_read_number(line.attempt),
        judgement=RunJudgement(line.standing, remarks[0], tuple(remarks[1:])),
        alive=line.alive,
        step=None if line.step is None else _read_number(line.step),
        progress_age_s=line.progress_age_s,
    )


def _read_number(value: object) -> int:
    if not isinstance(value, int) or abs(value) >= LARGEST_NUMBER:
        raise wire.WireError("a number of it is none")
    return value


def _name_actions(tick: PatrolResult, place: str, local: str) -> PatrolResult:
    """The look with its commands as they are typed at this desk."""
    if place == local:
        return tick

    def named(remark: PatrolRemark) -> PatrolRemark:
        return replace(remark, action=name_place(remark.action, place))

    seen = []
    for each in tick.seen:
        ending, alarms = named(each.judgement.ending), tuple(map(named, each.judgement.alarms))
        seen.append(replace(each, judgement=replace(each.judgement, ending=ending, alarms=alarms)))
    return replace(tick, seen=tuple(seen), blind=tuple(f"{place}: {text}" for text in tick.blind))


def tell_once(ticks: dict[str, PatrolResult], places: Sequence[Place], local: str) -> dict[str, PatrolResult]:
    """A run of this machine is told once, though each place that is this machine sees it: by the one that owns it."""
    beside = [name for name in (local, *(place.name for place in places if place.host is None)) if name in ticks]
    owners = find_owners(places)

    def tells(name: str, run_dir: str) -> bool:
        owner = owners.get(os.path.dirname(run_dir), "")
        return name not in beside or name == (owner if owner in beside else beside[0])

    return {
        name: replace(tick, seen=tuple(each for each in tick.seen if tells(name, each.run_dir)))
        for name, tick in ticks.items()
    }


def _join(at: str, ticks: dict[str, PatrolResult], local: str) -> PatrolResult:
    """All looks as one, in which a run elsewhere is ``PLACE:ID``."""
    seen = [
        each if place == local else replace(each, run_id=f"{place}:{each.run_id}")
        for place, tick in ticks.items()
        for each in tick.seen
    ]
    return PatrolResult(
        at=at,
        host=os.uname().nodename,
        roots=(),
        seen=tuple(seen),
        blind=tuple(text for tick in ticks.values() for text in tick.blind),
        foreign=sum(tick.foreign for tick in ticks.values()),
    )


def _name_silent(places: Sequence[str]) -> str:
    """Who did not answer, in words; empty where all did."""
    if not places:
        return ""
    return f"{', '.join(places) if len(places) <= MOST_NAMED else f'{len(places)} places'} did not answer"


def _describe_place(look: _Look, last_contact: str | None) -> PlaceState:
    if look.tick is not None:
        return PlaceState(look.place, Reach.HERE.value, True, look.at)
    return PlaceState(look.place, Reach.UNREACHABLE.value, True, last_contact, look.at, look.why, look.reason)


def _record(look: _Look) -> None:
    """Keep whether the place has answered."""
    record_poll(
        Poll(look.place, look.at)
        if look.tick is not None
        else Poll(look.place, look.at, unreachable=look.reason, why=look.why)
    )
