"""What a request owes to the other accounts of the box: shares, hard limits, hours, reservations.

A `House` is asked wherever a lease is decided: who stands before a request (`find_ahead`), what forbids it
(`find_bars`), and which cards are kept for others (`find_reserved`). It knows only files of the lease area that their
owners wrote themselves, and each request is judged by its own supervisor: nobody enforces anything, as with every lock.

Without shares in the rules and without reservations everything is first come, first served, at the cost of one more
look at the names in the area. It must not know how cards are locked (`leases`) or chosen (`core.cards`).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..core import reservations as keeping
from ..core import sharing
from ..core.rules import judge_hours
from ..model.errors import HoldfastError
from ..model.lease import Busy, Witness
from . import clock, lease_area, lease_records, lock_files, tickets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.reservations import Reservation
    from ..core.rules import Rules
    from ..core.sharing import Account, Wish
    from ..model.gpu import GpuRequest
    from ..model.lease import LeasedDevice, LeaseRecord, Ticket
    from .lease_area import Area
    from .tickets import SeenTicket
    from .usage import Ledgers

LOOK_AGAIN_S = 5.0
"""Hours, ages of tickets and reservations change without any event that a waiter could watch."""
SUBJECT = "rules of this box"
RESERVED = "reserved by "


class House:
    """The rules between accounts, as they are for one run of this account."""

    def __init__(self, rules: Rules, *, hold_s: float | None = None, simulated: bool = False) -> None:
        """For a run that holds its cards for `hold_s` at most (None: for as long as it takes)."""
        self.rules, self.hold_s = rules, hold_s
        self._simulated = simulated
        self._uid = os.geteuid()
        self._ledgers: Ledgers | None = None

    @property
    def has_shares(self) -> bool:
        """Whether the order in line depends on what each account holds."""
        return sharing.has_shares(self.rules)

    @property
    def until(self) -> str | None:
        """When a lease that is taken now is over at the latest; None where nothing says."""
        return None if self.hold_s is None else clock.format_utc(clock.epoch_s() + self.hold_s)

    def look_again_s(self, area: Area, own: Ticket) -> float | None:
        """After how many seconds a waiter looks again although nothing happened; None when events tell everything."""
        rules = self.rules
        if self.has_shares:
            overdue_s = sharing.find_patience(rules) - (clock.boottime_ns() - own.order) / 1e9
            return min(LOOK_AGAIN_S, overdue_s + 0.001) if overdue_s > 0 else LOOK_AGAIN_S
        changes = rules.allowed_hours or rules.quiet_times or self._list_reservations(area)
        return LOOK_AGAIN_S if changes else None

    # --- the line ----------------------------------------------------------------------------------------------------

    def find_ahead(
        self, area: Area, cards: frozenset[str], own: Ticket | None, *, last: bool = False
    ) -> SeenTicket | None:
        """The first (or the `last`) living ticket that goes before ours and may have one of `cards`; None: our turn.

        Without a ticket of our own everybody who may have one of them goes first.
        """
        ahead = self.list_ahead(area, cards, own, last=last)
        return ahead[-1 if last else 0] if ahead else None

    def list_ahead(
        self, area: Area, cards: frozenset[str], own: Ticket | None, *, last: bool = False
    ) -> tuple[SeenTicket, ...]:
        """All that go before ours, who is next first; where only arrival counts no more than the first (or `last`)."""
        kept = self._list_reservations(area)
        key = None if own is None else (own.order, own.run_id)
        if not self.has_shares and not kept:
            found = tickets.find_ahead(area, cards, key, last=last)
            return () if found is None else (found,)
        seen = self._read_line(area, cards, None if self.has_shares else key)
        wishes = {wish: ticket for ticket in seen if (wish := self._build_wish(ticket, kept)) is not None}
        if own is None:
            me = None
        else:
            me = next((wish for wish in wishes if (wish.order, wish.run_id) == key), None) or _own_wish(own, cards)
        ahead = sharing.list_ahead(me, wishes, self._read_accounts(area, wishes, me), self.rules, cards)
        return tuple(wishes[wish] for wish in ahead)

    def order_line(self, area: Area, waiting: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """The line for people: who is next first, and last whoever is not served just now because of a hard limit."""
        if not self.has_shares:
            return waiting
        seen = (tickets.read_living(path) for path in tickets.list_earlier(area, None))
        wishes = {wish for ticket in seen if ticket is not None and (wish := self._build_wish(ticket, ())) is not None}
        served = sharing.next_in_line(wishes, self._read_accounts(area, wishes, None), self.rules)
        places = {(wish.order, wish.run_id): place for place, wish in enumerate(served)}
        return tuple(sorted(waiting, key=lambda ticket: places.get((ticket.order, ticket.run_id), len(places))))

    def _read_line(self, area: Area, cards: frozenset[str], key: tuple[int, str] | None) -> list[SeenTicket]:
        """Living tickets that are about these cards, once each also where the area is several directories."""
        found = {}
        for path in tickets.list_earlier(area, key):
            ticket = tickets.read_living(path, cards)
            if ticket is not None:
                found[ticket.ticket.order, ticket.ticket.run_id] = ticket
        return list(found.values())

    def _build_wish(self, seen: SeenTicket, kept: tuple[Reservation, ...]) -> Wish | None:
        """What a ticket asks for of what it may have; None when too much of that is kept for others.

        Nobody waits for whom a reservation keeps off a card anyway: else the card would rest until it begins.
        """
        ticket, now_s = seen.ticket, clock.epoch_s()
        allowed = frozenset(
            card for card in seen.cards if keeping.find_against(kept, seen.uid, card, now_s, ticket.hold_s) is None
        )
        if not allowed or (len(ticket.candidates) == len(seen.cards) and len(allowed) < ticket.count):
            return None
        waited_s = (clock.boottime_ns() - ticket.order) / 1e9
        return sharing.Wish(ticket.order, ticket.run_id, seen.uid, ticket.count, allowed, waited_s)

    def _read_accounts(self, area: Area, wishes: Iterable[Wish], me: Wish | None) -> dict[int, Account]:
        if not self.has_shares:
            return {}
        uids = frozenset(wish.uid for wish in wishes) | (frozenset() if me is None else {me.uid})
        return self._read_all_accounts(area, uids, None)

    def _read_all_accounts(self, area: Area, uids: frozenset[int], own: LeaseRecord | None) -> dict[int, Account]:
        """What these accounts hold and have used this week; a record of `own`'s run is left out."""
        cards: dict[int, set[str]] = {uid: set() for uid in uids}
        runs: dict[int, dict[str, None]] = {uid: {} for uid in uids}
        hours = dict.fromkeys(uids, 0.0)
        held = []
        for seen in lease_records.read_records(area)[0]:
            record = seen.record
            is_own = own is not None and (record.run_id, record.attempt) == (own.run_id, own.attempt)
            if record.uid not in uids or is_own or not lease_records.judge(seen).holds:
                continue
            held.append(record)
            cards[record.uid].update(device.uuid for device in record.devices)
            runs[record.uid][record.run_id] = None
        if sharing.counts_hours(self.rules):
            self._add_hours(area, hours, held)
        return {uid: sharing.Account(len(cards[uid]), hours[uid], tuple(runs[uid])) for uid in uids}

    def _add_hours(self, area: Area, hours: dict[int, float], held: list[LeaseRecord]) -> None:
        """GPU-hours of this week. Hours on simulated cards count for nobody who asks for real ones."""
        from ..core.usage import hours_within, merge_uses
        from .usage import Ledgers, describe_record, find_week_begin

        if self._ledgers is None:
            self._ledgers = Ledgers()
        now_s = clock.epoch_s()
        begin_s = find_week_begin(now_s)
        past, _ = self._ledgers.read(area, since_s=begin_s, uids=frozenset(hours))
        live = [describe_record(record, live=True) for record in held]
        for use in merge_uses([*past, *live]):
            if use.simulated == self._simulated:
                hours[use.uid] += hours_within(use, begin_s, now_s + 1.0)

    # --- what forbids it ---------------------------------------------------------------------------------------------

    def find_bars(self, area: Area, record: LeaseRecord, count: int) -> tuple[Busy, ...]:
        """What keeps this account from `count` cards just now, whichever they are: the hours of the house, a limit."""
        local = time.localtime()
        finding = judge_hours(self.rules, local.tm_hour * 60 + local.tm_min)
        words = [] if finding is None else [f"{finding.evidence}; {finding.remedy}"]
        hard = self.rules.max_cards_per_user is not None or self.rules.hours_per_week_max is not None
        if hard:
            account = self._read_all_accounts(area, frozenset((self._uid,)), record)[self._uid]
            words += sharing.find_bars(count, account, self.rules)
        return tuple(Busy(SUBJECT, Witness.RULE, text) for text in words)

    def describe_standing(self, area: Area, count: int) -> tuple[tuple[str, ...], str]:
        """Which hard limits forbid `count` more cards now, and why they would be borrowed; empty: within a share."""
        if not self.has_shares:
            return (), ""
        account = self._read_all_accounts(area, frozenset((self._uid,)), None)[self._uid]
        return sharing.find_bars(count, account, self.rules), sharing.explain_borrowing(count, account, self.rules)

    def find_reserved(self, area: Area, devices: Iterable[LeasedDevice]) -> dict[str, Busy]:
        """The devices (by UUID) that are kept for others while this run would hold them, with who, when and why."""
        kept = self._list_reservations(area)
        if not kept:
            return {}
        from .reservations import describe

        found, now_s = {}, clock.epoch_s()
        for device in devices:
            against = keeping.find_against(kept, self._uid, device.card_uuid, now_s, self.hold_s)
            if against is None:
                continue
            words = RESERVED + describe(against)
            if now_s < against.begin_s:
                words += "; this run may still hold it then: state a timeout that ends before"
            found[device.uuid] = Busy(device.uuid, Witness.RESERVATION, words, index=device.index)
        return found

    def find_own(self, area: Area, devices: Iterable[LeasedDevice]) -> tuple[LeasedDevice, ...]:
        """Those of these devices that are kept for this account now."""
        own = keeping.find_own(self._list_reservations(area), self._uid, clock.epoch_s())
        return tuple(device for device in devices if device.card_uuid in own)

    def list_not_own(self, area: Area, devices: tuple[LeasedDevice, ...], request: GpuRequest) -> dict[str, str]:
        """What to leave alone at first, because enough cards are kept for this account now; empty: nothing."""
        own = () if request.devices else self.find_own(area, devices)
        if len(own) < max(request.count, 1):
            return {}
        return {device.uuid: "other cards are kept for this account" for device in devices if device not in own}

    def refuse(self, area: Area, record: LeaseRecord) -> tuple[Busy, ...]:
        """Everything that forbids this very lease now."""
        reserved = self.find_reserved(area, record.devices)
        return (*self.find_bars(area, record, len(record.devices)), *reserved.values())

    def _list_reservations(self, area: Area) -> tuple[Reservation, ...]:
        """Those that count. Where the area cannot be read, taking a lease will say so."""
        from . import reservations

        try:
            if not any(name.startswith(reservations.PREFIX) for _, name in lease_area.list_names(area)):
                return ()
            return reservations.list_reservations(area, self.rules)[0]
        except HoldfastError:
            return ()

    # --- files -------------------------------------------------------------------------------------------------------

    def list_gates(self, area: Area) -> tuple[tuple[str, bool], ...]:
        """What to lock while a lease is decided about: of two requests of one account one has to see the other."""
        if self.rules.max_cards_per_user is None:
            return ()
        return tuple((f"{directory}/account-{self._uid}.gate", True) for directory in area.directories)

    def list_own_locks(self, area: Area) -> tuple[str, ...]:
        """The lock files of the cards that this account holds: when one is closed, a limit may have been left."""
        if not self.has_shares:
            return ()
        devices = [
            device
            for seen in lease_records.read_records(area)[0]
            if seen.record.uid == self._uid
            for device in seen.record.devices
        ]
        return tuple(dict.fromkeys(path for path, _ in lock_files.plan_locks(area, devices, share=True)))


def _own_wish(own: Ticket, cards: frozenset[str]) -> Wish:
    waited_s = (clock.boottime_ns() - own.order) / 1e9
    return sharing.Wish(own.order, own.run_id, os.geteuid(), own.count, cards, waited_s)
