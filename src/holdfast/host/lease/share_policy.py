"""The sharing rules of a box as they bind one request: shares, hard limits, hours, reservations.

A `SharePolicy` is asked wherever a lease is decided: who stands before a request (`find_ahead`), what forbids it
(`find_bars`), and which cards are kept for others (`find_reserved`). It knows only files of the lease area that their
owners wrote themselves, and each request is judged by its own supervisor: nobody enforces anything, as with every lock.

Without shares in the rules and without reservations everything is first come, first served, at the cost of one more
look at the names in the area. It must not know how cards are locked (`leases`) or chosen (`core.cards.choose`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from holdfast.core.cards import reservations as keeping
from holdfast.core.cards import shares
from holdfast.core.cards.reservations import Reservation
from holdfast.core.cards.shares import AccountShare, CardRequest
from holdfast.core.cards.usage import hours_within, merge_uses
from holdfast.core.rules.rules import Rules, judge_hours
from holdfast.host import clock
from holdfast.model.errors import HoldfastError
from holdfast.model.gpu import GpuRequest
from holdfast.model.lease import BusyReason, LeasedDevice, LeaseRecord, Ticket, Witness

from . import area as lease_area
from . import lock_files, records, reservations, tickets
from .area import LeaseArea
from .reservations import describe
from .tickets import FoundTicket
from .usage import UsageLedgers, describe_record, find_week_begin

LOOK_AGAIN_S = 5.0
"""Hours, ages of tickets and reservations change without any event that a waiter could watch."""
SUBJECT = "rules of this box"
RESERVED = "reserved by "


class SharePolicy:
    """The rules between accounts, as they are for one run of this account."""

    def __init__(self, rules: Rules, *, hold_s: float | None = None, simulated: bool = False) -> None:
        """For a run that holds its cards for `hold_s` at most (None: for as long as it takes)."""
        self.rules, self.hold_s = rules, hold_s
        self._simulated = simulated
        self._uid = os.geteuid()
        self._ledgers: UsageLedgers | None = None

    @property
    def has_shares(self) -> bool:
        """Whether the order in line depends on what each account holds."""
        return shares.has_shares(self.rules)

    @property
    def until(self) -> str | None:
        """When a lease that is taken now is over at the latest; None where nothing says."""
        return None if self.hold_s is None else clock.format_utc(clock.epoch_s() + self.hold_s)

    def look_again_s(self, area: LeaseArea, own: Ticket) -> float | None:
        """After how many seconds a waiter looks again although nothing happened; None when events tell everything."""
        rules = self.rules
        if self.has_shares:
            overdue_s = shares.find_patience(rules) - (clock.boottime_ns() - own.order) / 1e9
            return min(LOOK_AGAIN_S, overdue_s + 0.001) if overdue_s > 0 else LOOK_AGAIN_S
        changes = rules.allowed_hours or rules.quiet_times or self._list_reservations(area)
        return LOOK_AGAIN_S if changes else None

    # --- the line ----------------------------------------------------------------------------------------------------

    def find_ahead(
        self, area: LeaseArea, cards: frozenset[str], own: Ticket | None, *, last: bool = False
    ) -> FoundTicket | None:
        """The first (or the `last`) living ticket that goes before ours and may have one of `cards`; None: our turn.

        Without a ticket of our own everybody who may have one of them goes first.
        """
        ahead = self.list_ahead(area, cards, own, last=last)
        return ahead[-1 if last else 0] if ahead else None

    def list_ahead(
        self, area: LeaseArea, cards: frozenset[str], own: Ticket | None, *, last: bool = False
    ) -> tuple[FoundTicket, ...]:
        """All that go before ours, who is next first; where only arrival counts no more than the first (or `last`)."""
        kept = self._list_reservations(area)
        key = None if own is None else (own.order, own.run_id, self._uid)
        if not self.has_shares and not kept:
            found = tickets.find_ahead(area, cards, key, last=last)
            return () if found is None else (found,)
        seen = self._read_line(area, cards, None if self.has_shares else key)
        requests = {request: ticket for ticket in seen if (request := self._build_request(ticket, kept)) is not None}
        if own is None:
            me = None
        else:
            # Not by its order: that is as old as its file is, for all alike.
            me = next(
                (request for request in requests if (request.run_id, request.uid) == (own.run_id, self._uid)), None
            ) or _own_request(own, cards)
        ahead = shares.list_ahead(me, requests, self._read_accounts(area, requests, me), self.rules, cards)
        return tuple(requests[request] for request in ahead)

    def order_line(self, area: LeaseArea, waiting: tuple[FoundTicket, ...]) -> tuple[FoundTicket, ...]:
        """The line for people: who is next first, and last whoever is not served just now because of a hard limit."""
        if not self.has_shares:
            return waiting
        requests = {request: ticket for ticket in waiting if (request := self._build_request(ticket, ())) is not None}
        served = shares.next_in_line(requests, self._read_accounts(area, requests, None), self.rules)
        first = tuple(requests[request] for request in served)
        return (*first, *(ticket for ticket in waiting if ticket not in first))

    def _read_line(self, area: LeaseArea, cards: frozenset[str], key: tuple[int, str, int] | None) -> list[FoundTicket]:
        """Living tickets that are about these cards, once each also where the area is several directories."""
        found: dict[tuple[str, int], FoundTicket] = {}
        for listed in tickets.list_earlier(area, key):
            ticket = tickets.read_living(listed, cards, key=key)
            if ticket is not None:
                found.setdefault((ticket.ticket.run_id, ticket.uid), ticket)
        return list(found.values())

    def _build_request(self, seen: FoundTicket, kept: tuple[Reservation, ...]) -> CardRequest | None:
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
        return shares.CardRequest(ticket.order, ticket.run_id, seen.uid, ticket.count, allowed, waited_s)

    def _read_accounts(
        self, area: LeaseArea, requests: Iterable[CardRequest], me: CardRequest | None
    ) -> dict[int, AccountShare]:
        if not self.has_shares:
            return {}
        uids = frozenset(request.uid for request in requests) | (frozenset() if me is None else {me.uid})
        return self._read_all_accounts(area, uids, None)

    def _read_all_accounts(
        self, area: LeaseArea, uids: frozenset[int], own: LeaseRecord | None
    ) -> dict[int, AccountShare]:
        """What these accounts hold and have used this week; of `own`'s run the hours alone count."""
        cards: dict[int, set[str]] = {uid: set() for uid in uids}
        runs: dict[int, dict[str, None]] = {uid: {} for uid in uids}
        hours = dict.fromkeys(uids, 0.0)
        held = []
        judge = records.Judge()
        for seen in records.read_records(area)[0]:
            record = seen.record
            is_own = own is not None and seen.key == records.key_of(own)
            if record.uid not in uids or not judge.judge(seen).holds:
                continue
            held.append(record)
            if is_own:
                continue
            cards[record.uid].update(device.uuid for device in record.devices)
            runs[record.uid][record.run_id] = None
        if shares.counts_hours(self.rules):
            self._add_hours(area, hours, held)
        return {uid: shares.AccountShare(len(cards[uid]), hours[uid], tuple(runs[uid])) for uid in uids}

    def _add_hours(self, area: LeaseArea, hours: dict[int, float], held: list[LeaseRecord]) -> None:
        """GPU-hours of this week. Hours on simulated cards count for nobody who asks for real ones."""
        if self._ledgers is None:
            self._ledgers = UsageLedgers()
        now_s = clock.epoch_s()
        begin_s = find_week_begin(now_s)
        past, _ = self._ledgers.read(area, since_s=begin_s, uids=frozenset(hours))
        live = [describe_record(record, live=True) for record in held]
        for use in merge_uses([*past, *live]):
            if use.simulated == self._simulated:
                hours[use.uid] += hours_within(use, begin_s, now_s + 1.0)

    # --- what forbids it ---------------------------------------------------------------------------------------------

    def find_bars(self, area: LeaseArea, record: LeaseRecord, count: int) -> tuple[BusyReason, ...]:
        """What keeps this account from `count` cards just now, whichever they are: the hours of the box, a limit."""
        local = time.localtime()
        finding = judge_hours(self.rules, local.tm_hour * 60 + local.tm_min)
        words = [] if finding is None else [f"{finding.evidence}; {finding.remedy}"]
        hard = self.rules.max_cards_per_user is not None or self.rules.hours_per_week_max is not None
        if hard:
            account = self._read_all_accounts(area, frozenset((self._uid,)), record)[self._uid]
            words += shares.find_bars(count, account, self.rules)
        return tuple(BusyReason(SUBJECT, Witness.RULE, text) for text in words)

    def describe_standing(
        self, area: LeaseArea, count: int, *, own: LeaseRecord | None = None
    ) -> tuple[tuple[str, ...], str]:
        """Which hard limits forbid `count` more cards now, and why they would be borrowed; empty: within a share.

        A record of `own`'s run does not count.
        """
        if not self.has_shares:
            return (), ""
        account = self._read_all_accounts(area, frozenset((self._uid,)), own)[self._uid]
        return shares.find_bars(count, account, self.rules), shares.explain_borrowing(count, account, self.rules)

    def find_reserved(self, area: LeaseArea, devices: Iterable[LeasedDevice]) -> dict[str, BusyReason]:
        """The devices (by UUID) that are kept for others while this run would hold them, with who, when and why."""
        kept = self._list_reservations(area)
        if not kept:
            return {}

        found, now_s = {}, clock.epoch_s()
        for device in devices:
            against = keeping.find_against(kept, self._uid, device.card_uuid, now_s, self.hold_s)
            if against is None:
                continue
            words = RESERVED + describe(against)
            if now_s < against.begin_s:
                words += "; this run may still hold it then: state a timeout that ends before"
            found[device.uuid] = BusyReason(device.uuid, Witness.RESERVATION, words, index=device.index)
        return found

    def find_own(self, area: LeaseArea, devices: Iterable[LeasedDevice]) -> tuple[LeasedDevice, ...]:
        """Those of these devices that are kept for this account now."""
        own = keeping.find_own(self._list_reservations(area), self._uid, clock.epoch_s())
        return tuple(device for device in devices if device.card_uuid in own)

    def list_not_own(self, area: LeaseArea, devices: tuple[LeasedDevice, ...], request: GpuRequest) -> dict[str, str]:
        """What to leave alone at first, because enough cards are kept for this account now; empty: nothing."""
        own = () if request.devices else self.find_own(area, devices)
        if len(own) < max(request.count, 1):
            return {}
        return {device.uuid: "other cards are kept for this account" for device in devices if device not in own}

    def refuse(self, area: LeaseArea, record: LeaseRecord) -> tuple[BusyReason, ...]:
        """Everything that forbids this very lease now."""
        reserved = self.find_reserved(area, record.devices)
        return (*self.find_bars(area, record, len(record.devices)), *reserved.values())

    def _list_reservations(self, area: LeaseArea) -> tuple[Reservation, ...]:
        """Those that count. Where the area cannot be read, taking a lease will say so."""
        try:
            if not lease_area.list_names(area, reservations.PREFIX):
                return ()
            return reservations.list_reservations(area, self.rules)[0]
        except HoldfastError:
            return ()

    # --- files -------------------------------------------------------------------------------------------------------

    def list_gates(self, area: LeaseArea) -> tuple[tuple[str, bool], ...]:
        """What to lock while a lease is decided about: of two requests of one account one has to see the other."""
        if self.rules.max_cards_per_user is None:
            return ()
        return tuple((path, True) for path in lock_files.list_account_gates(area))

    def has_all_gates(self, area: LeaseArea, gates: tuple[tuple[str, bool], ...]) -> bool:
        """Whether no further gate of this account has come since `list_gates`."""
        return (
            self.rules.max_cards_per_user is None or {path for path, _ in self.list_gates(area)} <= dict(gates).keys()
        )

    def list_own_locks(self, area: LeaseArea) -> tuple[str, ...]:
        """The lock files of the cards that this account holds: when one is closed, a limit may have been left."""
        if not self.has_shares:
            return ()
        devices = [
            device
            for seen in records.read_records(area)[0]
            if seen.record.uid == self._uid
            for device in seen.record.devices
        ]
        return tuple(dict.fromkeys(path for path, _ in lock_files.plan_locks(area, devices, share=True)))


def _own_request(own: Ticket, cards: frozenset[str]) -> CardRequest:
    waited_s = (clock.boottime_ns() - own.order) / 1e9
    return shares.CardRequest(own.order, own.run_id, os.geteuid(), own.count, cards, waited_s)
