"""Reservations on disk: cards that an account keeps for a span of time, for everybody to read.

Owns ``reservation-<id>.json`` in the lease area, one for each, written by its owner only and counted only when the file
is a plain one of the account that it names. Which of them count is `core.cards.reservations`'s to say. Making one is
done under one lock of the whole box, so that of two at once the second sees the first.

It outlives a reboot where the area does. It binds whoever uses holdfast, like everything in the area.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.cards.reservations import Reservation, is_over, sort_out
from holdfast.core.control_characters import one_line
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.files.public_files import Complaint, find_own, list_public, tell
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, NoSuchRun, NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.record import replace

from . import area as lease_area
from . import holders as lease_holders
from . import lock_files, records
from .area import LeaseArea

if TYPE_CHECKING:
    from holdfast.core.rules.rules import Rules

PREFIX, SUFFIX = "reservation-", ".json"
GATE = "reservations.gate"
MAX_BYTES = 1 << 14
MOST_OF_ONE = 32
"""Files of one account that are read: anybody can put any number there."""
LONGEST_TEXT = 200
LARGEST_S = 1e11
"""The year 5138; what is later is no time that could be shown."""
MISDATED_S = 60.0
"""A file that claims to be older or younger than its inode by more is as old as the inode: the first one wins, and how
far ahead one may begin counts from there, so age is worth something. The inode's change time cannot be set by its
owner. Source: utimensat(2)."""
_TRIES, _PAUSE_S = 100, 0.02


def list_reservations(area: LeaseArea, rules: Rules) -> tuple[tuple[Reservation, ...], tuple[str, ...]]:
    """Those that count and are not over, in the order in which they were made, and what is wrong with others.

    Raises:
        StorageError: the area cannot be read.
    """
    found, wrong = _read_all(area)
    valid, void = sort_out(found, rules)
    return valid, (*wrong, *(f"{item.id} of {item.user} does not count: {why}" for item, why in void))


def _read_all(area: LeaseArea) -> tuple[tuple[Reservation, ...], tuple[str, ...]]:
    found: dict[str, Reservation] = {}
    now_s, boot, boot_s = clock.epoch_s(), clock.boot_id(), clock.boottime_ns() / 1e9
    names = lease_area.list_names(area, PREFIX)
    listed, wrong = list_public(names, PREFIX, SUFFIX, most=MOST_OF_ONE, most_bytes=MOST_OF_ONE * MAX_BYTES)
    for file in listed:
        try:
            record = _read(file.path)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError) as error:
            wrong.append(Complaint(file.uid, file.path, str(error)))
            continue
        if isinstance(record, str):
            wrong.append(Complaint(file.uid, file.path, record))
        elif not is_over(record, now_s, boot, boot_s):
            found.setdefault(record.id, record)
    return tuple(found.values()), tell(wrong)


def _read(path: str) -> Reservation | str:
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        return "not a plain file: ignored"
    record = wire.from_bytes(Reservation, files.read_bytes(path, limit=MAX_BYTES), path)
    if facts.st_uid != record.uid:
        return f"names uid {record.uid} and was written by uid {facts.st_uid}: not trusted"
    if os.path.basename(path) != f"{PREFIX}{record.id}{SUFFIX}":
        return "its name and its content differ: not trusted"
    if not (record.id.isascii() and record.id.isalnum()):
        return "its name is none of holdfast's: not trusted"
    if not all(abs(at_s) < LARGEST_S for at_s in (record.begin_s, record.end_s, record.made_s, record.made_boot_s)):
        return "its times are no times: not trusted"
    return replace(
        record,
        user=processes.user_name(facts.st_uid),
        reason=one_line(record.reason, LONGEST_TEXT),
        made_s=min(max(record.made_s, facts.st_ctime - MISDATED_S), facts.st_ctime + MISDATED_S),
    )


def reserve(
    area: LeaseArea,
    rules: Rules,
    *,
    span: tuple[float, float],
    choose: Callable[[dict[str, str]], tuple[str, ...]],
    reason: str = "",
    simulated: bool = False,
) -> Reservation:
    """Keep cards for this account from ``span[0]`` to ``span[1]`` (epoch seconds).

    `choose` gets the UUIDs that are not to be had, each with the reason, and answers those to keep, or raises.

    Raises:
        UsageError: the rules do not allow it, or the span has passed.
        ResourceBusy: somebody else has one of the cards then.
        StorageError, NotPermitted: the area cannot be used.
    """
    lock = lock_files.LockFiles()
    try:
        _lock(lock, f"{area.directories[0]}/{GATE}")
        existing, _ = list_reservations(area, rules)
        if sum(item.uid == os.geteuid() for item in existing) >= MOST_OF_ONE:
            raise UsageError(f"this account has {MOST_OF_ONE} reservations", hint="end one: holdfast gpus unreserve ID")
        wanted = _make(span, choose(find_taken(area, existing, span)), reason, simulated=simulated)
        why = next((why for item, why in sort_out([*existing, wanted], rules)[1] if item.id == wanted.id), "")
        if why:
            raise UsageError(f"this reservation would not count: {why}", hint="see `holdfast gpus reservations`")
        _write(area, wanted)
        try:
            # Somebody may have put another gate in place of ours. Whoever locks that one looks at reservations after
            # that, and we at the gate after ours is out; a run that took a card in this very moment looks at them after
            # its record is out, and we at records after ours is: so one of two always sees the other.
            lock.require_current()
            late = find_taken(area, existing, span)
            if clash := next((late[card] for card in wanted.cards if card in late), None):
                raise ResourceBusy(f"a card was taken while it was being reserved: {clash}", hint="try again")
        except HoldfastError:
            _remove(area, wanted.id)
            raise
        return wanted
    finally:
        lock.close()


def find_taken(area: LeaseArea, existing: tuple[Reservation, ...], span: tuple[float, float]) -> dict[str, str]:
    """The UUIDs that cannot be reserved for a span, with who has them: reservations, and the leases of others."""
    taken: dict[str, str] = {}
    for found in existing:
        if found.begin_s < span[1] and span[0] < found.end_s:
            taken.update(dict.fromkeys(found.cards, f"reserved by {describe(found)}"))
    judge = records.Judge()
    for seen in records.read_records(area)[0]:
        record = seen.record
        ends_s = _parse(record.until)
        if record.uid == os.geteuid() or (ends_s is not None and ends_s <= span[0]):
            continue
        if judge.judge(seen).holds:
            until = "and nothing says until when" if ends_s is None else f"until {format_time(ends_s)} at the latest"
            words = f"leased to {record.user}, run {record.run_id}, {until}"
            taken.update({device.card_uuid: words for device in record.devices})
    return taken


def _parse(text: str | None) -> float | None:
    try:
        return None if text is None else clock.parse_utc(text)
    except (ValueError, IndexError):
        return None


def remove(area: LeaseArea, name: str) -> Reservation:
    """End a reservation of this account, or as root anybody's.

    Raises:
        NoSuchRun: there is none of that id.
        NotPermitted: it is somebody else's.
    """
    found = next((item for item in _read_all(area)[0] if item.id == name), None)
    if found is None:
        raise NoSuchRun(f"there is no reservation {name}", hint="see `holdfast gpus reservations`")
    if os.geteuid() not in (0, found.uid):
        raise NotPermitted(f"{name} is a reservation of {found.user}", hint=f"ask {found.user} or an administrator")
    _remove(area, name)
    return found


def sweep(area: LeaseArea) -> None:
    """Remove reservations of this account whose time has passed."""
    now_s, boot, boot_s = clock.epoch_s(), clock.boot_id(), clock.boottime_ns() / 1e9
    for path in find_own(lease_area.list_names(area, PREFIX), PREFIX, SUFFIX, os.geteuid()):
        try:
            record = _read(path)
        except (OSError, wire.WireError):
            continue
        if isinstance(record, Reservation) and is_over(record, now_s, boot, boot_s):
            files.remove_quietly(path)


def describe(found: Reservation) -> str:
    """Who, when and why, in words; times are local."""
    why = f": {found.reason}" if found.reason else ""
    return f"{found.user} from {format_time(found.begin_s)} to {format_time(found.end_s)} ({found.id}){why}"


def format_time(at_s: float) -> str:
    """An epoch time as people of this box read it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


def _make(span: tuple[float, float], cards: tuple[str, ...], reason: str, *, simulated: bool) -> Reservation:
    uid, now_s = os.geteuid(), clock.epoch_s()
    if span[1] <= now_s:
        raise UsageError("that time has passed", hint="say --from and --for")
    return Reservation(
        id=f"r{os.urandom(4).hex()}",
        uid=uid,
        user=processes.user_name(uid),
        cards=cards,
        begin_s=span[0],
        end_s=span[1],
        made_s=now_s,
        boot_id=clock.boot_id(),
        made_boot_s=clock.boottime_ns() / 1e9,
        reason=" ".join(reason.split())[:LONGEST_TEXT],
        simulated=simulated,
    )


def _lock(lock: lock_files.LockFiles, path: str) -> None:
    for _ in range(_TRIES):
        if lock.try_lock(path, exclusive=True):
            return
        time.sleep(_PAUSE_S)
    holder = lease_holders.name_holders(path, lease_holders.read_kernel_locks() or ())
    raise StorageError(f"{path} is locked by {holder}, who does not let go", hint="ask them, or an administrator")


def _write(area: LeaseArea, record: Reservation) -> None:
    written: list[str] = []
    for directory in area.directories:
        path = f"{directory}/{PREFIX}{record.id}{SUFFIX}"
        try:
            files.commit(path, wire.to_bytes(record), mode=0o644)
        except OSError as error:
            for done in written:
                files.remove_quietly(done)
            hint = "see holdfast's docs/sharing.md"
            raise StorageError(f"{path} cannot be written: {error.strerror}", hint=hint) from error
        written.append(path)


def _remove(area: LeaseArea, name: str) -> None:
    for directory in area.directories:
        files.remove_quietly(f"{directory}/{PREFIX}{name}{SUFFIX}")
