"""Orders that are no run as far as this desk knows: without an answer each may be one; what was refused is none."""

from __future__ import annotations

from holdfast.desk.orders.journal import JournalEntry, Step, has_queued, is_being_sent, list_orders, read_journal
from holdfast.host import clock
from holdfast.model.errors import StorageError

SUBMITTED = "submitted, no answer yet"
SENDING = "being sent"
NOT_SENT = "not sent"
REFUSED = "refused"
"""What a list says of such a run; of one that was never sent, or refused, for an hour."""
GIVE_UP_S = 3600.0
"""An order that has not arrived after this never will: nothing of it is on the way any more."""


def list_pending(place: str, now_s: float) -> list[tuple[JournalEntry, str]]:
    """What a list says of orders that are no run as far as is known, newest first.

    A refused one, which its command told of, is shown until something else is ordered there. Nothing is said when the
    journal cannot be read.
    """
    try:
        orders = list_orders(read_journal(place))
    except StorageError:
        return []
    last = next(reversed(orders), None)
    found = []
    for entry in sorted(orders.values(), key=lambda e: e.run_id, reverse=True):
        said = _describe(entry, place, now_s)
        if said == REFUSED and entry.run_id != last:
            continue
        if said is not None:
            found.append((entry, said))
    return found


def _describe(entry: JournalEntry, place: str, now_s: float) -> str | None:
    if entry.step.was_taken:
        return None
    if entry.may_be_there:
        return SUBMITTED
    if is_being_sent(place, entry.run_id):
        return SENDING
    if (clock.find_age(entry.at, now_s) or 0.0) >= GIVE_UP_S:
        return None
    return REFUSED if entry.message else NOT_SENT if entry.step is Step.INTENT else None


def may_arrive(entry: JournalEntry, place: str) -> bool:
    """Whether an order without an answer may be a run, or become one by itself.

    What only was meant to be sent is none, nor is what the place itself did not take, once no command is at it.
    """
    return not entry.step.is_answer and (entry.may_be_there or is_being_sent(place, entry.run_id))


def has_queued_jobs(place: str) -> bool:
    """Whether jobs were handed in there lately, of which runs may have come; no when the journal cannot be read."""
    try:
        return has_queued(place, clock.epoch_s())
    except StorageError:
        return False


def list_unanswered(place: str) -> list[JournalEntry]:
    """The last step of each order of a place without an answer, newest first; none when the journal cannot be read."""
    try:
        orders = list_orders(read_journal(place))
    except StorageError:
        return []
    return sorted((e for e in orders.values() if not e.step.is_answer), key=lambda e: e.run_id, reverse=True)
