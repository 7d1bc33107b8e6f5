"""``holdfast ls`` of a desk: the runs of this machine and those of places, in one list."""

from __future__ import annotations

from holdfast.agent.place.poll import Question, answer_question
from holdfast.agent.view.runs.listing import EVERY, RunFilter, check_names, check_states
from holdfast.cli.render import note, print_record
from holdfast.cli.render.placed_runs import print_placed_runs
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.cost.every import list_reminders
from holdfast.desk.runs.listing import Wanted, list_places, list_runs
from holdfast.model.errors import HoldfastError, PlaceError
from holdfast.model.place import Place
from holdfast.model.record import replace
from holdfast.model.sighting import Reach


def list_placed(on: str | None, *, everything: bool, limit: int, chosen: RunFilter, as_json: bool) -> int:
    """List the runs of the place `on`, without one those of this machine and of all places; the exit code.

    Raises:
        UsageError: there is no such state, or no such place.
        NoSuchRun: no run that is known has one of the names, and no place is silent.
    """
    met: list[str] = []

    def keep(run_id: str, condition: str, *, ended: bool, failure: str, moments: tuple[str | None, ...]) -> bool:
        met.append(run_id)
        return chosen.keeps(run_id, condition, ended=ended, failure=failure, moments=moments)

    wanted = Wanted(on is not None, everything, None if everything else limit, keep=None if chosen.is_open else keep)
    places, problem = read_places_or_problem() if on is None else ([find_place(on)], None)
    found = list_runs(
        places,
        wanted,
        open_box=open_box,
        look_here=(lambda most: answer_question(Question((), most))) if on is None else None,
        tell=note,
    )
    if problem:
        found = replace(found, notice="; ".join(filter(None, (found.notice, problem))))
    silent = [place for place in found.places if place.reach == Reach.UNREACHABLE.value]
    check_states(chosen.states, [(run.condition, run.ended) for run in found.runs])
    if not silent and len(met) >= found.known:  # else nobody knows what the others are called
        every = all(place.asked for place in found.places)
        hint = EVERY if every else "holdfast ls --all asks every place"
        check_names(chosen.names, met, places=[place.name for place in places], hint=hint)
    if found.notice:
        note(found.notice)
    print_record(found) if as_json else print_placed_runs(found, chosen)
    for reminder in () if as_json else list_reminders(places):
        note(reminder.words)
    return PlaceError.exit_code if on and silent else 0


def read_places_or_problem() -> tuple[list[Place], str | None]:
    """The places; none, and why, where places.toml cannot be read: that hides no run of this machine."""
    try:
        return list_places(), None
    except HoldfastError as error:
        return [], f"only the runs of this machine are shown: {error}"
