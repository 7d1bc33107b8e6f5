"""What is doubtful in a profile that can be read: old facts, a durable directory that goes with the box. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model.finding import Finding, Level
from holdfast.model.profile import DEPENDS, NO, YES, Profile

from .stale import describe_age
from .statements import say_clock
from .survive import find_tier

DURABLE = "DURABLE_DIR"


def lint(profile: Profile, today: str) -> tuple[Finding, ...]:
    """Everything that a person should look at; `today` is ``YYYY-MM-DD``. One pass where there is nothing."""
    found = (*_find_old(profile, today), *_judge_durable(profile), *_find_unanswered(profile))
    return found or (Finding("profile", Level.PASS, profile.name, "nothing is wrong with it, and no fact is old"),)


def list_dangers(profile: Profile) -> tuple[str, ...]:
    """What happens by the clock, and what cannot be undone: what somebody should have read before the first use."""
    clocks = [say_clock(clock) for clock in profile.clocks]
    final = []
    for verb in profile.verbs:
        if verb.irreversible and profile.metered == "money":
            lost = f"; it destroys {', '.join(verb.destroys)}" if verb.destroys else ""
            final.append(f"{verb.name} cannot be undone{lost}")
    return (*clocks, *final)


def _find_old(profile: Profile, today: str) -> Iterator[Finding]:
    if seen := describe_age(profile, today):
        remedy = f"look at the provider's pages, then: holdfast profile verify {profile.name}"
        yield Finding("profile.stale", Level.WARN, profile.name, seen, remedy)


def _judge_durable(profile: Profile) -> Iterator[Finding]:
    durable = profile.variables.get(DURABLE, "")
    if not durable or not profile.meter_stop:
        return
    tier = find_tier(profile, durable)
    answer = DEPENDS if tier is None else tier.survives.get(profile.meter_stop, DEPENDS)
    subject = f"{profile.name}: {DURABLE}"
    if answer != YES:
        level = Level.FAIL if answer == NO else Level.WARN
        where = "no tier" if tier is None else f"the tier {tier.name}"
        word = "does not outlive" if answer == NO else "may not outlive"
        seen = f"{durable} is in {where}, which {word} {profile.meter_stop}"
        yield Finding("profile.durable", level, subject, seen, "name a directory of a tier that outlives it")
    if durable == profile.variables.get("DATA_DIR"):
        seen = f"{durable} is DATA_DIR, too: one copy, not two"
        yield Finding("profile.durable", Level.WARN, subject, seen, "only a pull that was proven is a second copy")


def _find_unanswered(profile: Profile) -> Iterator[Finding]:
    for tier in profile.tiers:
        missing = [verb.name for verb in profile.verbs if verb.name not in tier.survives]
        if missing:
            seen = f"it is not said whether it outlives {', '.join(missing)}"
            remedy = f"say yes, no or depends in tiers.{tier.name}.survives"
            yield Finding("profile.tier", Level.WARN, f"{profile.name}: {tier.name}", seen, remedy)
        if not tier.paths:
            seen = "where it is mounted is not known: no path is ever in it"
            remedy = f"tiers.{tier.name}.paths in a profile of your own, once you have seen it"
            yield Finding("profile.tier", Level.UNKNOWN, f"{profile.name}: {tier.name}", seen, remedy)
