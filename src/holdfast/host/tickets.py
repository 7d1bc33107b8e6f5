"""Tickets: the line of those who wait for a card, first come, first served.

Owns the files ``ticket-<boottime ns>-<run-id>.json`` of an area. A ticket counts while its author holds the kernel's
lock on it, so a dead waiter leaves the line by itself. A ticket appears locked: it is written and locked under a
temporary name and then renamed. Looking at a ticket takes a shared lock for a moment, which disturbs nobody: its
author locked it once and for all. Only the author has it open for writing, so the end of a waiter is a close-write
event, which those who merely look never cause.

The line is a courtesy among programs that keep it, as every lock here is; it does not decide who holds a card.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model import wire
from ..model.lease import Busy, Ticket, Witness
from . import lease_area
from .files import remove_quietly, write_all
from .processes import name_owner

if TYPE_CHECKING:
    from ..model.lease import LeasedDevice
    from .lease_area import Area

PREFIX, SUFFIX = "ticket-", ".json"
_MAX_BYTES = 1 << 16
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class SeenTicket:
    """A ticket of somebody who still waits, where it lies, the cards that it is about (UUIDs), and whose file it is."""

    path: str
    ticket: Ticket
    cards: tuple[str, ...]
    uid: int = -1


class OwnTicket:
    """Our place in the line, from construction until `close`.

    Raises:
        OSError: it could not be written.
    """

    def __init__(self, area: Area, ticket: Ticket, candidates: tuple[LeasedDevice, ...]) -> None:
        self.ticket = ticket
        self._held: dict[str, int] = {}
        cards = sorted({device.card_uuid for device in candidates})
        data = wire.to_bytes(ticket, cards=cards)
        try:
            for directory in area.directories:
                path = f"{directory}/{ticket_name(ticket)}"
                self._held[path] = _publish_locked(path, data)
        except OSError:
            self.close()
            raise

    @property
    def key(self) -> tuple[int, str]:
        """Where we stand: smaller is earlier."""
        return self.ticket.order, self.ticket.run_id

    def close(self) -> None:
        """Leave the line; a second call does nothing."""
        for path, descriptor in self._held.items():
            remove_quietly(path)
            os.close(descriptor)
        self._held.clear()


def ticket_name(ticket: Ticket) -> str:
    """The name of a ticket's file: sorts by arrival."""
    return f"{PREFIX}{ticket.order:020d}-{ticket.run_id}{SUFFIX}"


def _publish_locked(path: str, data: bytes) -> int:
    directory, name = os.path.split(path)
    temporary = f"{directory}/.{name}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_all(descriptor, data)
        os.fchmod(descriptor, 0o644)
        os.rename(temporary, path)
    except OSError:
        remove_quietly(temporary)
        os.close(descriptor)
        raise
    return descriptor


def list_earlier(area: Area, key: tuple[int, str] | None) -> list[str]:
    """Paths of all tickets before `key` (all tickets when None), earliest first, living or not."""
    found: list[tuple[tuple[int, str], str]] = []
    for directory, name in lease_area.list_names(area):
        place = _parse_name(name)
        if place is not None and (key is None or place < key):
            found.append((place, f"{directory}/{name}"))
    return [path for _, path in sorted(found)]


def _parse_name(name: str) -> tuple[int, str] | None:
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    order, _, run_id = name[len(PREFIX) : -len(SUFFIX)].partition("-")
    return (int(order), run_id) if order.isascii() and order.isdigit() and run_id else None


def read_living(path: str, cards: frozenset[str] | None = None) -> SeenTicket | None:
    """The ticket at `path` if its author still waits (and for one of `cards`); None otherwise."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    try:
        data = os.read(descriptor, _MAX_BYTES)
        value = wire.parse_object(data, path)
        listed = value.get("cards")
        if not isinstance(listed, list) or not all(isinstance(card, str) for card in listed):
            return None
        if cards is not None and cards.isdisjoint(listed):
            return None
        if not _is_held(descriptor):
            return None
        ticket = wire.decode(Ticket, value, path)
        uid = os.fstat(descriptor).st_uid
        named = ticket_name(ticket) == os.path.basename(path) and _is_sound(ticket)
        ticket = replace(ticket, user=name_owner(uid, ticket.user))
        return SeenTicket(path, ticket, tuple(listed), uid) if named else None
    except (OSError, wire.WireError):
        return None
    finally:
        os.close(descriptor)


def _is_sound(ticket: Ticket) -> bool:
    """Whether somebody can be waiting like that; JSON knows numbers with which arithmetic fails."""
    return 0 < ticket.count <= _MAX_BYTES and ticket.order < 1 << 63 and (ticket.hold_s is None or ticket.hold_s >= 0)


def is_dead(path: str) -> bool:
    """Whether the author of a ticket is provably gone."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False
    try:
        return not _is_held(descriptor)
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def find_ahead(
    area: Area, cards: frozenset[str], key: tuple[int, str] | None, *, last: bool = False
) -> SeenTicket | None:
    """The first (or the `last`) living ticket before ours that asks for one of `cards`; None when it is our turn."""
    paths = list_earlier(area, key)
    for path in reversed(paths) if last else paths:
        found = read_living(path, cards)
        if found is not None:
            return found
    return None


def busy_from(found: SeenTicket, device: LeasedDevice) -> Busy:
    """The reason that an earlier ticket gives for `device`."""
    ticket = found.ticket
    return Busy(
        device=device.uuid,
        witness=Witness.QUEUE,
        holder=f"{ticket.user}, run {ticket.run_id}, waits for it and came first",
        run_id=ticket.run_id,
    )
