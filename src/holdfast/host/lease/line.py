"""Waiting for cards: first come, first served, asleep until a card is let go.

A `Waiter` stands in line with a ticket and is meant to sit in somebody's poll loop: poll `fileno()` for reading and
`next_retry_s` as the timeout, then ask `ready()`. It watches exactly one thing at a time. While somebody before it
wants one of its cards, it watches that one's ticket and nothing else, so each end wakes one waiter, not all of them.
When it is the first, it watches the lock files of its candidates: the last close of a lock file is an event, after
SIGKILL too. Where the rules give shares (`sharing`), who is first changes with what each account holds: then everybody
watches all of these, and whoever was not first lets the first go before looking.

Invariants: looking makes no events for others (descriptors stay open across tries); every watch is set before the
look that it guards, so nothing is missed in between. Where inotify is not to be had, or no watch for a path, it polls;
its descriptor is the same from construction to `close`, since a loop listens to it.
It must not know how cards are chosen: `free` says which could be had, the caller chooses and calls `acquire`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.host import clock
from holdfast.host.files import inotify
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.lease import BusyReason, LeasedDevice, LeaseRecord, Ticket, Witness

from . import area as lease_area
from . import foreign_locks, leases, lock_files, records, tickets
from .area import LeaseArea

if TYPE_CHECKING:
    from holdfast.model.errors import HoldfastError

    from .share_policy import SharePolicy

# The kernel tells of a close just before it drops the lock (fs/file_table.c, __fput: fsnotify_close comes before
# locks_remove_file), and a killed process closes its files before it counts as dead (kernel/exit.c, do_exit: exit_files
# comes before exit_notify; seen as a hand-over of 515 ms). So a try straight after the event may come too early. Then
# look again after 1 ms and whenever the time since the event has doubled, for this long: only a box that stands still
# needs the end of it.
FIRST_RETRY_S = 0.001
LAST_RETRY_S = 1.0
# A draining card or a hand-written lock file is let go without any event that we could watch.
SLOW_POLL_S = 0.5
# Without inotify (the account's instances are used up), or without a watch for a path (the account's watches are used
# up, or the owner of a lock file has closed it to others), looking is all that is left.
BLIND_POLL_S = 0.25
# So many tries in a row, each after twice the time, and whoever holds the lock is not passing: half a second.
MOST_PASSING = 9
# Anybody may open a lock file, and its close is an event: so many looks are had for events, and so many more a second.
# Beyond that the clock says when to look.
MOST_LOOKS, LOOKS_PER_S = 100.0, 20.0
# With shares every release is told to everybody in line. Whoever was not first lets the first go before looking.
DEFER_S = 0.05

_LOCK_FILE_EVENTS = (
    inotify.CLOSE_WRITE | inotify.CLOSE_NOWRITE | inotify.ATTRIB | inotify.DELETE_SELF | inotify.MOVE_SELF
)
_TICKET_EVENTS = inotify.CLOSE_WRITE | inotify.ATTRIB | inotify.DELETE_SELF | inotify.MOVE_SELF


class Waiter:
    """A place in the line for `count` of `candidates`, for the run in `record` (whose devices do not matter yet).

    `policy` says what is owed to other accounts; without it the line is first come, first served.
    Close it when the lease was had or the wait is over. `wakeups` counts the events that made it look; `unusable` says
    for each candidate who has made the area unusable since, when that was all that the last `ready` could see.

    Raises:
        StorageError, NotPermitted: the area cannot be trusted or written.
    """

    def __init__(
        self,
        area: LeaseArea,
        record: LeaseRecord,
        candidates: tuple[LeasedDevice, ...],
        count: int,
        policy: SharePolicy | None = None,
    ) -> None:
        self.area = lease_area.refresh_area(area)
        self.free: tuple[LeasedDevice, ...] = ()
        self.unusable: tuple[BusyReason, ...] = ()
        self.next_retry_s: float | None = None
        self.wakeups = 0
        self._record = record
        self._candidates = candidates
        self._count = count
        self._policy = policy
        self._reserved: dict[str, BusyReason] = {}
        self._passing = 0
        self._greedy = False
        self._ahead: str | None = None
        self._deferred_at_s: float | None = None
        self._cards = frozenset(device.card_uuid for device in candidates)
        self._files = lock_files.LockFiles()
        self._blocked: tuple[BusyReason, ...] = ()
        self._watches: dict[str, int] = {}
        self._unwatched = False
        self._told_at_s = clock.monotonic_s()
        self._looks_left = MOST_LOOKS
        try:
            self._events: inotify.Inotify | None = inotify.Inotify()
        except OSError:
            self._events, self._unwatched = None, True
        ticket = Ticket(
            order=clock.boottime_ns(),
            run_id=record.run_id,
            user=record.user,
            candidates=tuple(device.uuid for device in candidates),
            count=count,
            hold_s=None if policy is None else policy.hold_s,
        )
        try:
            self._ticket = self._get_in_line(ticket)
        except OSError as error:
            if self._events is not None:
                self._events.close()
            where = ", ".join(self.area.directories)
            raise StorageError(
                f"a place in the line cannot be written in {where}: {error.strerror}", hint="Make room there."
            ) from error

    def _get_in_line(self, ticket: Ticket) -> tickets.OwnTicket:
        """Publish our place; where only a directory beside the administrator's takes none, without that one."""
        try:
            return tickets.OwnTicket(self.area, ticket, self._candidates)
        except OSError:
            first = lease_area.keep_first(self.area)
            if first is None:
                raise
            self.area = first
            return tickets.OwnTicket(self.area, ticket, self._candidates)

    def fileno(self) -> int:
        """The descriptor to poll for reading; -1 where inotify is not to be had: then `next_retry_s` is always set."""
        return -1 if self._events is None else self._events.fileno()

    def ready(self) -> bool:
        """Look: True when it is our turn and at least `count` candidates could be had (`free`). Never blocks."""
        told = self._drain()
        if told:
            flooded = self._count_look()
            self._told_at_s = clock.monotonic_s()
            self._passing = 0
            if flooded:
                self._watch_nothing()
                self.next_retry_s = BLIND_POLL_S
                return False
        if self._defers(told=told):
            return False
        self.free, self.next_retry_s, self._blocked, self.unusable = (), None, (), ()
        try:
            self.area = lease_area.leave_closed(self.area)
            return self._look()
        except (StorageError, NotPermitted) as error:
            self.free = ()
            self.unusable = _call_unusable(self._candidates, error)
            self.refused(self.unusable)
            return False

    def _look(self) -> bool:
        """Whether it is our turn and enough could be had; what cannot be read, watched or made is no end of the wait.

        Raises:
            StorageError, NotPermitted: the area is not to be used just now.
        """
        if self._policy is not None and (answer := self._ask_policy(self._policy)) is not None:
            return answer
        ahead = self._find_ahead()
        self._ahead = None if ahead is None else ahead.path
        passed_s = clock.monotonic_s() - self._told_at_s
        if ahead is not None:
            if passed_s < LAST_RETRY_S:
                # The file of who left may be closed before its lock is gone, and its process be seen a while longer.
                self.next_retry_s = min(max(FIRST_RETRY_S, passed_s), SLOW_POLL_S)
            wanted = (device for device in self._candidates if device.card_uuid in ahead.cards)
            self._blocked = tuple(tickets.busy_from(ahead, device) for device in wanted)
            self._rest()
            return False
        self._watch_locks()
        self.free, lock_held, slow = self._probe(self._candidates)
        if len(self.free) >= self._count:
            return True
        if passed_s < LAST_RETRY_S and (lock_held or slow):
            self.next_retry_s = min(max(FIRST_RETRY_S, passed_s), SLOW_POLL_S)
        elif slow:
            self.next_retry_s = SLOW_POLL_S
        self._rest()
        return False

    def _count_look(self) -> bool:
        """Whether there were so many events up to this one that it is no reason to look."""
        earned = (clock.monotonic_s() - self._told_at_s) * LOOKS_PER_S
        self._looks_left = min(MOST_LOOKS, self._looks_left + earned) - 1.0
        return self._looks_left < 0.0

    def _watch_nothing(self) -> None:
        if self._events is not None:
            for watch in self._watches.values():
                self._events.remove(watch)
            self._watches.clear()
            self._events.read()

    def _defers(self, *, told: bool) -> bool:
        """Whether to look a little later: a card was let go, and whoever stood before us is still there to take it."""
        waiting = told or self._deferred_at_s is not None
        if not (waiting and self._greedy and self._ahead is not None and os.path.lexists(self._ahead)):
            self._deferred_at_s = None
            return False
        now_s = clock.monotonic_s()
        if self._deferred_at_s is None:
            self._deferred_at_s = now_s
        left_s = self._deferred_at_s + DEFER_S - now_s
        if left_s <= 0:
            self._deferred_at_s = None
            return False
        self.next_retry_s = left_s
        return True

    def _ask_policy(self, policy: SharePolicy) -> bool | None:
        """Whether the rules alone decide: a limit bars us (False), cards are kept for us (True), or neither (None)."""
        own = policy.find_own(self.area, self._candidates)
        self._greedy = policy.has_shares or len(own) >= self._count
        self._reserved = policy.find_reserved(self.area, self._candidates)
        bars = policy.find_bars(self.area, self._record, self._count)
        if bars and not self._watch_only({}):
            # A card that this account gives back is an event; one given back before the watch was set is not.
            bars = policy.find_bars(self.area, self._record, self._count)
        if bars:
            self._blocked = bars
            self._rest()
            return False
        if len(own) < self._count:
            return None
        self._watch_locks()
        self.free = self._probe(own)[0]
        return True if len(self.free) >= self._count else None

    def acquire(
        self, record: LeaseRecord, admit: Callable[[], tuple[BusyReason, ...]] | None = None
    ) -> leases.HeldLease | tuple[BusyReason, ...]:
        """Try for ``record.devices`` from our place in the line. After success, close the waiter.

        A disk that takes no record now, or a directory of the area that somebody closed or planted, is no end of the
        wait: it is a reason to look again.
        """
        outcome: leases.HeldLease | tuple[BusyReason, ...]
        try:
            outcome = leases.acquire_lease(
                self.area,
                record,
                ticket=self._ticket,
                files=self._files,
                patient=False,
                policy=self._policy,
                admit=admit,
            )
        except (StorageError, NotPermitted) as error:
            outcome = _call_unusable(record.devices, error)
        if isinstance(outcome, tuple) and leases.is_passing(outcome):
            self._passing += 1
            if self._passing >= MOST_PASSING:
                outcome = leases.name_lock_holders(self.area, record)
        if not isinstance(outcome, leases.HeldLease):
            self.refused(outcome)
        return outcome

    def refused(self, busy: tuple[BusyReason, ...]) -> None:
        """Say that free cards were not to be had after all (the card itself is busy): look again a little later.

        Release what was held before: the events of one's own release are swallowed here.
        """
        self._drain()
        self._blocked = busy
        locked = all(reason.witness is Witness.LOCK for reason in busy)
        passing = locked and (leases.is_passing(busy) or any(reason.run_id for reason in busy))
        retry_s = FIRST_RETRY_S * 2.0 ** min(self._passing, MOST_PASSING)
        self.next_retry_s = min(retry_s, SLOW_POLL_S) if passing else SLOW_POLL_S

    def rest(self, busy: tuple[BusyReason, ...], recheck_s: float | None) -> None:
        """Say that what is free has no room beside those who share it: look again when one of them leaves.

        That is the close of a lock file, as with any lease; no event is swallowed here. `recheck_s`: when else looking
        can be worth while; None never.
        """
        self._blocked = busy
        passed_s = clock.monotonic_s() - self._told_at_s
        # Not at any moment: a run that shares says when it began, and may say it anew all the time.
        times = [] if recheck_s is None else [max(recheck_s, BLIND_POLL_S)]
        if passed_s < LAST_RETRY_S:
            # Whoever has just let go may not be quite gone; see `FIRST_RETRY_S`.
            times.append(min(max(FIRST_RETRY_S, passed_s), SLOW_POLL_S))
        self.next_retry_s = min(times, default=None)
        self._rest()

    def blocked_by(self) -> tuple[BusyReason, ...]:
        """Why the last `ready` or `acquire` said no, naming the holders; reads records, so not for a tight loop."""
        if self._blocked:
            return self._blocked
        found: list[BusyReason] = []
        for device in self._candidates:
            if device.uuid in self._reserved:
                found.append(self._reserved[device.uuid])
            elif device not in self.free:
                found.extend(leases.explain_refusal(self.area, self._record, device))
        return tuple(found)

    def leave(self) -> None:
        """Leave the line: whoever is next may go. What is left to `close` is of no interest to others.

        Closing an inotify queue waits for the kernel's own readers, ten milliseconds on a quiet box (fs/notify/group.c,
        synchronize_srcu), so whoever is in a hurry leaves first and closes later.
        """
        self._ticket.close()
        self._files.close()

    def close(self) -> None:
        """Leave the line and close everything; a second call does nothing."""
        self.leave()
        if self._events is not None:
            self._events.close()

    def _rest(self) -> None:
        """Set when to look again where events do not tell everything."""
        times = [] if self.next_retry_s is None else [self.next_retry_s]
        if self._unwatched:
            times.append(BLIND_POLL_S)
        if self._policy is not None:
            later_s = self._policy.look_again_s(self.area, self._ticket.ticket)
            times += [] if later_s is None else [later_s]
            passed_s = clock.monotonic_s() - self._told_at_s
            if self._greedy and passed_s < LAST_RETRY_S:
                # What a killed run held counts until its processes are dead, which comes after the event.
                times.append(max(DEFER_S, passed_s))
        self.next_retry_s = min(times, default=None)

    def _drain(self) -> bool:
        """Take the events that are there; a watch whose file is gone is forgotten, so that it is set anew."""
        events = () if self._events is None else self._events.read()
        watched = set(self._watches.values())
        told = [e for e in events if (e.watch in watched and e.mask != inotify.IGNORED) or e.mask & inotify.OVERFLOW]
        stale = {e.watch for e in events if e.mask & (inotify.IGNORED | inotify.MOVE_SELF | inotify.ATTRIB)}
        self._watches = {path: watch for path, watch in self._watches.items() if watch not in stale}
        self.wakeups += bool(told)
        return bool(told)

    def _find_ahead(self) -> tickets.FoundTicket | None:
        """The last living one before us, watched; checked again after the watch is set."""
        while True:
            if self._policy is None:
                ahead = tickets.find_ahead(self.area, self._cards, self._ticket.key, last=True)
                wanted: tuple[tickets.FoundTicket, ...] = () if ahead is None else (ahead,)
            else:
                # With shares it matters to those behind whether somebody in front got cards, not only the last.
                wanted = self._policy.list_ahead(self.area, self._cards, self._ticket.ticket, last=True)
                ahead = wanted[-1] if wanted else None
            if ahead is None:
                return None
            if self._watch_only(dict.fromkeys((one.path for one in wanted), _TICKET_EVENTS)) or self._events is None:
                return ahead
            if tickets.is_living(ahead.path):
                return ahead

    def _watch_locks(self) -> None:
        """Watch the lock files of all candidates."""
        self._watch_only(self._list_locks())

    def _list_locks(self) -> dict[str, int]:
        """The lock files of all candidates with what to watch them for, opened so that they exist."""
        plan = lock_files.plan_locks(self.area, self._candidates, share=self._record.share)
        wanted = {}
        for path, _ in plan:
            try:
                self._files.open_current(path)
            except lock_files.LockObstructed:
                continue
            wanted[path] = _LOCK_FILE_EVENTS
        return wanted

    def _watch_only(self, wanted: dict[str, int]) -> bool:
        """Watch these paths and no others; True when all of them were being watched already.

        With shares the order of the line changes with what each account holds, and a card that is kept for us is ours
        whoever stands before us: then every release is of interest.
        """
        if self._events is None:
            return True
        if self._policy is not None and self._greedy:
            own = dict.fromkeys(self._policy.list_own_locks(self.area), _LOCK_FILE_EVENTS)
            wanted = {**own, **self._list_locks(), **wanted}
        for path in [path for path in self._watches if path not in wanted]:
            self._events.remove(self._watches.pop(path))
        complete, self._unwatched = True, False
        for path, mask in wanted.items():
            if path in self._watches:
                continue
            complete = False
            try:
                self._watches[path] = self._events.add(path, mask | inotify.DONT_FOLLOW)
            except FileNotFoundError:
                continue
            except OSError:
                # No watch to be had: that one is looked at instead, and asked for again with each look.
                self._unwatched = True
        return complete

    def _probe(self, devices: tuple[LeasedDevice, ...]) -> tuple[tuple[LeasedDevice, ...], bool, bool]:
        """Which of these could be had now; whether a lock is in the way; whether something without events is.

        Takes each lock for a moment: we are the first in line, so nobody who may have the card is disturbed for
        longer than a passing try, which others outlast.
        """
        unlocked: list[LeasedDevice] = []
        lock_held = slow = False
        for device in devices:
            if device.uuid in self._reserved:
                continue
            plan = lock_files.plan_locks(self.area, (device,), share=self._record.share)
            try:
                locked = all(self._files.try_lock(path, exclusive=exclusive) for path, exclusive in plan)
            except lock_files.LockObstructed:
                # Nothing tells when that is taken away.
                slow = True
                continue
            finally:
                self._files.unlock()
            if not locked:
                lock_held = True
                continue
            lock = foreign_locks.read_lock(self.area.hand_written, device.index)
            if lock is not None and lock.run_id is None:
                slow = True
                continue
            unlocked.append(device)
        recorded = self._list_recorded(unlocked)
        slow = slow or bool(recorded)
        return tuple(device for device in unlocked if device not in recorded), lock_held, slow

    def _list_recorded(self, devices: list[LeasedDevice]) -> set[LeasedDevice]:
        """Those of these devices that the record of another run holds."""
        recorded: set[LeasedDevice] = set()
        if not devices:
            return recorded
        judge = records.Judge()
        for seen in records.read_records(self.area, about=frozenset(device.card_uuid for device in devices))[0]:
            if seen.key == records.key_of(self._record):
                continue
            blocked = [d for d in devices if records.conflicts(seen.record, d, share=self._record.share)]
            if blocked and judge.judge(seen).holds:
                recorded.update(blocked)
        return recorded


def _call_unusable(devices: tuple[LeasedDevice, ...], error: HoldfastError) -> tuple[BusyReason, ...]:
    """Nobody has these devices, and they cannot be leased now: the error names the path, and whose it is."""
    return tuple(BusyReason(device.uuid, Witness.RECORD, f"nobody ({error})") for device in devices)


def wait_s(waiter: Waiter, deadline_s: float) -> float:
    """How long to poll at most, in seconds from now: until the next retry or `deadline_s` (`clock.monotonic_s`)."""
    left = max(0.0, deadline_s - clock.monotonic_s())
    return left if waiter.next_retry_s is None else min(left, waiter.next_retry_s)
