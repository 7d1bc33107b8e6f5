"""Names of places for a TAB: from files alone."""

from __future__ import annotations

from holdfast.model.place import LOCAL, PLACE_NAME

from .aliases import list_aliases
from .config import read_places


def list_place_names(begin: str = "") -> list[tuple[str, str | None]]:
    """Names of places that begin so, each with what it is; nothing is asked but files.

    Raises:
        UsageError, NotPermitted, StorageError: as of `read_places`.
    """
    named = {LOCAL: "this machine", **{place.name: place.host or "this machine" for place in read_places().values()}}
    for alias in list_aliases():
        if PLACE_NAME.match(alias):
            named.setdefault(alias, "alias of ssh")
    return [(name, about) for name, about in named.items() if name.startswith(begin)]
