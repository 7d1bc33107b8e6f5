"""Decides from the words of a command line where it is carried out: here, at a place, or at several.

Pure: what is known of places and runs is asked of `Known`. A word that names a RUN is split at its first colon; a run
without a place is looked for here first, then among the runs that the desk has seen at places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.model.errors import NoSuchRun, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record

from .line import ON, Given, Line, read_line
from .table import Kind, Side

AFTER = "--after"
LIKE = "--like"
MOST_SHOWN = 5


class Known(Protocol):
    """What the desk knows; each is asked only when a command line needs it."""

    def check_place(self, name: str) -> None:
        """Refuse a name that no place has, with the nearest that one has.

        Raises:
            UsageError: there is no such place.
        """
        ...

    def is_place(self, name: str) -> bool:
        """Whether a place of this name is in places.toml."""
        ...

    def is_here(self, text: str) -> bool:
        """Whether a run of this machine (or a job of its queue) answers to `text`."""
        ...

    def find_runs(self, text: str) -> Sequence[tuple[str, str]]:
        """Place and id of the runs elsewhere that answer to `text`, as far as the desk has seen them."""
        ...

    def find_queued(self, text: str) -> Sequence[tuple[str, str]]:
        """As `find_runs`, after a look at the places where jobs of this desk may have become runs; none if it is here.

        For a `text` that `find_runs` does not know.
        """
        ...


@record
class Call:
    """A command line for one place (`LOCAL`: this machine), without ``--on`` and without ``PLACE:``."""

    place: str
    argv: tuple[str, ...]


@record
class Route:
    """Who carries out what: the calls in the order in which their places were named, at least one."""

    kind: Kind
    name: str | None
    calls: tuple[Call, ...]

    @property
    def is_here(self) -> bool:
        """Whether nothing but this machine is concerned."""
        return all(call.place == LOCAL for call in self.calls)


def decide_route(argv: Sequence[str], known: Known) -> Route:
    """Where the command line `argv` (without the program's name) is carried out.

    Raises:
        UsageError: an unknown place, several that contradict each other, a name that several places have.
        NoSuchRun: a place is named where a run is meant.
    """
    line = read_line(list(argv))
    if line.verb is not None and line.verb.own_on:
        return _leave_to_verb(line, known)
    on = _read_on(line, known)
    if line.verb is None or line.name is None or line.asks_help:
        if on not in (None, LOCAL) and not line.asks_help:
            raise UsageError(f"--on {on}: there is no verb to send there", hint="`holdfast --help` lists the verbs")
        return Route(Kind.DESK, line.name, (Call(LOCAL, line.argv),))
    verb = line.verb
    if not verb.takes_place:
        if on is not None and on != LOCAL:
            raise UsageError(f"holdfast {line.name} has no place: {verb.why}", hint="leave --on out")
        return Route(verb.kind, line.name, (Call(LOCAL, line.argv),))
    if verb.arguments[:1] and verb.arguments[0][1] is Side.RUN and any(split_run(word)[0] for word in line.surplus):
        raise UsageError(
            f"holdfast {line.name} is about one run, and {', '.join(line.surplus)} is more than that",
            hint="say the command once for each run",
        )
    kind = Kind.ORDERED if line.name == "restart" and _is_given(line, "--job") else verb.kind
    runs = [given for given in line.given if given.side in (Side.RUN, Side.JOB)]
    places = [_read_run(line, given, on, known) for given in runs]
    if not runs:
        stated = on or LOCAL
        return Route(kind, line.name, (Call(stated, _strip_after(line, line.argv, stated)),))
    beside = [given for given in line.given if given.side is Side.BESIDE]
    places += [_read_beside(line, given, places[0][0], known) for given in beside]
    return Route(kind, line.name, _group(line, runs + beside, places))


def _leave_to_verb(line: Line, known: Known) -> Route:
    """A verb that reads ``--on`` itself gets it where it expects it: among its options."""
    assert line.verb is not None
    on = _read_on(line, known, several=line.name == "run")
    words = _strip_after(line, line.argv, on or LOCAL)
    for given in line.given:
        if given.name == LIKE:
            words, on = _find_like(line, given, words, on, known)
    argv = (*words[: line.own], *(() if on is None else (ON, on)), *words[line.own :])
    return Route(line.verb.kind, line.name, (Call(LOCAL, argv),))


def _find_like(
    line: Line, given: Given, words: tuple[str, ...], on: str | None, known: Known
) -> tuple[tuple[str, ...], str | None]:
    """The words with the place of the run that another is to be like, and where that one begins: there, by default."""
    text = line.text(given)
    place, run = split_run(text)
    if place is None:
        place = _look_up(line, text, known)
    else:
        _check_place(place, known)
    if not run:
        raise UsageError(f"{LIKE} {text!r} names a place and no run", hint=f"holdfast ls --on {place} lists the runs")
    named = run if place == LOCAL else f"{place}:{run}"
    changed = list(words)
    changed[given.index] = changed[given.index][: given.begin] + named
    return tuple(changed), on if on is not None or place == LOCAL else place


def _read_on(line: Line, known: Known, *, several: bool = False) -> str | None:
    """The place that ``--on`` names; None without one. With `several` also ``a,b``, of which the verb takes one."""
    stated = list(dict.fromkeys(line.on))
    if not stated:
        return None
    if several and len(stated) == 1 and "," in stated[0]:
        for name in filter(None, stated[0].split(",")):
            _check_place(name, known)
        return stated[0]
    if any("," in name for name in stated) or len(stated) > 1:
        named = " and ".join(stated)
        raise UsageError(f"--on takes one place, and was given {named}", hint="say the command once for each place")
    _check_place(stated[0], known)
    return stated[0]


def _check_place(name: str, known: Known) -> None:
    if name != LOCAL:
        known.check_place(name)


def _is_given(line: Line, option: str) -> bool:
    return any(given.name == option for given in line.given)


def split_run(text: str) -> tuple[str | None, str]:
    """Place and run of ``PLACE:RUN``, split at the first colon; None without a place.

    A path has a slash before its colon, and no place.
    """
    place, colon, run = text.partition(":")
    return (place, run) if colon and "/" not in place else (None, text)


def _read_run(line: Line, given: Given, on: str | None, known: Known) -> tuple[str, str]:
    """The place of a RUN and the RUN without it."""
    text = line.text(given)
    place, run = split_run(text)
    if place is not None:
        _check_place(place, known)
        if not run:
            raise UsageError(f"{text!r} names a place and no run", hint=f"holdfast ls --on {place} lists the runs")
        if on is not None and on != place:
            raise UsageError(f"{text} is at {place}, and --on says {on}", hint="name one place")
        return place, run
    if on is not None or given.side is Side.JOB:
        return on or LOCAL, text
    return _look_up(line, text, known), text


def _read_beside(line: Line, given: Given, first: str, known: Known) -> tuple[str, str]:
    """The place of the first run, and a word for it without the place: perhaps another run there.

    Raises:
        UsageError: it names a run of another place.
    """
    text = line.text(given)
    place, run = split_run(text)
    if place is None or not (place == LOCAL or known.is_place(place)):
        return first, text
    if place != first:
        here = "on this machine" if first == LOCAL else f"at {first}"
        raise UsageError(
            f"{text} is at {place}, and the first run is {here}", hint="say the command once for each place"
        )
    return first, run


def _look_up(line: Line, text: str, known: Known) -> str:
    """The place of a run that was named without one: here before elsewhere."""
    if "/" in text or _is_given(line, "--runs"):
        return LOCAL
    found = known.find_runs(text)
    if found and known.is_here(text):
        return LOCAL
    found = found or known.find_queued(text)
    places = list(dict.fromkeys(place for place, _ in found))
    if not places:
        if known.is_place(text) and not known.is_here(text):
            raise NoSuchRun(
                f"{text} is a place, and no run has this name", hint=f"holdfast ls --on {text} lists its runs"
            )
        return LOCAL
    if len(places) > 1:
        shown = ", ".join(f"{place}:{run}" for place, run in found[:MOST_SHOWN])
        more = ", ..." if len(found) > MOST_SHOWN else ""
        raise UsageError(f"{text!r} is at {len(places)} places: {shown}{more}", hint="write PLACE:RUN")
    return places[0]


def _group(line: Line, runs: list[Given], places: list[tuple[str, str]]) -> tuple[Call, ...]:
    """One call for each place, with its own runs."""
    calls = []
    for place in dict.fromkeys(place for place, _ in places):
        argv: list[str | None] = list(line.argv)
        for given, (at, run) in zip(runs, places, strict=True):
            argv[given.index] = line.argv[given.index][: given.begin] + run if at == place else None
        calls.append(Call(place, tuple(word for word in argv if word is not None)))
    return tuple(calls)


def _strip_after(line: Line, argv: tuple[str, ...], place: str) -> tuple[str, ...]:
    """The words with ``--after`` as its place knows the jobs.

    Raises:
        UsageError: a job would wait for one elsewhere, which nobody there can see.
    """
    words = list(argv)
    for given in line.given:
        if given.name != AFTER:
            continue
        jobs = []
        for text in line.text(given).split(","):
            stated, job = split_run(text)
            if stated not in (None, place):
                here = "this machine" if place == LOCAL else place
                raise UsageError(
                    f"--after {text}: the job would be in the queue of {here}, and that one is at {stated}",
                    hint=f"--on {stated} puts both into one queue; `holdfast wait {text} && ...` waits across places",
                )
            jobs.append(job)
        words[given.index] = words[given.index][: given.begin] + ",".join(jobs)
    return tuple(words)
