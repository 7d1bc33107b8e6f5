"""All profiles there are, for a list: what each is in a few words, and which cannot be read."""

from __future__ import annotations

from holdfast.model.errors import HoldfastError
from holdfast.model.record import record

from .read import is_own, list_profiles, load_profile


@record
class ProfileRow:
    """A profile in a few words, as in its file; `own`: the user has a file of it."""

    name: str
    title: str
    inherits: str
    kind: str
    metered: str
    meter_stop: str
    own: bool


@record
class ProfileList:
    """All profiles that can be read, and of the others by name what is wrong."""

    profiles: tuple[ProfileRow, ...]
    problems: dict[str, str]


def read_profiles() -> ProfileList:
    """Read all profiles; one that is wrong hides none of the others."""
    found: list[ProfileRow] = []
    problems: dict[str, str] = {}
    for name in list_profiles():
        try:
            one = load_profile(name)
        except HoldfastError as error:
            problems[name] = str(error)
        else:
            words = (one.name, one.title, one.inherits, one.kind, one.metered, one.meter_stop)
            found.append(ProfileRow(*words, is_own(name)))
    return ProfileList(tuple(found), problems)
