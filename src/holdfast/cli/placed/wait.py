"""``holdfast wait`` for what is at several places, this machine among them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from holdfast.agent.queue.wait.names import Waited, wait_for_names
from holdfast.cli.named_run import find_ending
from holdfast.cli.render import note, print_json, print_record
from holdfast.cli.render.wait import print_waited
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.route.router import split_run
from holdfast.desk.runs.poll import look_again
from holdfast.desk.runs.wait import PlaceWaits, Wait, WaitedPlace, join_codes
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record


@record
class AnswerOfPlace:
    """How the wait at one place ended. `answer` is null where it was refused there, which is `error` then.

    Both are null where it could not be told, and `reason` says why.
    """

    place: str
    exit_code: int
    reason: str
    answer: Waited | None
    error: dict[str, object] | None


@record
class PlacedWait:
    """How a wait for what is at several places ended."""

    places: tuple[AnswerOfPlace, ...]
    exit_code: int


def group_names(names: Sequence[str], on: str | None) -> dict[str, tuple[str, ...]]:
    """The names by their place, in the order in which places are named; without names all of `on`.

    Raises:
        UsageError: a name says one place and `on` another.
    """
    found: dict[str, list[str]] = {} if names else {on or LOCAL: []}
    for text in names:
        place, name = split_run(text)
        if place is not None and not name:
            raise UsageError(
                f"{text!r} names a place and nothing there", hint=f"holdfast wait --on {place} waits for all"
            )
        if None not in (place, on) and place != on:
            raise UsageError(f"{text} is at {place}, and --on says {on}", hint="name one place")
        found.setdefault(place or on or LOCAL, []).append(name)
    return {place: tuple(these) for place, these in found.items()}


def wait_placed(names: Mapping[str, Sequence[str]], *, deadline: float | None, quiet: bool, as_json: bool) -> int:
    """Wait for runs, jobs and groups, by the name of their place (no names: its whole queue); the exit code.

    Raises:
        NoSuchRun: a name means nothing here.
        UsageError: there is no such place.
    """
    flags = ["--json"] if as_json else ["-q"] if quiet else []
    waits = [Wait(find_place(place), (*flags, "--", *these)) for place, these in names.items() if place != LOCAL]
    here: Waited | None = None
    try:
        with PlaceWaits(waits, deadline=deadline, open_box=open_box, tell=_say_nothing if quiet else note) as waiting:
            if LOCAL in names:
                here = wait_for_names(names[LOCAL], deadline=deadline, find_run=_find_run, tell=_hear_nothing)
            found = waiting.collect()
    except KeyboardInterrupt:
        if not quiet:
            note("the wait has ended; what was waited for goes on")
        raise
    look_again([wait.place for wait, how in zip(waits, found, strict=True) if not how.reason], open_box=open_box)
    code = join_codes([*([here.exit_code] if here is not None else []), *(place.exit_code for place in found)])
    if as_json:
        _print_json(here, found, code)
    else:
        if here is not None:
            print_waited(here)
        for place in found:
            _print_place(place, alone=len(names) == 1, quiet=quiet)
    return code


def _print_json(here: Waited | None, found: Sequence[WaitedPlace], code: int) -> None:
    places = [] if here is None else [AnswerOfPlace(LOCAL, here.exit_code, "", here, None)]
    places += [read_answer(place) for place in found]
    alone = places[0] if len(places) == 1 else None
    if alone is not None and alone.error is not None:
        print_json({"error": alone.error})
    else:
        print_record((alone.answer if alone is not None else None) or PlacedWait(tuple(places), code))


def read_answer(place: WaitedPlace) -> AnswerOfPlace:
    """What a place said of its wait, for programs; it wrote that itself, so it may be anything."""
    answer: Waited | None = None
    error: dict[str, object] | None = None
    try:
        value = wire.parse_object(place.out.encode(), place.place)
        error = value["error"] if isinstance(value.get("error"), dict) else None
        answer = wire.decode(Waited, value, place.place) if error is None else None
    except wire.WireError:
        pass
    return AnswerOfPlace(place.place, place.exit_code, place.reason, answer, error)


def _print_place(place: WaitedPlace, *, alone: bool, quiet: bool) -> None:
    """What it printed: of runs the lines have the place themselves; with several places those of jobs get it here."""
    for text, stream in ((place.out, sys.stdout), (place.err, sys.stderr)):
        for line in text.splitlines():
            is_named = alone or f"{place.place}:" in line or f"--on {place.place}" in line
            print(line if is_named else f"{place.place}: {line}", file=stream)
    if place.reason and not quiet:
        note(f"{place.place}: how it stands cannot be told ({place.reason}); what is waited for goes on")


def _find_run(name: str) -> str:
    return find_ending(name, None).run_dir


def _say_nothing(_text: str) -> None:
    """Of a quiet wait."""


def _hear_nothing(_seen: object, _estimate: object) -> None:
    """Of a wait without a line that tells how far it is."""
