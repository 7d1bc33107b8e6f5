"""Taking a lease on GPUs: kernel locks on all devices of a request at once, or none.

How it works: `acquire_lease` locks one file per card (and slice) in one sorted order without ever waiting, then asks
the other witnesses under the lock (whoever waited first, records of runs that are not gone, lock files made by hand),
and only then publishes the record. Whoever holds a copy of a lock's descriptor holds the card: the job tree inherits
them, so the kernel frees the card when the last process of the run is gone, however it went. Processes that closed
their copies are found through the record. The card itself (NVML) is the caller's to ask, before and after.

Invariants: nothing is half taken; a refusal names a holder; nobody's process is ever signalled; a lock is given up by
closing descriptors, never by unlocking one that another process may hold.
It must not know how cards are chosen, nor what a run does with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.host.files.files import remove_quietly
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.identity import ProcessId
from holdfast.model.lease import BusyReason, LeasedDevice, LeaseRecord, Witness
from holdfast.model.record import record, replace

from . import area as lease_area
from . import foreign_locks, lock_files, records, tickets
from . import holders as lease_holders
from .area import LeaseArea
from .lock_files import LockFiles, plan_locks
from .usage import note_left

if TYPE_CHECKING:
    from .share_policy import SharePolicy

# A failing try of somebody else holds a lock for well under a millisecond; these are tries to tell that from a lease.
PASSING_TRIES = 25
# A gate is held while a request to share is decided, milliseconds each, and many may come at once; but whoever has it
# still after so many tries more is none of these.
GATE_TRIES, SAME_HOLDER_TRIES = 1000, 100
# A try is short, a look at the line and at the records is not: anybody can make it long. While one lock stays in the
# way, every look comes after twice as many tries; of locks that come and go one after the other, so many looks are had.
MOST_LOOKS = 25
FIRST_PAUSE_S, LAST_PAUSE_S = 0.0002, 0.003


class HeldLease:
    """A lease in our hands: locks, record, and the hand-written lock files that we published."""

    def __init__(self, area: LeaseArea, record: LeaseRecord, files: LockFiles) -> None:
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

    def require_current(self) -> None:
        """Make sure that the files that we locked are those that others would lock.

        Raises:
            LockObstructed: somebody removed or replaced one.
        """
        self._files.require_current()

    def update(self, record: LeaseRecord) -> None:
        """Publish a new record of the same run and attempt (phase, members and cgroup change).

        What was published once is renewed in the administrator's directory also while another one beside it fails.

        Raises:
            StorageError: the area cannot be written; the old record stands.
        """
        try:
            self._records = records.write_record(self.area, record, self._records)
        except OSError as error:
            first = lease_area.keep_first(self.area) if self._records else None
            if first is None:
                raise _unwritable(self.area, error) from error
            self._renew_in(first, record)
        self.record = record

    def _renew_in(self, area: LeaseArea, record: LeaseRecord) -> None:
        before = tuple(path for path in self._records if os.path.dirname(path) in area.directories)
        others = tuple(path for path in self._records if path not in before)
        try:
            self._records = (*records.write_record(area, record, before), *others)
        except OSError as error:
            raise _unwritable(area, error) from error

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
        """Find the records and hand-written lock files that an earlier supervisor of this run published."""
        found: dict[str, str] = {}
        for seen in records.read_records(self.area)[0]:
            if (
                seen.key == records.key_of(self.record)
                and found.setdefault(os.path.dirname(seen.path), seen.path) != seen.path
            ):
                remove_quietly(seen.path)
        self._records = tuple(found.values())
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


@record
class _Refusal:
    """Why one try failed; `passing` when the lock has no record, so that its holder may only be trying too.

    `lock` is the lock file or gate that somebody held, and whether we wanted it exclusively.
    """

    busy: tuple[BusyReason, ...]
    passing: bool = False
    lock: tuple[str, bool] | None = None


def acquire_lease(
    area: LeaseArea,
    record: LeaseRecord,
    *,
    ticket: tickets.OwnTicket | None = None,
    files: LockFiles | None = None,
    patient: bool = True,
    policy: SharePolicy | None = None,
    admit: Callable[[], tuple[BusyReason, ...]] | None = None,
) -> HeldLease | tuple[BusyReason, ...]:
    """Take every device in ``record.devices`` now, or none and say who is in the way.

    `ticket` is our place when we waited; `files` are descriptors to reuse, kept open on refusal; `policy` says what is
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
    held, lock, looks = None, None, 0
    holders: frozenset[int] | None = None
    try:
        for tries in range(GATE_TRIES if record.share else PASSING_TRIES):
            if lock is not None and tries % SAME_HOLDER_TRIES == 0:
                before, holders = holders, _list_pids(lock[0])
                # What is not seen, as inside a PID namespace, need not be the same.
                if holders and before == holders:
                    break
            if lock is None or tries & (tries - 1) == 0 or _is_let_go(files, *lock):
                outcome = _try_in_all(area, record, files, ticket, policy, admit)
                if isinstance(outcome, HeldLease):
                    held = outcome
                    return held
                if isinstance(outcome, LeaseArea):
                    area = outcome
                    continue
                if not outcome.passing:
                    return outcome.busy
                lock, looks = outcome.lock, looks + 1
                if not patient or looks == MOST_LOOKS:
                    break
            time.sleep(min(FIRST_PAUSE_S * 2 ** min(tries, 8), LAST_PAUSE_S))
        path = "" if lock is None else lock[0]
        return _name_unrecorded(area, record, path) if patient else _call_passing(record.devices)
    finally:
        if held is None:
            files.unlock()
        if own:
            files.close()


def _is_let_go(files: LockFiles, path: str, exclusive: bool) -> bool:  # noqa: FBT001 - as in a plan of locks
    """Whether a lock that was in the way can be had now: then it is ours for the look that follows."""
    try:
        return files.try_lock(path, exclusive=exclusive)
    except StorageError:
        # The look says what is there.
        return True


def _list_pids(path: str) -> frozenset[int]:
    """Who has a lock, as far as the kernel tells it here."""
    return frozenset(lock.pid for lock in lease_holders.locks_on(path, lease_holders.read_kernel_locks() or ()))


def _try_in_all(  # noqa: PLR0917 - as `_try_once`
    area: LeaseArea,
    record: LeaseRecord,
    files: LockFiles,
    ticket: tickets.OwnTicket | None,
    policy: SharePolicy | None,
    admit: Callable[[], tuple[BusyReason, ...]] | None,
) -> HeldLease | LeaseArea | _Refusal:
    """One try as `_try_once`; the area without what failed, where that is only beside the administrator's directory."""
    try:
        return _try_once(area, record, files, ticket, policy, admit)
    except (StorageError, NotPermitted):
        first = lease_area.keep_first(area)
        if first is None:
            raise
        files.unlock()
        return first


def _try_once(  # noqa: PLR0917 - one try of `acquire_lease`, with what that was given
    area: LeaseArea,
    record: LeaseRecord,
    files: LockFiles,
    ticket: tickets.OwnTicket | None,
    policy: SharePolicy | None,
    admit: Callable[[], tuple[BusyReason, ...]] | None,
) -> HeldLease | LeaseArea | _Refusal:
    """One try: the lease, a refusal, or the area as it is now when it grew while we locked."""
    cards = frozenset(device.card_uuid for device in record.devices)
    if refusal := _yield_to_line(area, record, cards, ticket, policy):
        return refusal
    gates = (*(() if policy is None else policy.list_gates(area)), *_plan_gates(area, record))
    for path, exclusive in (*gates, *plan_locks(area, record.devices, share=record.share)):
        try:
            locked = files.try_lock(path, exclusive=exclusive)
        except lock_files.LockObstructed as error:
            return _Refusal(name_obstructed(area, record, error))
        if not locked:
            files.unlock()
            busy = _find_conflicts(area, record, cards, Witness.LOCK)
            return _Refusal(busy, passing=not busy, lock=(path, exclusive))
    if policy is not None and not policy.has_all_gates(area, gates):
        # Another run of this account has just made one.
        files.unlock()
        return area
    now = lease_area.refresh_area(area) if lease_area.has_grown(area) else area
    if now.directories != area.directories:
        files.unlock()
        return now
    refusal = (
        _yield_to_line(area, record, cards, ticket, policy)
        or _refuse_on(_find_conflicts(area, record, cards, Witness.RECORD))
        or _refuse_on(_find_hand_written(area, record))
        or (None if policy is None else _refuse_on(policy.refuse(area, record)))
        or (None if admit is None else _refuse_on(admit()))
    )
    if refusal:
        files.unlock()
        return refusal
    outcome = _publish(area, record, files, gates)
    if policy is not None and isinstance(outcome, HeldLease) and (kept := policy.find_reserved(area, record.devices)):
        # Reserved in this very moment: whoever reserves looks at records after their word is out, and we at theirs
        # after our record is, so one of the two sees the other.
        outcome.release()
        return _Refusal(tuple(kept.values()))
    return outcome


def _refuse_on(busy: tuple[BusyReason, ...]) -> _Refusal | None:
    return _Refusal(busy) if busy else None


def _yield_to_line(
    area: LeaseArea,
    record: LeaseRecord,
    cards: frozenset[str],
    ticket: tickets.OwnTicket | None,
    policy: SharePolicy | None,
) -> _Refusal | None:
    if policy is None:
        ahead = tickets.find_ahead(area, cards, None if ticket is None else ticket.key)
    else:
        ahead = policy.find_ahead(area, cards, None if ticket is None else ticket.ticket)
    if ahead is None:
        return None
    wanted = [device for device in record.devices if device.card_uuid in ahead.cards]
    return _Refusal(tuple(tickets.busy_from(ahead, device) for device in wanted))


def _plan_gates(area: LeaseArea, record: LeaseRecord) -> tuple[tuple[str, bool], ...]:
    """The gates to pass before taking a shared lock.

    A slice and a sharing run both lock the card shared, and must still exclude each other. Their records tell them
    apart, so looking at records and publishing one's own is a single step under the card's gate.
    """
    cards = {d.card_uuid for d in record.devices if record.share or d.slice_uuid is not None}
    names = sorted(map(lock_files.gate_name, cards))
    return tuple((f"{directory}/{name}", True) for directory in area.directories for name in names)


def _find_conflicts(
    area: LeaseArea, record: LeaseRecord, cards: frozenset[str], witness: Witness
) -> tuple[BusyReason, ...]:
    """What the records of other runs say about our devices; void records of ours are removed in passing."""
    found: dict[tuple[tuple[str, int, int], str], BusyReason] = {}
    judge = records.Judge()
    for seen in records.read_records(area, about=cards)[0]:
        if seen.key == records.key_of(record):
            continue
        blocked = [d for d in record.devices if records.conflicts(seen.record, d, share=record.share)]
        if not blocked:
            continue
        judgement = judge.judge(seen)
        if judgement.holds:
            for device in blocked:
                key = (seen.key, device.uuid)
                found.setdefault(key, records.busy_from(seen, judgement, device, witness))
        elif witness is Witness.RECORD and os.geteuid() in (0, seen.record.uid):
            note_left(area, seen)
            remove_quietly(seen.path)
    return tuple(found.values())


def _find_hand_written(area: LeaseArea, record: LeaseRecord) -> tuple[BusyReason, ...]:
    """Lock files made by hand for one of our cards. Ours are judged by their records, which were looked at before."""
    found = []
    for device in record.devices:
        lock = foreign_locks.read_lock(area.hand_written, device.index)
        if lock is not None and lock.run_id is None:
            found.append(_busy_by_hand(device, lock))
    return tuple(found)


def _busy_by_hand(device: LeasedDevice, lock: foreign_locks.ForeignLock) -> BusyReason:
    return BusyReason(device=device.uuid, witness=Witness.FOREIGN_LOCK, holder=lock.text, since=lock.since or None)


def _publish(
    area: LeaseArea, record: LeaseRecord, files: LockFiles, gates: tuple[tuple[str, bool], ...]
) -> HeldLease | _Refusal:
    """Write record and lock files, under all locks: from here on everybody sees the lease."""
    held = HeldLease(area, record, files.hand_over())
    try:
        held.update(record)
        # Whoever locks what is there now looks at records after that, and we at the files after our record is out: so
        # of two that locked one after the other, with a new file in between, one sees the other.
        held.require_current()
        held.publish_by_hand()
    except lock_files.LockObstructed as error:
        held.release()
        return _Refusal(name_obstructed(area, record, error))
    except FileExistsError:
        held.release()
        return _Refusal(_find_hand_written(area, record), passing=True)
    except BaseException:
        held.release()
        raise
    held.drop_gates(path for path, _ in gates)
    return held


def name_obstructed(area: LeaseArea, record: LeaseRecord, error: lock_files.LockObstructed) -> tuple[BusyReason, ...]:
    """The devices of a request that cannot be had because of what somebody put in place of a lock file or gate."""
    devices = _list_concerned(area, record, error.path)
    return tuple(BusyReason(device.uuid, Witness.LOCK, error.holder) for device in devices)


def _list_concerned(area: LeaseArea, record: LeaseRecord, path: str) -> tuple[LeasedDevice, ...]:
    """The devices of a request that need this lock file or gate; all of them when it is none of theirs alone."""
    concerned = []
    for device in record.devices:
        wish = replace(record, devices=(device,))
        if path in dict((*_plan_gates(area, wish), *plan_locks(area, (device,), share=record.share))):
            concerned.append(device)
    return tuple(concerned) or record.devices


def _name_unrecorded(area: LeaseArea, record: LeaseRecord, held: str = "") -> tuple[BusyReason, ...]:
    """Who holds locks that no living record explains: somebody's escaped process, or a program that is not holdfast.

    `held` is the path where the last try failed: a gate is named with its path, since nobody holds one for long.
    """
    locks = lease_holders.read_kernel_locks() or ()
    if held and not held.endswith(".lock"):
        words = f"{lease_holders.name_holders(held, locks)}, who has {held} locked"
        return tuple(BusyReason(device.uuid, Witness.LOCK, words) for device in _list_concerned(area, record, held))
    found = []
    for device in record.devices:
        paths = [path for path, _ in plan_locks(area, (device,), share=record.share)]
        pids = lease_holders.find_holders(paths)
        pids = pids or tuple(sorted({lock.pid for path in paths for lock in lease_holders.locks_on(path, locks)}))
        if pids:
            found.append(_busy_by_lock(area, device, pids, share=record.share))
    return tuple(found) or _call_passing(record.devices)


def _call_passing(devices: tuple[LeasedDevice, ...]) -> tuple[BusyReason, ...]:
    return tuple(BusyReason(device.uuid, Witness.LOCK, _PASSING) for device in devices)


_PASSING = "a process that cannot be seen from here, or one that let go just now"


def is_passing(busy: tuple[BusyReason, ...]) -> bool:
    """Whether nobody is named: the next try may succeed at once."""
    return all(reason.holder == _PASSING for reason in busy)


def name_lock_holders(area: LeaseArea, record: LeaseRecord) -> tuple[BusyReason, ...]:
    """Who has held the locks and gates of a request for so long that it is no passing try: reads the kernel's list."""
    for path, _ in (*_plan_gates(area, record), *plan_locks(area, record.devices, share=record.share)):
        locks = lease_holders.read_kernel_locks() or ()
        if any(lock.exclusive for lock in lease_holders.locks_on(path, locks)):
            return _name_unrecorded(area, record, path)
    return _call_passing(record.devices)


def explain_refusal(area: LeaseArea, record: LeaseRecord, device: LeasedDevice) -> tuple[BusyReason, ...]:
    """Why `device` is not to be had for the run in `record`, for people: only when a try said so."""
    wish = replace(record, devices=(device,))
    return (
        _find_obstacles(area, wish)
        or _find_conflicts(area, wish, frozenset((device.card_uuid,)), Witness.LOCK)
        or _find_hand_written(area, wish)
        or _name_unrecorded(area, wish)
    )


def _find_obstacles(area: LeaseArea, record: LeaseRecord) -> tuple[BusyReason, ...]:
    found = []
    for path, _ in (*plan_locks(area, record.devices, share=record.share), *_plan_gates(area, record)):
        if holder := lock_files.find_obstacle(path):
            found += [BusyReason(d.uuid, Witness.LOCK, holder) for d in _list_concerned(area, record, path)]
    return tuple(found)


def _busy_by_lock(area: LeaseArea, device: LeasedDevice, pids: tuple[int, ...], *, share: bool) -> BusyReason:
    """Name the run whose record lies there though its known processes are gone, else the processes alone."""
    seen_records, _ = records.read_records(area, about=frozenset((device.card_uuid,)))
    for seen in seen_records:
        if records.conflicts(seen.record, device, share=share):
            judgement = records.RecordJudgement(records.RecordStatus.DRAINING, "it holds the lock", pids)
            return records.busy_from(seen, judgement, device, Witness.LOCK)
    return BusyReason(device.uuid, Witness.LOCK, lease_holders.describe_pids(pids), pids=tuple(pids))


def adopt_lease(area: LeaseArea, record: LeaseRecord, holders: Iterable[ProcessId]) -> HeldLease:
    """Take over the lease of a run whose supervisor is gone, from the processes that still hold its locks.

    Copies the descriptors of `holders` (the keeper first, then the job). What cannot be copied (Yama) is locked anew
    if it is free; otherwise the lease lives by the holders' own descriptors and `HeldLease.fds` is incomplete.

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
        held = HeldLease(area, record, files.hand_over())
        held.find_published()
        held.update(record)
        return held
    except BaseException:
        if held is not None:
            held.close()
        raise
    finally:
        files.close()


def clear_leftovers(area: LeaseArea, run_id: str, attempt: int) -> None:
    """Remove what a lease of ours has left in sight though nobody holds it any more: its record and hand-written locks.

    Locks are not touched: they went with the processes that held them, and may be somebody else's by now.
    """
    for seen in records.read_records(area)[0]:
        if seen.key == (run_id, attempt, os.geteuid()):
            note_left(area, seen)
            held = HeldLease(area, seen.record, LockFiles())
            held.find_published()
            held.release()
            remove_quietly(seen.path)


def _lock_if_free(files: LockFiles, path: str, *, exclusive: bool) -> None:
    """Our record keeps everybody off the card; only the passing try of another can be in the way."""
    for tries in range(PASSING_TRIES):
        try:
            if files.try_lock(path, exclusive=exclusive):
                return
        except lock_files.LockObstructed:
            # Nobody else can lock it either, and our record is what has to be published.
            return
        time.sleep(min(FIRST_PAUSE_S * 2**tries, LAST_PAUSE_S))


def _unwritable(area: LeaseArea, error: OSError) -> StorageError:
    return StorageError(
        f"the lease cannot be published in {', '.join(area.directories)}: {error.strerror}",
        hint="Make room there, or name another directory as lease_dir in the rules file.",
    )
