"""From a place's name to the box: the one way by which verbs reach one. A process has one `Box` for each place."""

from __future__ import annotations

import difflib
import threading

from holdfast.core.control_characters import clean
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, InternalError, NoSuchName, PreflightFailed, Unsupported, UsageError
from holdfast.model.place import LOCAL, PLACE_NAME, BoxFacts, Place
from holdfast.model.record import replace
from holdfast.model.slurm import SLURM
from holdfast.platforms.slurm.platform import measure as measure_slurm
from holdfast.transfer.box import Box
from holdfast.transport.open import close_shared, open_transport

from .places.aliases import is_alias, list_aliases
from .places.config import read_places
from .places.facts import read_facts, write_facts
from .places.schema import check_name, suggest_name
from .profiles.read import load_profile
from .runs.registry import list_sent, list_unfinished

LOGIN_LIMIT_S = DISKS_LIMIT_S = 60.0
LONGEST_PATH = 4096
MOST_NAMED = 8
MOST_DISKS = 32

_BOXES: dict[str, Box] = {}
_LOCK = threading.Lock()


def find_place(name: str) -> Place:
    """The place of this name: this machine, one of ``places.toml``, or an alias of ssh's own configuration.

    Raises:
        NoSuchName: there is none; the message names those that there are.
        NotPermitted, StorageError: ``places.toml`` cannot be trusted or read.
    """
    if name == LOCAL:
        return Place(LOCAL, kind=LOCAL)
    places = read_places()
    if name in places:
        return places[name]
    if PLACE_NAME.match(name) and is_alias(name):
        return Place(name, host=name, configured=False)
    raise _unknown(name, list(places))


def refuse_scheduled(place: Place, what: str, instead: str) -> None:
    """Refuse what would be done on the login node of a place where a scheduler starts the jobs.

    Raises:
        Unsupported: it is such a place.
    """
    if place.kind == SLURM:
        raise Unsupported(f"{place.name} is a place of kind {place.kind}, where {what}", hint=instead)


def open_box(place: Place) -> Box:
    """The box of a place, with what is known of it; nothing is sent before it is used.

    Raises:
        UsageError: as of `Box`.
    """
    with _LOCK:
        box = _BOXES.get(place.name)
        if box is None or box.place != place:
            facts = read_facts(place).facts
            # Until now: what this command itself is about to order is no run yet.
            sent = list_sent(place.name)
            box = Box(
                place,
                open_transport(place),
                facts=facts,
                remember=lambda found: _remember(place, found),
                unfinished=lambda: list(dict.fromkeys([*list_unfinished(place.name), *sent])),
            )
            _BOXES[place.name] = box
        return box


def close_connection(place: Place) -> None:
    """End the connection that calls to a place share, where holdfast has opened it: nobody uses it any more."""
    with _LOCK:
        _BOXES.pop(place.name, None)
    close_shared(place)


def measure_box(place: Place) -> BoxFacts:
    """Measure a place anew, whatever is known of it, and keep that.

    Where jobs get the environment of a login shell, that is read anew, too; a shell that gives none is a warning.
    So are the disks that the place's profile names; a profile that cannot be read is a warning as well.

    Raises:
        PlaceError, Refused, NoInterpreter: as of `Box.probe`.
    """
    box = open_box(place)
    facts = box.probe()
    if place.kind == SLURM:
        facts = replace(facts, slurm=measure_slurm(box))
        _remember(place, facts)
    if place.profile:
        facts = _measure_profile_disks(box, facts)
        _remember(place, facts)
    if place.env_from == "none":
        return facts
    try:
        path = str(box.entry("environment", limit_s=LOGIN_LIMIT_S).get("path", ""))
        facts = replace(facts, login_path=clean(path)[:LONGEST_PATH])
    except PreflightFailed as error:
        facts = replace(facts, warnings=(*facts.warnings, clean(str(error))))
    _remember(place, facts)
    return facts


def _measure_profile_disks(box: Box, facts: BoxFacts) -> BoxFacts:
    """With the disks that the place's profile names, but for those that any box has."""
    try:
        profile = load_profile(box.place.profile)
    except HoldfastError as error:
        return replace(facts, warnings=(*facts.warnings, f"the disks of its profile were not measured: {error}"))
    named = [path for tier in profile.tiers for path in tier.paths if path.startswith(("/", "~/"))]
    paths = [path for path in named if path not in ("/", facts.home, *(disk.path for disk in facts.disks))]
    if not paths:
        return facts
    answer = box.entry("probe", paths[:MOST_DISKS], limit_s=DISKS_LIMIT_S)
    try:
        return wire.decode(BoxFacts, {**wire.encode(facts), "profile_disks": answer.get("disks")}, "probe")
    except wire.WireError as error:
        raise InternalError(f"place {box.place.name}: the disks of its profile: {error}") from error


def _remember(place: Place, facts: BoxFacts) -> None:
    """Keep what was measured. What cannot be kept is measured again: no call fails for it."""
    try:
        write_facts(place, facts)
    except HoldfastError:
        pass


def _name_some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _unknown(name: str, configured: list[str]) -> UsageError:
    if wrong := check_name(name):
        if ":" in name or "/" in name or not ("@" in name or "." in name or name in list_aliases()):
            return UsageError(wrong)
        short = suggest_name(name) or "NAME"
        return UsageError(
            f"{name[:80]} is a host, and no name of a place",
            hint=f"give it a name first: holdfast place add {short} {name}; then write {short}",
        )
    aliases = [alias for alias in list_aliases() if PLACE_NAME.match(alias)]
    near = difflib.get_close_matches(name, [*configured, *aliases, LOCAL], n=3, cutoff=0.6)
    known = f"configured: {', '.join(configured[:20])}" if configured else "no place is configured"
    hint = f"did you mean {' or '.join(sorted(near))}? else: " if near else ""
    return NoSuchName(
        f"there is no place {name}; {known}" + (f"; aliases of ssh: {_name_some(aliases)}" if aliases else ""),
        hint=f"{hint}holdfast place add {name} USER@HOST",
    )
