"""``holdfast patrol`` of a desk: one look at the runs of this machine and of all places, in one answer."""

from __future__ import annotations

import sys

from holdfast.agent.patrol.news import remember
from holdfast.agent.patrol.patrol import run_patrol
from holdfast.agent.patrol.tell import Ways
from holdfast.agent.patrol.tick import PatrolResult
from holdfast.agent.view.runs.roots import list_roots
from holdfast.cli.render import note, print_record
from holdfast.cli.render.patrol import print_placed
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.cost.every import list_reminders
from holdfast.desk.cost.reminder import Reminder
from holdfast.desk.runs.patrol import patrol_places
from holdfast.model.place import LOCAL
from holdfast.model.record import replace

from .ls import read_places_or_problem


def patrol_placed(on: str | None, *, since_last: bool, everything: bool, ways: Ways | None, as_json: bool) -> int:
    """Look at the runs of the place `on`, without one at those of this machine and of all places; the exit code.

    Raises:
        UsageError: there is no such place.
    """
    places, problem = read_places_or_problem() if on is None else ([find_place(on)], None)
    if problem:
        note(problem)
    # Where Linux is not there are no runs of this machine.
    has_runs = on is None and sys.platform == "linux"
    reminders: list[Reminder] = []
    untold: dict[str, str] = {}
    if has_runs:
        from holdfast.agent.queue.view.untold import list_untold  # lazy: a desk without Linux cannot load it

        untold = list_untold()

    def remind() -> dict[str, dict[str, str]]:
        reminders.extend(list_reminders(places))
        here = {LOCAL: untold} if untold else {}
        return {**here, **{each.place: {each.urgent: each.words} for each in reminders if each.urgent}}

    found, looks = patrol_places(
        places,
        open_box=open_box,
        look_here=_look_here if has_runs else None,
        since_last=since_last,
        ways=ways,
        local=LOCAL,
        remind=remind,
    )
    notes = (*untold.values(), *found.notes, *(each.words for each in reminders))
    found = replace(found, notes=notes, exit_code=found.exit_code or int(bool(untold)))
    print_record(found) if as_json else print_placed(found, everything=everything, news_only=since_last)
    sys.stdout.flush()
    for look in looks:
        for problem in remember(look):
            note(problem)
    return found.exit_code


def _look_here() -> PatrolResult:
    return run_patrol(list_roots(None))
