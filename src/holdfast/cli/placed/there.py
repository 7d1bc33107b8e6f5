"""What a command line that names a place needs of the desk, in one module: who names none does not load it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from holdfast.cli.errors import wants_json
from holdfast.cli.render import note
from holdfast.cli.render.copying import CopyProgress
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.cost.every import list_reminders
from holdfast.desk.orders.journal import drop_unsent, find_unsent
from holdfast.desk.places.config import read_places
from holdfast.desk.route.follow import FOLLOWED
from holdfast.desk.route.line import read_line
from holdfast.desk.route.send import send
from holdfast.desk.route.table import Side
from holdfast.desk.runs import registry
from holdfast.desk.runs.pending import has_queued_jobs
from holdfast.desk.runs.poll import PATIENT_S, is_due, look_again, poll_places
from holdfast.desk.runs.registry import ABSENT
from holdfast.model.errors import CutOff, HoldfastError, NoSuchRun
from holdfast.model.ids import is_name, is_run_id
from holdfast.model.run import say_condition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.desk.route.line import Line
    from holdfast.model.place import Place
    from holdfast.model.sighting import Sighting

__all__ = ["find_place", "find_runs", "hint_at_queues", "is_place", "learn_runs", "list_queues", "send_to"]
STOP, RESTART, RM = "stop", "restart", "rm"
LISTING = frozenset({"ls", "patrol", "reconcile"})
MOST_LOOKED_AT = 3
CHANGING = frozenset({"rm", "stop", "restart", "adopt", "prune", "reconcile", "queue cancel", "results copy"})
"""Verbs after which runs may be other than they were seen last."""


def is_place(name: str) -> bool:
    """Whether a place of this name is in places.toml."""
    return name in _read_places()


def _read_places() -> dict[str, Place]:
    """The places of places.toml; none where that cannot be read, which whoever needs one is told."""
    try:
        return read_places()
    except HoldfastError:
        return {}


def find_runs(text: str) -> list[tuple[str, str]]:
    """The runs of places, as (place, run id), that answer to `text` by what this desk has seen.

    A run of a place that was seen by its alias of ssh, too, is that place's.
    """
    found = [(known.place, known.run_id) for known in registry.find(text)]
    if len(found) < 2:
        return found
    places = _read_places()
    names = {place.host: name for name, place in places.items()}
    return [one for one in found if one[0] in places or (names.get(one[0], ""), one[1]) not in found]


def send_to(place: str, argv: Sequence[str], order: bytes | None = None) -> int:
    """Have a place carry a command line out, with what it was resolved into here, if anything; its exit code.

    Raises:
        HoldfastError: the place cannot be reached, or does not let us in.
    """
    line = read_line(list(argv))
    if unsent := _find_unsent(place, line):
        return _answer_unsent(place, argv, unsent)
    box = open_box(find_place(place))
    removed = _find_removed(box.place, line)
    progress = CopyProgress()
    ask = _ask if sys.stdin is not None and sys.stdin.isatty() and not wants_json(argv) else None
    try:
        code = send(box, argv, order=order, ask=ask, tell=progress.tell)
    except CutOff as error:
        raise _look_after(error, box.place, line) from error
    finally:
        progress.end()
    for reminder in list_reminders([box.place]) if line.name == "show" and not wants_json(argv) else ():
        note(reminder.words)
    if line.name in CHANGING and not line.has("--dry-run"):
        look_again([box.place], open_box=open_box, removed=removed)
    return code


def _find_unsent(place: str, line: Line) -> list[str]:
    """The ids that a command line names, where all are of orders that were never sent: the place has none of them."""
    if line.name in LISTING or line.asks_help:
        return []
    ids = [line.text(given) for given in line.given if given.side is Side.RUN]
    with suppress(HoldfastError):  # what the journal does not say the place may know
        return ids if all(is_run_id(each) and find_unsent(place, each) for each in ids) else []
    return []


def _answer_unsent(place: str, argv: Sequence[str], unsent: Sequence[str]) -> int:
    """Drop orders that were never sent, where they are to be removed; the exit code.

    Raises:
        NoSuchRun: anything else was asked of them.
    """
    names = ", ".join(f"{place}:{run_id}" for run_id in unsent)
    if (
        argv[0] == RM
        and set(argv[1:]) - {*unsent} <= {"-y", "--yes"}
        and all(drop_unsent(place, run_id) for run_id in unsent)
    ):
        note(f"dropped {names}, which was never sent: {place} was not asked")
        return 0
    raise NoSuchRun(
        f"{names} was ordered and never sent: it is no run",
        hint=f"the command that ordered it goes on with it; holdfast rm {place}:{unsent[0]} drops the order",
    )


def _look_after(error: CutOff, place: Place, line: Line) -> CutOff:
    """The same with where the runs stand that were to be stopped, by one look over another connection (XPORT-07)."""
    if line.name not in (STOP, RESTART) or FOLLOWED in error.details:
        return error
    texts = [line.text(given) for given in line.given if given.side is Side.RUN]
    ids = dict.fromkeys(run_id for text in texts for run_id in _find_meant(place, text))
    seen: list[Sighting] = []
    if ids:  # without one the place would be asked for all its runs
        (poll,) = poll_places([place], deadline_s=PATIENT_S, open_box=open_box, limit=None, ids={place.name: [*ids]})
        seen = [poll.sightings[run_id] for run_id in ids if run_id in poll.sightings]
    said = ", ".join(f"{each.run_id} {say_condition(each.condition)}{_name_attempt(each)}" for each in seen)
    words = f"looked at again: {said}" if seen else "whether it had an effect there is not known"
    hint = f"see what becomes of it: holdfast show {place.name}:{texts[0] if len(texts) == 1 else 'RUN'}"
    return CutOff(f"{error}; {words}", hint=hint, details=error.details)


def _find_meant(place: Place, text: str) -> list[str]:
    """The ids that a name can have meant to stop: of several runs those that had not ended, else the newest."""
    ids = [known.run_id for known in registry.find(text) if known.place == place.name]
    unfinished = set(registry.list_unfinished(place.name))
    return [run_id for run_id in ids if run_id in unfinished][:MOST_LOOKED_AT] or ids[:1]


def _name_attempt(seen: Sighting) -> str:
    return "" if seen.row is None else f" (attempt {seen.row['attempt']})"


def list_queues() -> list[str]:
    """The names of the places to which this desk handed in jobs lately."""
    return [name for name in registry.list_seen_places() if has_queued_jobs(name)]


def learn_runs(names: Sequence[str]) -> None:
    """Look at the runs of these places; one that has just failed to answer is not asked again."""
    places = []
    for name in names:
        with suppress(HoldfastError):
            places += [find_place(name)] if is_due(name) else []
    for poll in look_again(places, open_box=open_box):
        if poll.unreachable is not None:
            note(f"{poll.place} has jobs of this desk in its queue, and does not answer: {poll.unreachable}")


def hint_at_queues(text: str, queues: Sequence[str]) -> str:
    """How a job is named that waits at one of these places: it has no run yet, by which it could be found."""
    named = " or ".join(f"{place}:{text}" for place in queues[:MOST_LOOKED_AT])
    return f"if it is a job that waits in the queue of a place, write {named}" if is_name(text) else ""


def _find_removed(place: Place, line: Line) -> list[str]:
    """The ids of runs that a command is about to remove, as far as this desk knows them; by no name, any ended.

    Those that are there now: what is gone already was not removed, but its disk may not be mounted. A whole id is meant
    in any case.
    """
    if line.name != "rm" or line.has("--dry-run"):
        return []
    texts = [line.text(given) for given in line.given if given.side is Side.RUN]
    # Which runs a pattern means is for the place to say.
    if texts and not any("*" in text for text in texts):
        ids = [known.run_id for text in texts for known in registry.find(text) if known.place == place.name]
    else:
        ids = [seen.run_id for seen in registry.read_sightings(place.name) if seen.ended and seen.condition != ABSENT]
    if not ids:
        return []
    (seen,) = poll_places([place], deadline_s=PATIENT_S, open_box=open_box, limit=None, ids={place.name: ids})
    return [run_id for run_id in ids if run_id in seen.sightings or run_id in texts]


def _ask(question: str) -> bool:
    # Who is asked nothing does not load it.
    answer: bool = import_module("click").confirm(question, default=False)
    return answer
