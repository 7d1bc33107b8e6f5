"""The lifecycle of a rented place, phases -1 to 5, as checks that run: which one it is in, by which evidence (DOC-03).

The phase is the first of which something does not hold. What could not be looked at does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.profile.stale import describe_age
from holdfast.desk.orders.journal import list_orders, read_journal
from holdfast.desk.places.facts import read_facts
from holdfast.desk.teardown.approvals import list_of_rent
from holdfast.desk.teardown.conditions import NO, UNKNOWN, YES, Condition, Seen, judge
from holdfast.desk.teardown.gone import list_expected
from holdfast.desk.teardown.last_check import read_check
from holdfast.model.errors import StorageError
from holdfast.model.place import LOCAL, Place
from holdfast.model.profile import Profile
from holdfast.model.record import record
from holdfast.model.units import format_count, format_duration

TITLES = {
    -1: "plan",
    0: "prepare",
    1: "push",
    2: "launch",
    3: "watch",
    4: "verify",
    5: "tear down",
}

OF_NOW = ("no live run", "empty queue")
"""Conditions of a teardown that are told of the phases before it."""


@record
class LifecyclePhase:
    """One phase: `done` where each of its checks holds."""

    number: int
    title: str
    done: bool
    checks: tuple[Condition, ...]


@record
class Lifecycle:
    """Where a place, or one run of it, is: `phase` is the first that is not done (None: all are)."""

    place: str
    run_id: str | None
    phase: int | None
    title: str
    missing: tuple[str, ...]
    command: str
    phases: tuple[LifecyclePhase, ...]


def find_lifecycle(
    place: Place, run_id: str | None, profile: Profile | None, look_at: Callable[[], Seen], today: str
) -> Lifecycle:
    """All phases of a place; with `run_id` those of one run, which has no end of a rent."""
    facts = read_facts(place)
    seen = look_at() if place.name == LOCAL or facts.facts is not None else Seen(unseen="it was never measured")
    checks: dict[int, Sequence[Condition]] = {
        -1: _check_plan(place, profile, today),
        0: _check_prepare(place, profile),
        1: _check_push(place, seen),
        2: _check_launch(place, seen),
        3: _check_watch(place, seen),
        4: [each for each in judge(place, seen, {}, whole=run_id is None) if each.name not in OF_NOW],
    }
    if run_id is None:
        checks[5] = _check_end(place, profile)
    phases = tuple(
        LifecyclePhase(number, TITLES[number], all(each.holds == YES for each in found), tuple(found))
        for number, found in checks.items()
    )
    current = next((phase for phase in phases if not phase.done), None)
    missing = () if current is None else tuple(each for each in current.checks if each.holds != YES)
    return Lifecycle(
        place.name,
        run_id,
        None if current is None else current.number,
        "done" if current is None else current.title,
        tuple(each.name for each in missing),
        next((each.command for each in missing if each.command), ""),
        phases,
    )


def _check_plan(place: Place, profile: Profile | None, today: str) -> list[Condition]:
    table = f"[{place.name}] of places.toml"
    if place.name == LOCAL:
        return [Condition("place", YES, "this machine")]
    found = [
        Condition("place", YES, f"in places.toml, {place.host or 'this machine'}")
        if place.configured
        else Condition("place", NO, "an alias of ssh alone", f"holdfast place add {place.name} {place.host}")
    ]
    if profile is None:
        how = f'set profile = "..." in {table}; `holdfast profile ls` lists them'
        return [*found, Condition("profile", NO, "what kind of machine it is is not known", how)]
    found.append(Condition("profile", YES, f"{profile.name}: {profile.title}"))
    rent = place.rent
    if profile.metered == "money":
        known = rent is not None and rent.since and rent.rate is not None
        words = f"since {rent.since} at {rent.rate:g} {rent.currency}".rstrip() if known and rent is not None else ""
        how = f"write since and rate into [{place.name}.rent] of places.toml"
        found.append(Condition("rent", YES, words) if known else Condition("rent", NO, "not stated", how))
    clocks = [
        f"{each.name}: {format_duration(each.after_s)} after {each.begins}, {each.what}" for each in profile.clocks
    ]
    found.append(Condition("danger clocks", YES, "; ".join(clocks) or "none is known"))
    old = describe_age(profile, today)
    words = f"{old}; before a teardown: holdfast profile verify {profile.name}" if old else "none is old"
    return [*found, Condition("facts", YES, words)]


def _check_prepare(place: Place, profile: Profile | None) -> list[Condition]:
    if place.name == LOCAL:
        return [Condition("measured", YES, "this machine")]
    stored = read_facts(place)
    if stored.facts is None:
        words = stored.problem or "it was never measured"
        return [Condition("measured", NO, words, f"holdfast place probe {place.name}")]
    facts = stored.facts
    cards = format_count(len(facts.cards), "card")
    found = [Condition("measured", YES, f"at {facts.measured_at}: Python {facts.python_version}, {cards}")]
    full = [disk.path for disk in facts.disks if disk.writable is False]
    if full:
        words = f"not writable: {', '.join(full)}"
        found.append(Condition("disks", NO, words, f"holdfast doctor --on {place.name}"))
    if profile is not None:
        found.append(Condition("storage that lasts", YES, _name_durable(profile)))
    return found


def _name_durable(profile: Profile) -> str:
    verb = profile.meter_stop
    lasts = [f"{tier.name} ({', '.join(tier.paths)})" for tier in profile.tiers if tier.survives.get(verb) == "yes"]
    return f"survives {verb}: {', '.join(lasts)}" if lasts else "none that is known: what matters is pulled"


def _check_push(place: Place, seen: Seen) -> list[Condition]:
    try:
        orders = list_orders(read_journal(place.name)).values()
    except StorageError as error:
        return [Condition("sent", UNKNOWN, str(error), error.hint)]
    taken = [entry for entry in orders if entry.step.was_taken]
    if taken or seen.runs:
        sent = format_count(len(taken), "order of this desk was", "orders of this desk were")
        there = format_count(len(seen.runs), "run is", "runs are")
        return [Condition("sent", YES, f"{sent} taken, {there} there")]
    if seen.unseen:
        return [Condition("sent", UNKNOWN, seen.unseen, f"holdfast place probe {place.name}")]
    words = "nothing was handed in yet"
    return [Condition("sent", NO, words, f"holdfast preflight --on {place.name} -- COMMAND")]


def _check_launch(place: Place, seen: Seen) -> list[Condition]:
    if seen.unseen:
        return [Condition("a run", UNKNOWN, seen.unseen, f"holdfast place probe {place.name}")]
    if not seen.runs:
        return [Condition("a run", NO, "none was begun", f"holdfast run --on {place.name} -d -- COMMAND")]
    return [Condition("a run", YES, f"{len(seen.runs)} began, the newest is {seen.runs[-1].run_id}")]


def _check_watch(place: Place, seen: Seen) -> list[Condition]:
    if seen.unseen:
        return [Condition("no live run", UNKNOWN, seen.unseen, f"holdfast place probe {place.name}")]
    live = [run.run_id for run in seen.runs if not run.ended]
    if live:
        words = f"{len(live)} have not ended, the newest is {live[-1]}"
        return [Condition("no live run", NO, words, f"holdfast patrol --on {place.name}")]
    if not seen.runs:
        return [Condition("no live run", YES, "none was begun")]
    wrong = [run for run in seen.runs if run.condition != "succeeded"]
    words = "all succeeded" if not wrong else f"{len(wrong)} of {len(seen.runs)} did not succeed: {wrong[-1].run_id}"
    return [Condition("no live run", YES, words)]


def _check_end(place: Place, profile: Profile | None) -> list[Condition]:
    if place.name == LOCAL or (profile is not None and profile.metered == "none" and not profile.verbs):
        return [Condition("the meter", YES, "nothing to stop: it has none")]
    try:
        used = list_of_rent(place)
    except StorageError as error:
        return [Condition("approved", UNKNOWN, str(error), error.hint)]
    if not used:
        how = f"holdfast teardown {place.name}"
        return [Condition("approved", NO, "nothing was approved since the rent began", how)]
    found = [Condition("approved", YES, f"{used[-1].verb} at {used[-1].at} by {used[-1].by}")]
    last = read_check(place)
    if last is not None and last.at >= used[-1].at and last.state in list_expected(used[-1]):
        return [*found, Condition("gone", YES, f"{last.state} at {last.at}: {last.seen}")]
    words = "it was not asked" if last is None or last.at < used[-1].at else f"{last.state} at {last.at}: {last.seen}"
    return [*found, Condition("gone", NO, words, f"holdfast teardown {place.name} --check")]
