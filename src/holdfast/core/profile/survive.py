"""Does what lies at a path outlive an act? Answered from the tiers of a profile: the longest beginning counts. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.near import find_near
from holdfast.model.errors import NoSuchName
from holdfast.model.profile import DEPENDS, YES, EndVerb, Profile, Tier
from holdfast.model.record import record


@record
class Survival:
    """The answer (``yes``, ``no``, ``depends``), the tier that it is from (empty: none has the path), and why.

    `proven`: it may be relied on; what depends on the box is no until somebody has looked.
    """

    profile: str
    path: str
    verb: str
    answer: str
    proven: bool
    tier: str
    why: str


def find_verb(profile: Profile, name: str) -> EndVerb:
    """The verb of a profile.

    Raises:
        NoSuchName: it has none of that name; those that it has are named.
    """
    for verb in profile.verbs:
        if verb.name == name:
            return verb
    names = [verb.name for verb in profile.verbs]
    near = find_near(name, names)
    raise NoSuchName(
        f"{name[:80]!r} is no verb of the profile {profile.name}; there are {', '.join(names) or 'none'}",
        hint=f"try {near}" if near else f"holdfast profile show {profile.name}",
    )


def survives(profile: Profile, path: str, verb: str, resolve: Callable[[str], str] | None = None) -> Survival:
    """Whether what lies at `path` is there after `verb`.

    `resolve` makes the real absolute path of one as it is written, with links followed, on the box; without it paths
    are compared as they are written, so ``~/x`` is below a tier's ``~`` only, unless the profile knows the home.

    Raises:
        NoSuchName: the profile has no such verb.
    """
    find_verb(profile, verb)
    tier = find_tier(profile, path, resolve)
    if tier is None:
        return Survival(profile.name, path, verb, DEPENDS, False, "", f"no tier of {profile.name} has this path")
    answer = tier.survives.get(verb, DEPENDS)
    why = tier.note or ("" if verb in tier.survives else f"the profile does not say what {verb} does to it")
    return Survival(profile.name, path, verb, answer, answer == YES, tier.name, why)


def find_tier(profile: Profile, path: str, resolve: Callable[[str], str] | None = None) -> Tier | None:
    """The tier with the longest beginning of `path`; None where no tier has it."""
    wanted = _normalize(fill_in_home(path, profile.home) if resolve is None else resolve(path))
    best: tuple[int, Tier] | None = None
    for tier in profile.tiers:
        for beginning in tier.paths:
            there = _normalize(beginning if resolve is None else resolve(beginning))
            if is_below(wanted, there) and (best is None or len(there) > best[0]):
                best = (len(there), tier)
    return None if best is None else best[1]


def list_lasting(profile: Profile, verb: str) -> tuple[Tier, ...]:
    """The tiers that outlive `verb` for certain."""
    return tuple(tier for tier in profile.tiers if tier.survives.get(verb) == YES)


def fill_in_home(path: str, home: str) -> str:
    """The path with ~ at its beginning filled in; as it is where the home is not known (empty)."""
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def is_below(path: str, there: str) -> bool:
    """Whether a path is `there`, or inside of it; both as they are written."""
    return path == there or path.startswith(there if there == "/" else f"{there}/")


def _normalize(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(parts)
