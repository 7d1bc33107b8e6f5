"""``holdfast place rm``: forget a place."""

from __future__ import annotations

import contextlib

import click

from holdfast.cli.render import note, print_record
from holdfast.desk.connect import close_connection, find_place
from holdfast.desk.cost.every import list_costs
from holdfast.desk.cost.reminder import describe_sum, remind
from holdfast.desk.places.aliases import is_alias
from holdfast.desk.places.config import has_place, read_places, remove_place
from holdfast.desk.places.facts import forget_place
from holdfast.desk.runs.pending import has_queued_jobs
from holdfast.desk.runs.registry import list_seen_places, list_sent, list_unfinished
from holdfast.model.errors import HoldfastError, NoSuchName, ResourceBusy, UsageError
from holdfast.model.place import LOCAL
from holdfast.model.record import record

from . import VERBS
from .options import json_option, place_argument

MOST_NAMED = 10


@record
class RemovedPlace:
    """A place that was forgotten. `path` is the file that it stood in (null: in none, as an alias of ssh).

    `forgotten_runs` had not ended, as far as was known here; `kept` are the files that stay as proof.
    """

    place: str
    path: str | None
    forgotten_runs: tuple[str, ...]
    kept: tuple[str, ...]


@click.command("rm", short_help=VERBS["rm"])
@place_argument
@click.option("--forget-runs", is_flag=True, help="Also when runs there have not ended, as far as is known here.")
@json_option
def command(*, name: str, forget_runs: bool, as_json: bool) -> int:
    """Take a place out of places.toml, with what was measured there and what is known of its runs.

    Receipts of what was pulled, approvals, and what was last said of the machine's end stay, and their paths are told.
    Nothing happens on the box: its runs go on, and `holdfast reconcile PLACE` finds them again once it is added again.
    The ssh connection that calls to it shared ends, unless it is your own or another place has the same host.

    A place where runs have not ended, as far as is known here, is refused.
    """
    if name == LOCAL:
        raise UsageError(f"{LOCAL} is this machine, always")
    is_configured = has_place(name)
    if not is_configured and name not in list_seen_places():
        _require_place(name)
    unfinished = list_unfinished(name) + list_sent(name, also_being_sent=True)
    if unfinished and not forget_runs:
        more = f" and {len(unfinished) - MOST_NAMED} more" if len(unfinished) > MOST_NAMED else ""
        raise ResourceBusy(
            f"{name} has runs that have not ended, as far as is known here: {', '.join(unfinished[:MOST_NAMED])}{more}",
            hint=f"look at them first (`holdfast ls`; what became of orders without an answer: `holdfast reconcile "
            f"{name}`); --forget-runs forgets {name} all the same, and lets them run",
            details={"runs": unfinished},
        )
    bill = _tell_bill(name)
    _disconnect(name)
    has_jobs = has_queued_jobs(name)
    path = remove_place(name) if is_configured else None
    kept = forget_place(name)
    if as_json:
        print_record(RemovedPlace(name, path, tuple(unfinished), tuple(kept)))
        return 0
    note(f"{name}: {_say_where(name, path)}")
    if kept:
        note(f"kept, as proof: {', '.join(kept)}")
    if has_jobs:
        note("this desk handed in jobs to its queue: what waits there goes on")
    if bill:
        note(bill)
    return 0


def _disconnect(name: str) -> None:
    """End our shared connection, unless it is another place's, too. One that is not found ends by itself, once idle."""
    with contextlib.suppress(HoldfastError):  # a place is taken out of a file with mistakes, too
        places = read_places()
        place = places.pop(name, None)
        if place is not None and place.host not in {other.host for other in places.values()}:
            close_connection(place)


def _require_place(name: str) -> None:
    """That there is something to forget.

    Raises:
        NoSuchName: there is no such place.
    """
    try:
        find_place(name)
    except NoSuchName as error:
        error.hint = "`holdfast place ls` lists the places"
        raise


def _say_where(name: str, path: str | None) -> str:
    if path:
        return f"taken out of {path}"
    if is_alias(name):
        return f"forgotten; the Host {name} of ssh's configuration is still a place"
    return "forgotten; it was not configured any more"


def _tell_bill(name: str) -> str:
    """What a place that bills, as far as is known, has cost: from now on nothing reminds of it (GEN1)."""
    try:
        [cost] = list_costs(find_place(name)).places
    except HoldfastError:
        return ""
    if not remind(cost):
        return ""
    return f"{name} was not seen to be gone: {describe_sum(cost)} so far, and nothing reminds of it any more"
