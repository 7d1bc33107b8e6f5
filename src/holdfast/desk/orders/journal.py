"""The journal of submissions to one place: what this desk meant to send, before it sent it, and what was answered.

``$XDG_STATE_HOME/holdfast/places/NAME/journal.jsonl`` has one line a step, each on the disk before the step is done:
`Step.INTENT` (a run id for this job and tree), `Step.SENT`, then `Step.TAKEN` (the run is there), `Step.FOLLOWED` (as
well, and the command goes on until its end) or `Step.REFUSED` (it is not, and will not be; who orders it again by its
id begins with another intent). `Step.REMOVED` says that this desk has had a run removed that was there. A line that was
torn off is no step.
Lines are appended, by one process at a time; a journal that has grown loses the oldest orders that were answered.

An order without an answer may be a run: it is never sent as another one. `claim_order` finds it by its job and tree,
and the same command finishes it; as one that is followed no more, and whose end nobody here has seen. Whoever is at it
holds a lock, so two commands that are typed at once are two orders.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING

from holdfast.host.clock import find_age, utc_now
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.ids import build_run_id, is_run_id
from holdfast.model.record import record, replace
from holdfast.store.paths import make_state_directory, state_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

JOURNAL = "journal.jsonl"
ORDERS = "orders"
MOST_IDS = 100
LATELY_S = 7 * 86400.0
LARGEST_BYTES = 256 << 10
"""Every submission and every list reads all of it: beyond this only `MOST_ANSWERED` orders with an answer are kept."""
MOST_ANSWERED = 200


class Step(str, Enum):
    """How far a submission came."""

    INTENT = "intent"
    SENT = "sent"
    TAKEN = "taken"
    FOLLOWED = "followed"
    REFUSED = "refused"
    REMOVED = "removed"

    @property
    def is_answer(self) -> bool:
        """Whether the place has said what became of it."""
        return self is Step.REFUSED or self.was_taken

    @property
    def was_taken(self) -> bool:
        """Whether the place has taken it, whatever became of it later."""
        return self in {Step.TAKEN, Step.FOLLOWED, Step.REMOVED}


class OrderKind(str, Enum):
    """What an order asks for: a run, whose id is the order's, or jobs for the place's queue."""

    RUN = "run"
    JOBS = "jobs"


@record
class JournalEntry:
    """One step of one submission. `at` is ISO UTC; `tree` is empty where no code goes along.

    `run_id` is the order's id; `what` says whether a run has it.

    `run_dir` is what a place said of a run that it took, `message` why it did not take it: with `Step.SENT` that may
    pass (a full disk), and the same command has it take this very order.
    """

    step: Step
    run_id: str
    at: str
    job_sha256: str = ""
    tree: str = ""
    run_dir: str = ""
    message: str = ""
    what: OrderKind = OrderKind.RUN

    @property
    def may_be_there(self) -> bool:
        """Whether it was sent, and no answer has come: it may be a run, or jobs."""
        return self.step is Step.SENT and not self.message


@record
class ClaimedOrder:
    """An order that this process is at: its run id, and the step that an earlier command came to (None: it is new)."""

    run_id: str
    begun: JournalEntry | None = None


def _directory(place: str) -> str:
    return f"{state_directory()}/places/{place}"


def read_journal(place: str) -> tuple[JournalEntry, ...]:
    """The steps of all submissions to a place, oldest first; what cannot be read as one is left out.

    Raises:
        StorageError: the journal is there and cannot be read.
    """
    path = f"{_directory(place)}/{JOURNAL}"
    try:
        lines = files.read_last_lines(path)
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror}", hint="it says which runs were ordered; see its owner"
        ) from error
    entries = []
    for line in lines:
        try:
            entries.append(wire.from_bytes(JournalEntry, line, path))
        except wire.WireError:
            continue
    return tuple(entries)


def list_orders(entries: tuple[JournalEntry, ...]) -> dict[str, JournalEntry]:
    """The newest step of each run id, with the job and tree of its intent."""
    orders: dict[str, JournalEntry] = {}
    for entry in entries:
        before = orders.get(entry.run_id)
        if before is None or entry.step is Step.INTENT:
            orders[entry.run_id] = entry
        elif (
            not before.step.is_answer
            or (before.step is Step.FOLLOWED and entry.step.was_taken)
            or entry.step is Step.REMOVED
        ):
            orders[entry.run_id] = replace(entry, job_sha256=before.job_sha256, tree=before.tree, what=before.what)
    return orders


def has_taken(place: str, tree: str) -> bool:
    """Whether the place has taken an order with this tree; never with none."""
    orders = list_orders(read_journal(place)) if tree else {}
    return any(entry.step.was_taken and entry.tree == tree for entry in orders.values())


def has_queued(place: str, now_s: float) -> bool:
    """Whether jobs that this desk handed in there lately may still have to run, so that there may be runs not seen."""
    orders = list_orders(read_journal(place)).values()
    taken = [entry.at for entry in orders if entry.what is OrderKind.JOBS and entry.step is Step.TAKEN]
    return any((find_age(at, now_s) or 0.0) < LATELY_S for at in taken)


def note_step(place: str, step: Step, run_id: str, *, run_dir: str = "", message: str = "") -> None:
    """Write a further step of a claimed order, durably.

    Raises:
        StorageError: it cannot be written.
    """
    _append(place, JournalEntry(step, run_id, utc_now(), run_dir=run_dir, message=message))


def note_end(place: str, run_id: str) -> None:
    """Write that the end of a run was shown here: the same command begins another one from now on.

    What cannot be written is left: then a list of the place says it.
    """
    with suppress(StorageError):
        order = list_orders(read_journal(place)).get(run_id)
        if order is not None and order.step is Step.FOLLOWED:
            note_step(place, Step.TAKEN, run_id, run_dir=order.run_dir)


@contextmanager
def hold_order(place: str, run_id: str) -> Iterator[None]:
    """Be the one command that follows a run: as long as it lives the same command begins another one.

    Raises:
        StorageError: it cannot be told to others.
    """
    lock = _lock(place, run_id, must_be_new=False)
    try:
        yield
    finally:
        if lock >= 0:
            files.remove_quietly(_lock_path(place, run_id))
            os.close(lock)


@contextmanager
def claim_order(
    place: str,
    name: str,
    job_sha256: str,
    tree: str,
    *,
    run_id: str | None = None,
    what: OrderKind = OrderKind.RUN,
    ended: Collection[str] = (),
) -> Iterator[ClaimedOrder]:
    """Be the one process that is at an order: one of this job and tree that is open, else a new one.

    Open is one without an answer, and one that was followed and is not among the `ended` runs. `name` is the job's or
    the group's, for a new id; `run_id` names the order itself. On return the intent is on the disk.

    Raises:
        UsageError: `run_id` is not one.
        StorageError: the journal cannot be read or written.
    """
    if run_id is not None and not is_run_id(run_id):
        raise UsageError(f"{run_id!r} is not a run id", hint="write it like 20261120-104501-digits-3fa2")
    wanted = [run_id] if run_id is not None else find_open(place, job_sha256, tree, ended)
    claim, lock = None, -1
    try:
        for candidate in wanted:
            lock = _lock(place, candidate, must_be_new=False)
            if lock < 0 and run_id is None:
                continue
            # Only now nobody else can answer it meanwhile.
            begun = list_orders(read_journal(place)).get(candidate)
            if run_id is not None or (begun is not None and _is_open(begun, ended)):
                claim = ClaimedOrder(candidate, begun)
                break
            os.close(lock)
            lock = -1
        if claim is None:
            claim, lock = _begin(place, name)
        if claim.begun is None or claim.begun.step is Step.REFUSED:
            _append(place, JournalEntry(Step.INTENT, claim.run_id, utc_now(), job_sha256, tree, what=what))
        yield claim
    finally:
        if lock >= 0:
            if claim is not None and _is_answered(place, claim.run_id):
                files.remove_quietly(_lock_path(place, claim.run_id))
            os.close(lock)


def find_unsent(place: str, run_id: str) -> JournalEntry | None:
    """The intent of an order that was never sent, and at which no command is now; None: it may be there.

    `Step.SENT` is on the disk before anything is sent, so an order that has no step but intents has never left.

    Raises:
        StorageError: the journal cannot be read.
    """
    steps = [entry for entry in read_journal(place) if entry.run_id == run_id]
    unsent = bool(steps) and all(entry.step is Step.INTENT for entry in steps)
    return steps[-1] if unsent and not is_being_sent(place, run_id) else None


def drop_unsent(place: str, run_id: str) -> bool:
    """End an order as of `find_unsent`: the same command begins another one. False: it may be there, or be sent now.

    Raises:
        StorageError: the journal cannot be read or written.
    """
    if find_unsent(place, run_id) is None:
        return False
    lock = _lock(place, run_id, must_be_new=False)
    if lock < 0:
        return False
    try:
        # Only now nobody else can send it meanwhile.
        steps = [entry.step for entry in read_journal(place) if entry.run_id == run_id]
        if not all(step is Step.INTENT for step in steps):
            return False
        note_step(place, Step.REFUSED, run_id)
        files.remove_quietly(_lock_path(place, run_id))
        return True
    finally:
        os.close(lock)


def _is_answered(place: str, run_id: str) -> bool:
    try:
        entry = list_orders(read_journal(place)).get(run_id)
    except StorageError:
        return False
    return entry is not None and entry.step.is_answer


def is_being_sent(place: str, run_id: str) -> bool:
    """Whether another command is at this order just now, or that cannot be told."""
    path = _lock_path(place, run_id)
    return os.path.exists(path) and files.is_locked(path) is not False


def _is_open(entry: JournalEntry, ended: Collection[str]) -> bool:
    return not entry.step.is_answer or (entry.step is Step.FOLLOWED and entry.run_id not in ended)


def find_open(place: str, job_sha256: str, tree: str, ended: Collection[str]) -> list[str]:
    """Run ids of orders of this job and tree that are open, the newest first."""
    orders = list_orders(read_journal(place))
    found = [
        run_id
        for run_id, entry in orders.items()
        if _is_open(entry, ended) and (entry.job_sha256, entry.tree) == (job_sha256, tree)
    ]
    return found[::-1]


def _begin(place: str, name: str) -> tuple[ClaimedOrder, int]:
    for _ in range(MOST_IDS):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run_id = build_run_id(stamp, name, os.urandom(2).hex())
        lock = _lock(place, run_id, must_be_new=True)
        if lock >= 0:
            return ClaimedOrder(run_id), lock
    raise StorageError(f"{MOST_IDS} run ids in a row are taken", hint=f"look into {_directory(place)}/{ORDERS}")


def _lock_path(place: str, run_id: str) -> str:
    return f"{_directory(place)}/{ORDERS}/{run_id}.lock"


def _lock(place: str, run_id: str, *, must_be_new: bool) -> int:
    """The descriptor of a held lock; -1: another command is at it.

    Raises:
        StorageError: it cannot be told.
    """
    path = _lock_path(place, run_id)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_EXCL if must_be_new else 0)
    make_state_directory(f"places/{place}/{ORDERS}")
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return -1
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return -1
    except OSError:
        # A home on a file system without locks: two commands at once may then be one order, never two runs of one.
        return descriptor
    return descriptor


def _append(place: str, entry: JournalEntry) -> None:
    path = f"{_directory(place)}/{JOURNAL}"
    try:
        with files.alone_in(os.path.dirname(path)):
            new = not os.path.exists(path)
            files.append(path, _write_line(entry), durable=True)
            if new:
                files.sync_directory(os.path.dirname(path))
            elif os.stat(path).st_size > LARGEST_BYTES:
                _shorten(place, path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _write_line(entry: JournalEntry) -> bytes:
    return json.dumps(wire.encode(entry)).encode() + b"\n"


def _shorten(place: str, path: str) -> None:
    """Keep every order without an answer, and the newest that have one, each as its newest step."""
    orders = list_orders(read_journal(place)).values()
    answered = [entry.run_id for entry in orders if entry.step.is_answer]
    left_out = frozenset(answered[:-MOST_ANSWERED])
    files.commit(path, b"".join(_write_line(entry) for entry in orders if entry.run_id not in left_out))


def _unwritable(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"{path}: {error.strerror}; nothing was sent",
        hint="free some space, or let XDG_STATE_HOME name a place of your own",
    )
