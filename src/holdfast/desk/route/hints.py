"""What a box says to people, with its commands as they are typed at the desk. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.model.errors import HoldfastError

from .line import read_line
from .table import VERBS, Side

_RUN_ID = r"\d{8}-\d{6}-[A-Za-z0-9][A-Za-z0-9._-]{0,47}-[0-9a-f]{4}"
_COMMAND = re.compile(r"(?<![\w/.-])holdfast ([a-z]+(?:-[a-z]+)*)(?: ([a-z]+(?:-[a-z]+)*))?(?![\w-])")
_OPTIONS = r"(?: -{1,2}[a-z][a-z-]*(?: (?:\d+|[A-Z]+))?)*"
_RUN = re.compile(rf"{_OPTIONS} (RUN\b|{_RUN_ID})")
_NAME = re.compile(rf"{_OPTIONS} (?:\S*/\S*|[A-Za-z0-9][A-Za-z0-9._-]*(?=[`'\").,;:]|$))", re.MULTILINE)
"""A run by its path or its name, which is the last word of its command; what else follows a verb is a sentence."""
_OWN = re.compile(r"[^`'\"\n;]{0,200}")
"""What may still belong to a command behind its verb."""
_BARE = re.compile(rf"(?<![\w:/.-]){_RUN_ID}(?![\w/-]|\.\w|  )")
"""A run by its id in a sentence; in a table two spaces follow, and the columns stay where they are."""
_NAMING_PLACES = re.compile(r"(?<![\w/.-])holdfast (push|secret (?:push|rm|check|ls)) (?:PLACE|local)\b")
_OF_RUNTIMES = re.compile(
    r"(?<![\w/.-])(?:podman|docker|apptainer|singularity) (?:pull|system df|network ls|rm --force|info)\b"
)
"""Commands of a container runtime, which are typed at the place: what they fetch has to be there."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]+\Z")
RUN = "RUN"
OPTIONAL = frozenset({"wait"})
"""Of the verbs that name runs, those that say something without one."""


def name_place(text: str, place: str, run: str = RUN) -> str:
    """`text` with its commands as they are typed at the desk: ``holdfast stop gpu1:ID``, ``holdfast gpus --on gpu1``.

    A run is known by its id, which gets its place in sentences too; a verb that needs one and has none gets `run`; else
    ``--on`` says the place.
    """
    text = _OF_RUNTIMES.sub(lambda found: f"on {place}: {found[0]}", text)
    return _BARE.sub(lambda found: f"{place}:{found[0]}", _name_commands(text, place, run))


def _name_commands(text: str, place: str, run: str) -> str:
    if "holdfast " not in text:
        return text
    text = _NAMING_PLACES.sub(rf"holdfast \1 {place}", text)
    pieces, at = [], 0
    for found in _COMMAND.finditer(text):
        name = f"{found[1]} {found[2]}" if f"{found[1]} {found[2]}" in VERBS else found[1]
        row, end = VERBS.get(name), found.start() + len(f"holdfast {name}")
        own = _OWN.match(text, end)
        if row is None or not row.takes_place or (own and ("--on " in own[0] or f"{place}:" in own[0])):
            continue
        needs_run = bool(row.arguments) and row.arguments[0][1] is Side.RUN
        stated = _RUN.match(text, end) if needs_run else None
        if stated is not None:
            cut, words = stated.span(1), f"{place}:{run if stated[1] == RUN else stated[1]}"
        elif needs_run and name not in OPTIONAL and not _NAME.match(text, end):
            cut, words = (end, end), f" {place}:{run}"
        else:
            cut, words = (end, end), f" --on {place}"
        pieces += [text[at : cut[0]], words]
        at = cut[1]
    return "".join([*pieces, text[at:]])


def find_own_run(arguments: Sequence[str]) -> str:
    """The run that a command line is about, where it names one: what it says of others is about that one."""
    try:
        line = read_line(list(arguments))
    except HoldfastError:
        return RUN
    runs = [line.text(given) for given in line.given if given.side is Side.RUN]
    return runs[0] if len(runs) == 1 and _PLAIN.match(runs[0]) else RUN
