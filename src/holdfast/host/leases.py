"""Taking a lease on GPUs: kernel locks on all devices of a request at once, or none.

How it works: `acquire` locks one file per card (and slice) in one sorted order without ever waiting, then asks the
other witnesses under the lock (whoever waited first, records of runs that are not gone, lock files made by hand), and
only then publishes the record. Whoever holds a copy of a lock's descriptor holds the card: the job tree inherits
them, so the kernel frees the card when the last process of the run is gone, however it went. Processes that closed
their copies are found through the record. The card itself (NVML) is the caller's to ask, before and after.

Invariants: nothing is half taken; a refusal names a holder; nobody's process is ever signalled; a lock is given up by
closing descriptors, never by unlocking one that another process may hold.
It must not know how cards are chosen, nor what a run does with them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model.errors import StorageError
from ..model.lease import Busy, Witness
from . import foreign_locks, lease_area, lease_holders, lease_records, lock_files, tickets
from .files import remove_quietly
from .lease_area import Area
from .lock_files import LockFiles, plan_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..model.identity import ProcessId
    from ..model.lease import LeasedDevice, LeaseRecord
    from .sharing import House

# A failing try of somebody else holds a lock for well under a millisecond; these are tries to tell that from a lease.
PASSING_TRIES = 25
# A gate is held while a request to share is decided, milliseconds each, and many may come at once.
GATE_TRIES = 200
FIRST_PAUSE_S, LAST_PAUSE_S = 0.0002, 0.003


class Held:
    """A lease in our hands: locks, record, and the hand-written lock files that we published."""

    def __init__(self, area: Area, record: LeaseRecord, files: LockFiles) -> None:
        self.area = area
        self.record = record
        self._files = files
        self._records: tuple[str, ...] = ()
        self._published: list[str] = []

    @property
    def fds(self) -> tuple[int, ...]:
        """The lock descriptors (close-on-exec): what the job tree must inherit.

        Incomplete for an adopted lease whose descriptors could not be had; then the keeper's hold the cards.
        """
        return self._files.descriptors

    @property
    def is_current(self) -> bool:
        """False when somebody removed or replaced one of our lock files: the lease is then no longer safe."""
        return self._files.is_current()

    def update(self, record: LeaseRecord) -> None:
        """Publish a new record of the same run and attempt (phase, members and cgroup change).

        Raises:
            StorageError: the area cannot be written; the old record stands.
        """
        try:
            self._records = lease_records.write_record(self.area, record)
        except OSError as error:
            raise _unwritable(self.area, error) from error
        self.record = record

    def release(self) -> None:
        """Give the cards back: record, published lock files, descriptors, in this order. A second call does nothing.

        A card is free when no other process holds a copy of the descriptors any more.
        """
        for path in self._records:
            remove_quietly(path)
        for path in self._published:
            foreign_locks.remove_lock(path, self.record.run_id)
        self._records, self._published = (), []
        self._files.close()

    def publish_by_hand(self) -> None:
        """Put our lock files where hand-written ones are, if there is such a directory. Not for simulated cards.

        Raises:
            FileExistsError: somebody locked a card by hand in the meantime.
        """
        if self.record.simulated:
            return
        for device in self.record.devices:
            alone = device.slice_uuid is None and not self.record.share
            path = foreign_locks.publish_lock(self.area.hand_written, device.index, self.record, alone=alone)
            if path is not None:
                self._published.append(path)

    def find_published(self) -> None:
        """Find the hand-written lock files that an earlier supervisor of this run published."""
        for device in self.record.devices:
            lock = foreign_locks.read_lock(self.area.hand_written, device.index)
            if lock is not None and lock.run_id == self.record.run_id:
                self._published.append(lock.path)

    def drop_gates(self, paths: Iterable[str]) -> None:
        """Open the gates that were closed while the lease was being taken."""
        self._files.drop(paths)

    def close(self) -> None:
        """Close our descriptors and leave everything else as it is: for a process that is not the lessee."""
        self._files.close()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why one try failed; `passing` when the lock has no record, so that its holder may only be trying too."""

    busy: tuple[Busy, ...]
    passing: bool = False


def acquire(
    area: Area,
    record: LeaseRecord,
    *,
    ticket: tickets.OwnTicket | None = None,
    files: LockFiles | None = None,
    patient: bool = True,
    house: House | None = None,
    admit: Callable[[], tuple[Busy, ...]] | None = None,
) -> Held | tuple[Busy, ...]:
    """Take every device in ``record.devices`` now, or none and say who is in the way.

    `ticket` is our place when we waited; `files` are descriptors to reuse, kept open on refusal; `house` says what is
    owed to other accounts, without it the line is first come, first served. Never waits for a
    holder; when `patient` it outlasts the passing tries of others (about fifty milliseconds), then looks for the holder
    of an unexplained lock. `admit` is asked under the gates of shared cards, when nothing else is in the way, whether
    there is room beside those who share: what it answers cannot change before our record is published.

    Raises:
        StorageError, NotPermitted: the area cannot be trusted or written.
        ValueError: no device, or a malformed UUID.
    """
    if not record.devices:
        raise ValueError("a lease needs at least one device")
    own = files is None
    files = LockFiles() if files is None else files
    held = None
    try:
        for tries in range(GATE_TRIES if record.share else PASSING_TRIES):
            outcome = _try_once(area, record, files, ticket, house, admit)
            if isinstance(outcome, Held):
                held = outcome
                return held
            if isinstance(outcome, Area):
                area = outcome
                continue
            if not outcome.passing:
                return outcome.busy
            if not patient:
                return tuple(Busy(device.uuid, Witness.LOCK, _PASSING) for device in record.devices)
            time.sleep(min(FIRST_PAUSE_S * 2**tries, LAST_PAUSE_S))
        return _name_unrecorded(area, record)
    finally:
        if held is None:
            files.unlock()
        if own:
            files.close()


def _try_once(  # noqa: PLR0917 - one try of `acquire`, with what that was given
    area: Area,
    record: LeaseRecord,
    files: LockFiles,
    ticket: tickets.OwnTicket | None,
    house: House | None,
    admit: Callable[[], tuple[Busy, ...]] | None,
) -> Held | Area | _Refusal:
    """One try: the lease, a refusal, or the area as it is now when it grew while we locked."""
    cards = frozenset(device.card_uuid for device in record.devices)
    if refusal := _yield_to_line(area, record, cards, ticket, house):
        return refusal
    gates = (*(() if house is None else house.list_gates(area)), *_plan_gates(area, record))
    for path, exclusive in (*gates, *plan_locks(area, record.devices, share=record.share)):
        if not files.try_lock(path, exclusive=exclusive):
            files.unlock()
            busy = _find_conflicts(area, record, cards, Witness.LOCK)
            return _Refusal(busy, passing=not busy)
    now = lease_area.refresh(area) if lease_area.has_grown(area) else area
    if now.directories != area.directories:
        files.unlock()
        return now
    refusal = (
        _yield_to_line(area, record, cards, ticket, house)
        or _refuse_on(_find_conflicts(area, record, cards, Witness.RECORD))
        or _refuse_on(_find_hand_written(area, record))
        or (None if house is None else _refuse_on(house.refuse(area, record)))
        or (None if admit is None else _refuse_on(admit()))
    )
    if refusal:
        files.unlock()
        return refusal
    outcome = _publish(area, record, files, gates)
    if house is not None and isinstance(outcome, Held) and (kept := house.find_reserved(area, record.devices)):
        # Reserved in this very moment: whoever reserves looks at records after their word is out, and we at theirs
        # after our record is, so one of the two sees the other.
        outcome.release()
        return _Refusal(tuple(kept.values()))
    return outcome


def _refuse_on(busy: tuple[Busy, ...]) -> _Refusal | None:
    return _Refusal(busy) if busy else None


def _yield_to_line(
    area: Area, record: LeaseRecord, cards: frozenset[str], ticket: tickets.OwnTicket | None, house: House | None
) -> _Refusal | None:
    if house is None:
        ahead = tickets.find_ahead(area, cards, None if ticket is None else ticket.key)
    else:
        ahead = house.find_ahead(area, cards, None if ticket is None else ticket.ticket)
    if ahead is None:
        return None
    wanted = [device for device in record.devices if device.card_uuid in ahead.cards]
    return _Refusal(tuple(tickets.busy_from(ahead, device) for device in wanted))


def _plan_gates(area: Area, record: LeaseRecord) -> tuple[tuple[str, bool], ...]:
    """The gates to pass before taking a shared lock.

    A slice and a sharing run both lock the card shared, and must still exclude each other. Their records tell them
    apart, so looking at records and publishing one's own is a single step under the card's gate.
    """
    cards = {d.card_uuid for d in record.devices if record.share or d.slice_uuid is not None}
    names = sorted(map(lock_files.gate_name, cards))
    return tuple((f"{directory}/{name}", True) for directory in area.directories for name in names)


def _find_conflicts(area: Area, record: LeaseRecord, cards: frozenset[str], witness: Witness) -> tuple[Busy, ...]:
    """What the records of other runs say about our devices; void records of ours are removed in passing."""
    found: dict[tuple[str, str], Busy] = {}
    seen_records, _ = lease_records.read_records(area, about=cards)
    for seen in seen_records:
        if (seen.record.run_id, seen.record.attempt) == (record.run_id, record.attempt):
            continue
        blocked = [d for d in record.devices if lease_records.conflicts(seen.record, d, share=record.share)]
        if not blocked:
            continue
        judgement = lease_records.judge(seen)
        if judgement.holds:
            for device in blocked:
                key = (seen.record.run_id, device.uuid)
                found.setdefault(key, lease_records.busy_from(seen, judgement, device, witness))
        elif witness is Witness.RECORD and os.geteuid() in (0, seen.record.uid):
            _note_left(area, seen)
            remove_quietly(seen.path)
    return tuple(found.values())


def _note_left(area: Area, seen: lease_records.SeenRecord) -> None:
    """Write down what a run used whose supervisor could not: its record is about to go."""
    from .usage import note_left

    note_left(area, seen)


def _find_hand_written(area: Area, record: LeaseRecord) -> tuple[Busy, ...]:
    """Lock files made by hand for one of our cards. Ours are judged by their records, which were looked at before."""
    found = []
    for device in record.devices:
        lock = foreign_locks.read_lock(area.hand_written, device.index)
        if lock is not None and lock.run_id is None:
            found.append(_busy_by_hand(device, lock))
    return tuple(found)


def _busy_by_hand(device: LeasedDevice, lock: foreign_locks.ForeignLock) -> Busy:
    return Busy(device=device.uuid, witness=Witness.FOREIGN_LOCK, holder=lock.text, since=lock.since or None)


def _publish(area: Area, record: LeaseRecord, files: LockFiles, gates: tuple[tuple[str, bool], ...]) -> Held | _Refusal:
    """Write record and lock files, under all locks: from here on everybody sees the lease."""
    held = Held(area, record, files.hand_over())
    try:
        held.update(record)
        held.publish_by_hand()
    except FileExistsError:
        held.release()
        return _Refusal(_find_hand_written(area, record), passing=True)
    except BaseException:
        held.release()
        raise
    held.drop_gates(path for path, _ in gates)
    return held


def _name_unrecorded(area: Area, record: LeaseRecord) -> tuple[Busy, ...]:
    """Who holds locks that no living record explains: somebody's escaped process, or a program that is not holdfast."""
    locks = lease_holders.read_kernel_locks() or ()
    found = []
    for device in record.devices:
        paths = [path for path, _ in plan_locks(area, (device,), share=record.share)]
        pids = lease_holders.find_holders(paths)
        pids = pids or tuple(sorted({lock.pid for path in paths for lock in lease_holders.locks_on(path, locks)}))
        if pids:
            found.append(_busy_by_lock(area, device, pids, share=record.share))
    return tuple(found) or tuple(Busy(device.uuid, Witness.LOCK, _PASSING) for device in record.devices)


_PASSING = "a process that cannot be seen from here, or one that let go just now"


def explain(area: Area, record: LeaseRecord, device: LeasedDevice) -> tuple[Busy, ...]:
    """Why `device` is not to be had for the run in `record`, for people: only when a try said so."""
    wish = replace(record, devices=(device,))
    return (
        _find_conflicts(area, wish, frozenset((device.card_uuid,)), Witness.LOCK)
        or _find_hand_written(area, wish)
        or _name_unrecorded(area, wish)
    )


def _busy_by_lock(area: Area, device: LeasedDevice, pids: tuple[int, ...], *, share: bool) -> Busy:
    """Name the run whose record lies there though its known processes are gone, else the processes alone."""
    seen_records, _ = lease_records.read_records(area, about=frozenset((device.card_uuid,)))
    for seen in seen_records:
        if lease_records.conflicts(seen.record, device, share=share):
            judgement = lease_records.Judgement(lease_records.Standing.DRAINING, "it holds the lock", pids)
            return lease_records.busy_from(seen, judgement, device, Witness.LOCK)
    return Busy(device.uuid, Witness.LOCK, lease_holders.describe_pids(pids), pids=tuple(pids))


def adopt(area: Area, record: LeaseRecord, holders: Iterable[ProcessId]) -> Held:
    """Take over the lease of a run whose supervisor is gone, from the processes that still hold its locks.

    Copies the descriptors of `holders` (the keeper first, then the job). What cannot be copied (Yama) is locked anew
    if it is free; otherwise the lease lives by the holders' own descriptors and `Held.fds` is incomplete.

    Raises:
        StorageError, NotPermitted: the record cannot be published.
    """
    files = LockFiles()
    held = None
    try:
        plan = plan_locks(area, record.devices, share=record.share)
        for path, descriptor in lease_holders.copy_descriptors((path for path, _ in plan), holders).items():
            files.adopt(path, descriptor)
        for path, exclusive in plan:
            if not files.has_locked(path):
                _lock_if_free(files, path, exclusive=exclusive)
        held = Held(area, record, files.hand_over())
        held.update(record)
        held.find_published()
        return held
    except BaseException:
        if held is not None:
            held.close()
        raise
    finally:
        files.close()


def clear_leftovers(area: Area, run_id: str, attempt: int) -> None:
    """Remove what a lease of ours has left in sight though nobody holds it any more: its record and hand-written locks.

    Locks are not touched: they went with the processes that held them, and may be somebody else's by now.
    """
    for seen in lease_records.read_records(area)[0]:
        if (seen.record.run_id, seen.record.attempt, seen.record.uid) == (run_id, attempt, os.geteuid()):
            _note_left(area, seen)
            held = Held(area, seen.record, LockFiles())
            held.find_published()
            held.release()
            remove_quietly(seen.path)


def _lock_if_free(files: LockFiles, path: str, *, exclusive: bool) -> None:
    """Our record keeps everybody off the card; only the passing try of another can be in the way."""
    for tries in range(PASSING_TRIES):
        if files.try_lock(path, exclusive=exclusive):
            return
        time.sleep(min(FIRST_PAUSE_S * 2**tries, LAST_PAUSE_S))


def _unwritable(area: Area, error: OSError) -> StorageError:
    return StorageError(
        f"the lease cannot be published in {', '.join(area.directories)}: {error.strerror}",
        hint="Make room there, or name another directory as lease_dir in the rules file.",
    )
