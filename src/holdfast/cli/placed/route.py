"""A command line of a machine that may have places: carried out here, sent to a place, or both.

The router decides (`desk.route.router`); here it gets what it asks, and its decision is carried out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from holdfast.agent.prestart import prestart_for
from holdfast.cli.errors import report, wants_json
from holdfast.desk.route.line import read_line
from holdfast.desk.route.router import Call, Route, decide_route
from holdfast.desk.route.table import VERBS, Kind, Side
from holdfast.model.errors import HoldfastError, NoSuchName, NoSuchRun, Unsupported, UsageError
from holdfast.model.place import LOCAL

from .words import build_words

RunHere = Callable[[list[str]], int]
RESTART = "restart"
RECONCILE = "reconcile"


class DeskKnows:
    """What the router asks: files of this machine, read when they are needed.

    `unknown` are the words that no run answers to, with the places where a job of that name may wait in the queue.
    """

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.unknown: dict[str, list[str]] = {}

    def check_place(self, name: str) -> None:
        """As of `Known`."""
        _load("there").find_place(name)

    def is_place(self, name: str) -> bool:
        """As of `Known`."""
        found: bool = _load("there").is_place(name)
        return found

    def is_here(self, text: str) -> bool:
        """As of `Known`. What cannot be told is taken for here: the verb says why."""
        found: bool = _load("here").is_here(text)
        return found

    def find_runs(self, text: str) -> Sequence[tuple[str, str]]:
        """As of `Known`."""
        found: Sequence[tuple[str, str]] = _load("there").find_runs(text)
        return found

    def find_queued(self, text: str) -> Sequence[tuple[str, str]]:
        """As of `Known`."""
        there = _load("there")
        queues = there.list_queues()
        if queues and not self.is_here(text):
            there.learn_runs(queues)
            found = self.find_runs(text)
            if not found:
                self.unknown[text] = queues
            return found
        return ()


def route(arguments: Sequence[str], run_here: RunHere, *, prestart: bool) -> int:
    """Carry a command line out where it belongs; the exit code, of several places the worst.

    `prestart`: a supervisor for a run of this machine may be started before the verb is loaded.

    Raises:
        HoldfastError: what the router refuses, or a place.
    """
    known = DeskKnows()
    try:
        return _carry_out_all(decide_route(arguments, known), arguments, run_here, prestart=prestart)
    except (NoSuchRun, NoSuchName) as error:
        for text, queues in known.unknown.items():
            if repr(text) in str(error):
                error.hint = "; ".join(filter(None, (error.hint, _load("there").hint_at_queues(text, queues))))
        raise


def _carry_out_all(decided: Route, arguments: Sequence[str], run_here: RunHere, *, prestart: bool) -> int:
    merged = build_words(decided)
    if merged is not None:
        return run_here(merged)
    if len(decided.calls) == 1:
        return _carry_out(decided, decided.calls[0], run_here, prestart=prestart)
    if wants_json(arguments):
        raise UsageError("--json is one object, and these are several places", hint="say the command for each place")
    return max(_carry_out_one(decided, call, run_here) for call in decided.calls)


def _carry_out_one(decided: Route, call: Call, run_here: RunHere) -> int:
    """One of several: an error of one place does not keep the others from being asked."""
    try:
        return _carry_out(decided, call, run_here, prestart=False)
    except HoldfastError as error:
        return report(error, as_json=False)


def _carry_out(decided: Route, call: Call, run_here: RunHere, *, prestart: bool) -> int:
    if call.place == LOCAL:
        if sys.platform != "linux":
            refuse_here(decided.name, call.argv)
        if prestart and "--on" not in call.argv:
            prestart_for(list(call.argv))
        return run_here(list(call.argv))
    order = None
    if decided.kind is Kind.ORDERED:
        order = _load(RESTART).build_order_of(call.place, call.argv)
    code: int = _load("there").send_to(call.place, call.argv, order)
    return code


def refuse_here(name: str | None, argv: Sequence[str]) -> None:
    """Refuse what only a machine that runs jobs can do; this one is a desk alone.

    Raises:
        NoSuchRun: it is about a run that no place is known to have.
        Unsupported: it is about this machine; the hint says how it is said of a place.
    """
    line = read_line(list(argv))
    verb = VERBS.get(name or "")
    if verb is None or line.asks_help or verb.kind in (Kind.DESK, Kind.MERGED) or set(line.on) - {LOCAL}:
        return
    if name == RECONCILE and any(given.name == "place" for given in line.given):
        return
    runs = [line.text(given) for given in line.given if given.side is Side.RUN]
    if runs:
        raise NoSuchRun(
            f"no place is known to have the run {runs[0]!r}, and this machine runs none",
            hint="`holdfast ls --all` asks all places; write PLACE:RUN",
        )
    hint = f"name a place: holdfast {name} --on PLACE"
    if verb.arguments[:1] and verb.arguments[0][1] is Side.RUN:
        hint = f"name a run: holdfast {name} PLACE:RUN"
    raise Unsupported(
        f"holdfast {name} is about a machine that runs jobs, and this one ({sys.platform}) runs none", hint=hint
    )


def _load(name: str) -> ModuleType:
    """The module ``here``, ``there`` or ``restart``, when it is needed: each costs 30 ms, and few need two."""
    return import_module(f"{__package__}.{name}")
