"""Tickets: the line of those who wait for a card, first come, first served.

Owns the files ``ticket-<boottime ns>-<run-id>.<random>.json`` of an area. A ticket counts while its author holds the
kernel's lock on it, so a dead waiter leaves the line by itself. A ticket appears locked: it is written and locked under
a temporary name and then renamed. Looking at a ticket takes a shared lock for a moment, which disturbs nobody: its
author locked it once and for all. Who that was it says, too: a lock that somebody else takes on the ticket of a dead
one keeps it no place. Only the author has it open for writing, so the end of a waiter is a close-write event, which
those who merely look never cause.

A ticket is as old as it says, and no older than its file: nobody goes before others by a number. A wall clock that is
set back makes files younger, one's own as those of others: so all are measured alike. Whether it is locked
is asked first, and of each account so many are looked at: what a stranger leaves there costs next to nothing.

The line is a courtesy among programs that keep it, as every lock here is; it does not decide who holds a card.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Any

from holdfast.core.control_characters import one_line
from holdfast.host import clock
from holdfast.host.files.files import remove_quietly, write_all
from holdfast.host.files.public_files import create_temporary, find_own, list_public, random_name
from holdfast.host.process.processes import identify_self, name_owner
from holdfast.host.process.table import ProcessTable, own_pid_namespace
from holdfast.model import wire
from holdfast.model.identity import ProcessId
from holdfast.model.ids import is_run_id
from holdfast.model.lease import BusyReason, LeasedDevice, Ticket, Witness
from holdfast.model.record import record, replace

from . import area as lease_area
from .area import LeaseArea

PREFIX, SUFFIX = "ticket-", ".json"
MAX_BYTES = 16 * 1024
MOST_TICKETS, MOST_BYTES = 512, 1 << 20
"""Of one account in one directory, the first in line."""
MOST_COUNT = 1 << 16
MISDATED_S = 60.0
"""A ticket that claims to be older than its inode by more is as old as the inode, give or take this: the time of a
change cannot be set by its owner, but the wall clock can be set. Source: utimensat(2)."""
LONGEST_NAME = 80
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@record
class ListedTicket:
    """A ticket by its name and inode, living or not: `order` is when it arrived (CLOCK_BOOTTIME, ns)."""

    path: str
    order: int
    uid: int


@record
class FoundTicket:
    """A ticket of somebody who still waits, where it lies, the cards that it is about (UUIDs), and whose file it is."""

    path: str
    ticket: Ticket
    cards: tuple[str, ...]
    uid: int = -1

    @property
    def key(self) -> tuple[int, str, int]:
        """Which place in the line it is: smaller is earlier."""
        return self.ticket.order, self.ticket.run_id, self.uid


class OwnTicket:
    """Our place in the line, from construction until `close`.

    Raises:
        OSError: it could not be written.
    """

    def __init__(self, area: LeaseArea, ticket: Ticket, candidates: tuple[LeasedDevice, ...]) -> None:
        self.ticket = ticket
        self._held: dict[str, int] = {}
        cards = sorted({device.card_uuid for device in candidates})
        author = wire.encode(identify_self())
        data = wire.to_bytes(ticket, cards=cards, author=author, pid_namespace=own_pid_namespace())
        name = random_name(f"{PREFIX}{ticket.order:020d}-{ticket.run_id}", SUFFIX)
        try:
            for directory in area.directories:
                self._held[f"{directory}/{name}"] = _publish_locked(f"{directory}/{name}", data)
        except OSError:
            self.close()
            raise

    @property
    def key(self) -> tuple[int, str, int]:
        """Where we stand: smaller is earlier."""
        return self.ticket.order, self.ticket.run_id, os.geteuid()

    def close(self) -> None:
        """Leave the line; a second call does nothing."""
        for path, descriptor in self._held.items():
            remove_quietly(path)
            os.close(descriptor)
        self._held.clear()


def _publish_locked(path: str, data: bytes) -> int:
    """Nobody else can open the file before it is locked: whoever was told of its name could lock it first."""
    descriptor, temporary = create_temporary(os.path.dirname(path), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, 0o644)
        write_all(descriptor, data)
        os.rename(temporary, path)
    except OSError:
        remove_quietly(temporary)
        os.close(descriptor)
        raise
    return descriptor


def list_earlier(area: LeaseArea, key: tuple[int, str, int] | None) -> list[ListedTicket]:
    """The tickets before `key` (all when None), earliest first, living or not; of one account not all of very many.

    Their `order` is to be compared with that of `key`, as which our own ticket is listed, too. Example: somebody came
    at 90 s and we at 100 s, and then the wall clock was set back by an hour. By their files the two came at 3690 s and
    3700 s. Ours is 3600 s late, so as much is taken off all of them: the other one stands at 90 s, before us.
    """
    names = [(where, name) for where, name in lease_area.list_names(area, PREFIX) if _parse_name(name) is not None]
    if not names:
        return []
    now_ns, now_s = clock.boottime_ns(), clock.epoch_s()

    def date(changed_s: float) -> int:
        """How early a ticket in a file that was changed then can be."""
        return now_ns - int((now_s - changed_s + MISDATED_S) * 1e9)

    late_ns = 0
    if key is not None:
        own = find_own(names, f"{PREFIX}{key[0]:020d}-{key[1]}.", SUFFIX, key[2])
        late_ns = max(0, min(map(date, _list_changes(own)), default=0) - key[0])
        names = [(where, name) for where, name in names if (_parse_name(name) or 0) <= key[0] + late_ns]
    found = []
    for file in list_public(names, PREFIX, SUFFIX, most=MOST_TICKETS, most_bytes=MOST_BYTES)[0]:
        said = _parse_name(file.name) or 0
        order = max(said, date(file.changed_s)) - late_ns
        if key is not None and order == key[0]:
            # Of files that were changed in one tick of the kernel's clock what they say decides.
            order += (said > key[0]) - (said < key[0])
        if key is None or order <= key[0]:
            found.append(ListedTicket(file.path, order, file.uid))
    return sorted(found, key=lambda ticket: (ticket.order, os.path.basename(ticket.path), ticket.path))


def _list_changes(paths: list[str]) -> list[float]:
    """When these files were changed; whoever owns the directory may have removed one."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            found.append(os.lstat(path).st_ctime)
    return found


def _parse_name(name: str) -> int | None:
    """When a ticket says that it arrived; None when it is no ticket's name."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    order, _, rest = name[len(PREFIX) : -len(SUFFIX)].partition("-")
    return int(order) if order.isascii() and order.isdigit() and len(order) <= 20 and rest else None


def read_living(
    listed: ListedTicket, cards: frozenset[str] | None = None, *, key: tuple[int, str, int] | None = None
) -> FoundTicket | None:
    """A ticket if its author still waits (for one of `cards`, before `key`); None otherwise."""
    try:
        descriptor = os.open(listed.path, _READ)
    except OSError:
        return None
    try:
        if not _is_held(descriptor):
            return None
        data = os.read(descriptor, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return None
        value = wire.parse_object(data, listed.path)
        if _is_left(value):
            return None
        about = value.get("cards")
        if not isinstance(about, list) or not all(isinstance(card, str) for card in about):
            return None
        if cards is not None and cards.isdisjoint(about):
            return None
        ticket = wire.decode(Ticket, value, listed.path)
        if not _is_sound(ticket) or ticket.order != _parse_name(os.path.basename(listed.path)):
            return None
        user = name_owner(listed.uid, one_line(ticket.user, LONGEST_NAME))
        found = FoundTicket(
            listed.path, replace(ticket, user=user, order=listed.order), tuple(about), os.fstat(descriptor).st_uid
        )
    except (OSError, wire.WireError):
        return None
    finally:
        os.close(descriptor)
    return found if found.uid == listed.uid and (key is None or found.key < key) else None


def _is_sound(ticket: Ticket) -> bool:
    """Whether somebody can be waiting like that; JSON knows numbers with which arithmetic fails."""
    held = ticket.hold_s is None or 0 <= ticket.hold_s < 1e12
    return is_run_id(ticket.run_id) and 0 < ticket.count <= MOST_COUNT and 0 <= ticket.order < 1 << 63 and held


def _is_left(value: dict[str, Any]) -> bool:
    """Whether the author is provably dead: then it is somebody else who holds the lock, as anybody can."""
    namespace = own_pid_namespace()
    if not namespace or value.get("pid_namespace") != namespace:
        return False
    try:
        author = wire.decode(ProcessId, value.get("author"))
    except wire.WireError:
        return False
    return author.pid > 0 and ProcessTable().is_alive(author, namespace) is False


def is_living(path: str) -> bool:
    """Whether a ticket is there and its author waits."""
    return _ask_lock(path) is True


def is_dead(path: str) -> bool:
    """Whether the author of a ticket is provably gone."""
    return _ask_lock(path) is False


def _ask_lock(path: str) -> bool | None:
    """Whether the author of a ticket holds its lock; None when it cannot be opened."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    try:
        return _is_held(descriptor) and not _is_left(wire.parse_object(os.read(descriptor, MAX_BYTES), path))
    except (OSError, wire.WireError):
        # Somebody holds it, and it does not say who waits.
        return True
    finally:
        os.close(descriptor)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def find_ahead(
    area: LeaseArea, cards: frozenset[str], key: tuple[int, str, int] | None, *, last: bool = False
) -> FoundTicket | None:
    """The first (or the `last`) living ticket before ours that asks for one of `cards`; None when it is our turn."""
    listed = list_earlier(area, key)
    for ticket in reversed(listed) if last else listed:
        found = read_living(ticket, cards, key=key)
        if found is not None:
            return found
    return None


def busy_from(found: FoundTicket, device: LeasedDevice) -> BusyReason:
    """The reason that an earlier ticket gives for `device`."""
    ticket = found.ticket
    return BusyReason(
        device=device.uuid,
        witness=Witness.QUEUE,
        holder=f"{ticket.user}, run {ticket.run_id}, waits for it and came first",
        run_id=ticket.run_id,
    )
