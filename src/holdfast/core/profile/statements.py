"""What each fact of a profile says, in words, so that a person can hold it against the provider's own page. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.profile import Clock, EndVerb, Fact, Profile, Tier
from holdfast.model.units import format_duration

from .merge import find_field


def state_fact(profile: Profile, key: str, fact: Fact) -> str:
    """A fact in a line: its key, what it says, when and where it was verified."""
    kind, _, name = key.partition(".")
    if kind == "tiers":
        words = next((_state_tier(tier) for tier in profile.tiers if tier.name == name), "")
    elif kind == "verbs":
        words = next((_state_verb(verb) for verb in profile.verbs if verb.name == name), "")
    elif kind == "clocks":
        words = next((say_clock(clock) for clock in profile.clocks if clock.name == name), "")
    else:
        words = _state_value(profile, key)
    said = "; ".join(part for part in (words, fact.text) if part)
    return f"{key}{f': {said}' if said else ''} (verified on {fact.verified_on}, {fact.source})"


def _state_tier(tier: Tier) -> str:
    answers = ", ".join(f"{answer} after {verb}" for verb, answer in tier.survives.items())
    where = " ".join(tier.paths) or "mounted nowhere that is known"
    billed = f"bills on after {', '.join(tier.bills_after)}" if tier.bills_after else ""
    return "; ".join(part for part in (f"{where}: survives: {answers}", billed, tier.note) if part)


def _state_verb(verb: EndVerb) -> str:
    meter = {True: "stops the meter", False: "the meter goes on", None: "whether the meter stops is not known"}
    parts = [meter[verb.stops_meter], "cannot be taken back" if verb.irreversible else "can be taken back"]
    lists = (("destroys", verb.destroys), ("keeps", verb.keeps), ("still bills", verb.still_bills))
    return "; ".join([*parts, *(f"{what} {', '.join(items)}" for what, items in lists if items)])


def say_clock(clock: Clock) -> str:
    """What happens, and after how long."""
    seconds = clock.after_s
    time = f"{seconds / 86400:g} days" if seconds and seconds % 86400 == 0 else format_duration(seconds)
    return f"{time} after {clock.begins}: {clock.what}"


def _state_value(profile: Profile, key: str) -> str:
    value = getattr(profile, find_field(key), None)
    return "" if value is None or isinstance(value, (dict, tuple)) else f"is {value}"


def find_keys(profile: Profile, asked: Iterable[str]) -> dict[str, list[str]]:
    """The facts that each word stands for: its own, and all below it (``tiers`` for ``tiers.data``)."""
    return {word: [key for key in profile.facts if f"{key}.".startswith(f"{word}.")] for word in asked}
