"""The list of runs of several places for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.desk.runs.pending import REFUSED
from holdfast.model.sighting import Reach
from holdfast.model.units import format_count, format_duration

from . import note
from .runs import describe_age, describe_begin, describe_state, describe_step, print_columns

if TYPE_CHECKING:
    from holdfast.agent.view.runs.listing import RunFilter
    from holdfast.desk.runs.listing import PlacedRun, PlacedRuns, PlaceState

COLUMNS = ("place", "run", "state", "start", "time", "left", "cards", "step", "loss", "exit", "seen")
LONGEST_REASON = 200
MOST_TOLD = 5
OWN_LIMITS = frozenset({"limit", "too_late"})
"""Classes of failures that say no more than their words do."""


def print_placed_runs(found: PlacedRuns, wanted: RunFilter) -> None:
    """A row for each run; in notes what is not shown, and the places that do not answer."""
    now_s = time.time()
    if found.runs:
        rows = describe_runs(found.runs, now_s)
        print_columns(COLUMNS, rows, find_empty(rows))
    if len(found.runs) < found.total:
        note(f"{found.total - len(found.runs)} older runs are not shown; --all shows them")
    elif not found.runs:
        none = f"none of {format_count(found.known, 'run')} {wanted.describe()}"
        note(none if found.known else "no runs are known here or elsewhere; holdfast run starts one")
    for run in [run for run in found.runs if run.condition == REFUSED][:MOST_TOLD]:
        note(f"{run.place}:{run.run_id} was refused there and is no run: {run.reason}")
    print_places(found.places, now_s)


def print_places(places: Sequence[PlaceState], now_s: float) -> None:
    """A note for each place that does not answer, and what is wrong with an answer."""
    silent = print_silent(places, now_s)
    if silent:
        note(f"of what cannot be reached the last sighting is shown; holdfast ls --on {silent[0].place} asks again now")
    for place in places:
        if place.notice:
            note(f"{place.place}: {place.notice}")


def print_silent(places: Sequence[PlaceState], now_s: float) -> list[PlaceState]:
    """A note for each place that does not answer; these places."""
    silent = [place for place in places if place.reach == Reach.UNREACHABLE.value]
    for place in silent[:MOST_TOLD]:
        reason = place.reason.removeprefix(f"{place.place}: ")
        reason = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "..."
        kind = f"{place.why}: " if place.why and place.why not in reason and place.why not in OWN_LIMITS else ""
        met = describe_age(place.last_contact, now_s)
        last = (
            f"it answered last {met}" if met else f"it has never answered (holdfast place rm {place.place} forgets it)"
        )
        when = "" if place.asked else f", asked {describe_age(place.failed_at, now_s)}"
        note(f"{place.place} does not answer ({kind}{reason}{when}); {last}")
    if more := [place.place for place in silent[MOST_TOLD:]]:
        note(f"nor do {', '.join(more)}; holdfast ls --on PLACE says why")
    return silent


def describe_runs(runs: Sequence[PlacedRun], now_s: float) -> list[dict[str, str | None]]:
    """The cells of each run by column; None where there is nothing to say."""
    return [_describe(run, now_s) for run in runs]


def find_empty(rows: Sequence[dict[str, str | None]]) -> list[str]:
    """Columns to leave out: the place where all is here, the age where all was seen now, the time left of none."""
    here = len({row["place"] for row in rows} | {"local"}) == 1
    return [*(["place"] if here else []), *(name for name in ("left", "seen") if not any(row[name] for row in rows))]


def _describe(run: PlacedRun, now_s: float) -> dict[str, str | None]:
    condition = describe_state(run)
    if run.desired is not None and not run.ended and not condition.startswith("stopping"):
        condition = f"{condition}, {run.desired} wanted"
    return {
        "place": run.place,
        "run": run.run_id,
        "state": condition,
        "start": describe_begin(run, now_s),
        "time": None if run.elapsed_s is None else format_duration(run.elapsed_s),
        "left": None if run.left_s is None else format_duration(run.left_s),
        "cards": run.cards or None,
        "step": describe_step(run.step, run.planned_steps),
        "loss": run.loss,
        "exit": None if run.exit_code is None else str(run.exit_code),
        "seen": None if run.fresh else describe_age(run.seen_at, now_s),
    }
