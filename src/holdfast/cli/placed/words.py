"""The words of a verb that asks several places, made from its routed command line."""

from __future__ import annotations

from holdfast.desk.route.line import read_line
from holdfast.desk.route.router import Route
from holdfast.desk.route.table import Kind, Side
from holdfast.model.place import LOCAL

OF_ONE_MACHINE = frozenset({"--using", "--runs"})
"""Options of `ls` and `patrol` that name directories: the machine that has them answers alone."""


def build_words(route: Route) -> list[str] | None:
    """What the verb is called with here, which then asks the places itself; None where that is not its business."""
    if route.kind is not Kind.MERGED or route.is_here:
        return None
    if route.name in ("ls", "patrol"):
        (call,) = route.calls
        own = {word.partition("=")[0] for word in call.argv}
        return None if own & OF_ONE_MACHINE else [*call.argv, "--on", call.place]
    return _build_wait(route) if route.name == "wait" else None


def _build_wait(route: Route) -> list[str]:
    words: list[str] = []
    names: list[str] = []
    for call in route.calls:
        line = read_line(list(call.argv))
        places = {given.index for given in line.given if given.side is Side.RUN}
        words = words or [word for index, word in enumerate(call.argv) if index not in places and word != "--"]
        names += [f"{call.place}:{call.argv[index]}" for index in sorted(places)]
    place = route.calls[0].place
    return [*words, "--", *names] if names else [*words, *(("--on", place) if place != LOCAL else ())]
