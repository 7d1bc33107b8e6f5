"""``holdfast reconcile PLACE``: what the desk knows of a place, made again from the place itself.

For a second desk, or one that lost its state. Orders without an answer are asked about by their id: what is there is a
run, and is kept as one; what is not there is said, and the same command submits it.
"""

from __future__ import annotations

from holdfast.desk.orders.journal import JournalEntry, OrderKind, Step, is_being_sent, note_step
from holdfast.host import clock
from holdfast.model.errors import InternalError, StorageError
from holdfast.model.place import Place
from holdfast.model.record import record
from holdfast.model.sighting import Poll

from .answer import MOST_ROWS, read_answer
from .pending import GIVE_UP_S, list_unanswered
from .poll import MOST_ASKED, OpenBox
from .registry import list_unfinished, rebuild

LIMIT_S = 120.0
"""A box with thousands of runs that nobody has listed before reads them all."""


@record
class ResolvedOrder:
    """An order without an answer, asked about: `there` says whether it is a run now; `words` what follows."""

    run_id: str
    at: str
    there: bool
    words: str


@record
class ReconciledPlace:
    """What is known of a place now. `live` runs have not ended; `gone` had not, and are not there any more.

    `orders` are those that had no answer. `missing_roots` could not be read there: what was known of them is kept.
    """

    place: str
    runs: int
    live: int
    gone: tuple[str, ...]
    orders: tuple[ResolvedOrder, ...]
    missing_roots: tuple[str, ...]
    notice: str


def reconcile_place(place: Place, *, open_box: OpenBox, limit_s: float = LIMIT_S) -> ReconciledPlace:
    """Ask a place for all its runs, and make what is kept of it from the answer.

    Raises:
        PlaceError, Refused: it gave no answer; nothing was changed.
        InternalError: its answer was not understood; nothing was changed.
        StorageError: it cannot be kept.
    """
    orders = list_unanswered(place.name)
    before = list_unfinished(place.name)
    asked = [*(order.run_id for order in orders if order.what is OrderKind.RUN), *before][:MOST_ASKED]
    at = clock.utc_now()
    answer = open_box(place).entry("poll", ("--limit", str(MOST_ROWS), *asked), limit_s=limit_s)
    poll = read_answer(place.name, answer, at=at, asked=asked)
    if poll.unreachable is not None:
        raise InternalError(f"place {place.name}: {poll.unreachable}", details={"place": place.name})
    there = _ask_queue(place, orders, open_box)
    try:
        rebuild(poll)
    except OSError as error:
        raise StorageError(f"what was seen of {place.name} cannot be kept: {error.strerror or error}") from error
    return ReconciledPlace(
        place.name,
        len(poll.sightings),
        sum(not sighting.ended for sighting in poll.sightings.values()),
        tuple(run_id for run_id in before if run_id in poll.absent and not poll.missing_roots),
        tuple(_resolve(place.name, order, there, poll, clock.epoch_s()) for order in orders),
        poll.missing_roots,
        poll.notice,
    )


def _ask_queue(place: Place, orders: list[JournalEntry], open_box: OpenBox) -> frozenset[str]:
    """Which orders of jobs the place's queue has."""
    ids = [order.run_id for order in orders if order.what is OrderKind.JOBS][:MOST_ASKED]
    if not ids:
        return frozenset()
    there = open_box(place).entry("enqueue", ("has", *ids), limit_s=LIMIT_S).get("there")
    if not isinstance(there, list):
        raise InternalError(f"place {place.name} did not say which orders its queue has", details={"place": place.name})
    return frozenset(ids) & {str(each) for each in there}


def _resolve(place: str, order: JournalEntry, there: frozenset[str], poll: Poll, now_s: float) -> ResolvedOrder:
    run_id, at = order.run_id, order.at
    if run_id in there:
        note_step(place, Step.TAKEN, run_id)
        return ResolvedOrder(run_id, at, True, "its jobs are in the queue there")
    sighting = poll.sightings.get(run_id)
    if sighting is not None:
        note_step(place, Step.TAKEN, run_id, run_dir=str((sighting.row or {}).get("run_dir", "")))
        return ResolvedOrder(run_id, at, True, f"it is there: {sighting.condition}")
    if order.what is OrderKind.RUN and (run_id not in poll.absent or poll.missing_roots):
        return ResolvedOrder(run_id, at, False, "whether it is there cannot be told")
    if (clock.find_age(at, now_s) or 0.0) < GIVE_UP_S or is_being_sent(place, run_id):
        return ResolvedOrder(run_id, at, False, "it is not there; the same command submits it")
    note_step(place, Step.REFUSED, run_id)
    return ResolvedOrder(run_id, at, False, "it never arrived; the same command submits it anew")
