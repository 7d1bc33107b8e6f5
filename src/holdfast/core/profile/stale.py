"""How old the facts of a profile are: someone else's system changes without a word. Pure: the day is given."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from holdfast.model.profile import STALE_DAYS, Fact, Profile


def stale_facts(profile: Profile, today: str, keys: Iterable[str] | None = None) -> dict[str, Fact]:
    """The facts that were verified more than half a year before `today` (``YYYY-MM-DD``), or after it, by key.

    With `keys` only these; a dotted key also stands for what is below it (``tiers`` for ``tiers.data``).
    """
    asked = None if keys is None else tuple(keys)
    return {
        key: fact
        for key, fact in profile.facts.items()
        if (asked is None or any(f"{key}.".startswith(f"{wanted}.") for wanted in asked))
        and not 0 <= age_days(fact, today) <= STALE_DAYS
    }


def describe_age(profile: Profile, today: str) -> str:
    """How many facts are old, in a line; empty where none is."""
    old = stale_facts(profile, today)
    if not old:
        return ""
    to_come = [key for key, fact in old.items() if age_days(fact, today) < 0]
    if to_come:
        return f"{to_come[0]} was verified on {old[to_come[0]].verified_on}, a day to come"
    first = min(fact.verified_on for fact in old.values())
    count = "1 fact was" if len(old) == 1 else f"{len(old)} of {len(profile.facts)} facts were"
    return f"{count} verified more than half a year ago, the oldest on {first}"


def age_days(fact: Fact, today: str) -> int:
    """Days since a fact was verified; negative for a day to come."""
    return (dt.date.fromisoformat(today) - dt.date.fromisoformat(fact.verified_on)).days
