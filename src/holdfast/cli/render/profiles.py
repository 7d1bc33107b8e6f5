"""Profiles on the screen: what survives what, what bills, which clocks run, and from where each statement is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.core.profile.lint import list_dangers
from holdfast.core.profile.stale import describe_age
from holdfast.host.clock import utc_now
from holdfast.model.units import format_bytes, format_count, format_duration

from . import heading, note, pairs, table

if TYPE_CHECKING:
    from holdfast.core.profile.survive import Survival
    from holdfast.desk.profiles.listing import ProfileList
    from holdfast.model.profile import EndVerb, Profile, Tier


def print_profiles(found: ProfileList) -> None:
    """A row for each, then what cannot be read."""
    headers = ("profile", "what it is", "meter", "ends with", "whose")
    table(
        headers,
        [
            (row.name, row.title, row.metered, row.meter_stop or None, "yours" if row.own else "of holdfast")
            for row in found.profiles
        ],
    )
    for name, words in found.problems.items():
        note(f"{name} cannot be read: {words}")


def print_profile(profile: Profile, own: str) -> None:
    """All of one; `own` is the path of the user's file of it, if there is one."""
    pairs(_summarise(profile, own))
    if profile.tiers and profile.verbs:
        print()
        headers = ("tier", "paths", *(f"after {verb.name}" for verb in profile.verbs), "limits")
        table(headers, [_row(profile, tier) for tier in profile.tiers])
    for verb in profile.verbs:
        print()
        heading(verb.name)
        pairs(_describe_verb(verb), indent=2, wrap=True)
    print()
    pairs(((name, text) for name, text in profile.sections.items()), wrap=True)
    if profile.facts:
        print()
        table(
            ("fact", "verified", "source", "said in", "text"),
            [
                (key, fact.verified_on, fact.source, _find_origin(profile, key), fact.text or None)
                for key, fact in profile.facts.items()
            ],
        )


def _find_origin(profile: Profile, key: str) -> str | None:
    for known in (key, f"facts.{key}"):
        if known in profile.origins:
            return profile.origins[known]
    return None


def _summarise(profile: Profile, own: str) -> Iterator[tuple[str, object]]:
    yield "profile", f"{profile.name}: {profile.title}"
    yield "inherits from", profile.inherits or "nothing"
    if own:
        yield "yours", own
    yield "meter", f"{profile.metered}, ends with {profile.meter_stop}" if profile.meter_stop else profile.metered
    if profile.spot is not None:
        yield "interruptions", "may be interrupted" if profile.spot else "not by the provider"
    if profile.grace_s is not None or profile.notice:
        grace = "to be measured" if profile.grace_s is None else format_duration(profile.grace_s)
        yield "notice", f"{grace}{f'; {profile.notice}' if profile.notice else ''}"
    if profile.interruptions_s is not None:
        yield "between interruptions", format_duration(profile.interruptions_s)
    if profile.runtime_cap_s is not None:
        yield "one start lasts", f"{format_duration(profile.runtime_cap_s)} at most"
    if profile.egress_per_gb is not None:
        yield "a GB sent away", f"{profile.egress_per_gb:g} {profile.currency}".rstrip()
    if profile.home:
        yield "home", profile.home
    for name, value in profile.variables.items():
        yield name, value or "(empty: from the environment)"
    for words in list_dangers(profile):
        yield "mind", words
    if old := _tell_age(profile):
        yield "old", old


def _row(profile: Profile, tier: Tier) -> list[object]:
    limits = [] if tier.cap_bytes is None else [format_bytes(tier.cap_bytes)]
    limits += [] if tier.cap_inodes is None else [format_count(tier.cap_inodes, "inode")]
    limits += [f"shared in its {tier.shared_with}"] if tier.shared_with else []
    answers = [tier.survives.get(verb.name, "not said") for verb in profile.verbs]
    return [tier.name, " ".join(tier.paths) or None, *answers, ", ".join(limits) or None]


def _describe_verb(verb: EndVerb) -> Iterator[tuple[str, object]]:
    yield "how", verb.how
    yield "ends the meter", {True: "yes", False: "no", None: "not known"}[verb.stops_meter]
    yield "can be undone", "no" if verb.irreversible else "yes"
    for name, what in (("destroys", verb.destroys), ("keeps", verb.keeps), ("still bills", verb.still_bills)):
        if what:
            yield name, "\n".join(what)


def print_survival(profile: Profile, found: Survival) -> None:
    """The answer in a line, with the tier and why."""
    where = f"{found.path} is in the tier {found.tier} of {profile.name}" if found.tier else found.why
    why = f": {found.why}" if found.tier and found.why else ""
    print(f"{found.answer}: {where}{why}")
    if not found.proven and found.answer != "no":
        note("depends is no until you have looked; say what you saw in a profile of your own")


def print_introduction(profile: Profile) -> None:
    """What somebody should have read before the first use of a kind of machine."""
    heading(f"{profile.name}: {profile.title}")
    for words in list_dangers(profile):
        print(f"  mind: {words}")
    for fact in profile.facts.values():
        if fact.text:
            print(f"  {fact.text}")
    if old := _tell_age(profile):
        print(f"  {old}")
    print(f"  all of it: holdfast profile show {profile.name}")


def _tell_age(profile: Profile) -> str:
    """That facts are old, and what to do before something final; empty where none is."""
    old = describe_age(profile, utc_now()[:10])
    return f"{old}; before a teardown: holdfast profile verify {profile.name}" if old else ""
