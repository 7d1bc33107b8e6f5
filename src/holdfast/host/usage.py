"""The ledger of the box: who had which cards for how long. One file for each account and month, written by its owner.

Owns ``usage-<uid>.<YYYYMM>.jsonl`` in the lease area: a line for each lease, appended by the supervisor just before it
gives the cards back, so a line may come twice (`core.usage.merge_uses`) and is never missing after a normal end. Of a
lease whose supervisor died, whoever clears it away writes the line: its end is then the last sign of life.

A line counts only in a plain file of the account that it names. An account can falsify or remove its own ledger, as
everything here is advisory; it cannot touch that of another.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from typing import TYPE_CHECKING

from ..core.usage import DAY_S, LONGEST_S, Use, merge_uses
from ..model import wire
from . import clock, lease_area, lease_records, processes
from .files import remove_quietly, write_all

if TYPE_CHECKING:
    from ..model.lease import LeaseRecord
    from .lease_area import Area
    from .lease_records import SeenRecord

PREFIX, SUFFIX = "usage-", ".jsonl"
MAX_BYTES = 32 * 1024**2
"""About a hundred thousand leases in a month; what comes after is not written down."""
KEPT_MONTHS = 13
LONGEST_TEXT = 200
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def ledger_name(uid: int, at_s: float) -> str:
    """The name of an account's ledger for the month of an epoch time (UTC)."""
    return f"{PREFIX}{uid}.{time.strftime('%Y%m', time.gmtime(at_s))}{SUFFIX}"


def describe_record(record: LeaseRecord, *, end_s: float | None = None, live: bool = False) -> Use:
    """The use that a lease's record tells of, up to now or to `end_s` (epoch seconds), which is then a guess.

    Measured on the clock that runs through suspend and that nobody can set, where the record was made on this boot.
    """
    begin_s, now_s = _parse(record.since), clock.epoch_s()
    last_s = now_s if end_s is None else min(end_s, now_s)
    held_s = max(0.0, last_s - begin_s)
    if end_s is None and record.since_boot_ns > 0 and record.supervisor.boot_id == clock.boot_id():
        held_s = max(0.0, (clock.boottime_ns() - record.since_boot_ns) / 1e9)
    cards = tuple(dict.fromkeys(device.uuid for device in record.devices))
    return Use(
        run_id=record.run_id,
        attempt=record.attempt,
        uid=record.uid,
        user=record.user,
        cards=cards,
        begin_s=begin_s,
        end_s=max(last_s, begin_s),
        gpu_s=round(held_s * len(cards), 3),
        share=record.share,
        simulated=record.simulated,
        exact=end_s is None,
        live=live,
    )


def note(area: Area, record: LeaseRecord, *, end_s: float | None = None) -> bool:
    """Write a lease down that ends now, or ended at `end_s`; False when it could not be. Does not raise.

    Only the lessee's own account does, and root for somebody whose leavings it clears.
    """
    if os.geteuid() not in (0, record.uid) or not area.directories:
        return False
    use = describe_record(record, end_s=end_s)
    path = f"{area.directories[0]}/{ledger_name(use.uid, use.end_s)}"
    try:
        _append(path, _encode(use), use.uid)
    except OSError:
        return False
    return True


def note_left(area: Area, seen: SeenRecord) -> bool:
    """Write a lease down whose supervisor died without doing so; its end is the last sign of life that we see."""
    record = seen.record
    directory = wire.attempt_dir(record.run_dir, record.attempt) if record.run_dir else ""
    signs = [seen.path]
    if directory and record.uid == os.geteuid():
        signs += [f"{directory}/{name}" for name in (wire.STATE, wire.HEALTH, wire.OUTPUT, wire.EVENTS)]
    times = []
    for path in signs:
        try:
            times.append(os.lstat(path).st_mtime)
        except OSError:
            continue
    return note(area, record, end_s=max(times, default=clock.epoch_s()))


def _encode(use: Use) -> bytes:
    line = {
        "schema": 1,
        "run": use.run_id,
        "attempt": use.attempt,
        "uid": use.uid,
        "user": use.user,
        "cards": use.cards,
        "from": clock.format_utc(use.begin_s),
        "to": clock.format_utc(use.end_s),
        "gpu_seconds": use.gpu_s,
        "share": use.share,
        "simulated": use.simulated,
        "exact": use.exact,
    }
    return (json.dumps(line) + "\n").encode()


def _append(path: str, data: bytes, uid: int) -> None:
    """One write to a plain file of the account; what an earlier crash tore is closed off first."""
    try:
        descriptor = os.open(path, _APPEND)
    except FileNotFoundError:
        descriptor = _create(path, uid)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_uid != uid:
            raise OSError(1, "it is not a plain file of this account", path)
        if facts.st_size > MAX_BYTES:
            raise OSError(27, "this month's ledger is full", path)
        torn = facts.st_size > 0 and os.pread(descriptor, 1, facts.st_size - 1) != b"\n"
        write_all(descriptor, b"\n" + data if torn else data)
    finally:
        os.close(descriptor)


def _create(path: str, uid: int) -> int:
    """This month's ledger, opened; another run of the account may end in the same moment and make it first."""
    try:
        descriptor = os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, _APPEND)
    os.fchmod(descriptor, 0o644)
    if os.geteuid() != uid:
        os.fchown(descriptor, uid, -1)
    _remove_old(path, uid)
    return descriptor


def _remove_old(path: str, uid: int) -> None:
    """A new month begins: what is older than a year of this account goes."""
    directory, name = os.path.split(path)
    newest = _month_of(name)
    for old in os.listdir(directory):
        if old.startswith(f"{PREFIX}{uid}.") and _parse_name(old) is not None and newest - _month_of(old) > KEPT_MONTHS:
            remove_quietly(f"{directory}/{old}")


def _month_of(name: str) -> int:
    month = name.removesuffix(SUFFIX).rpartition(".")[2]
    return int(month[:4]) * 12 + int(month[4:])


def _parse_name(name: str) -> int | None:
    """The account of a ledger by its name; None when it is no ledger."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    uid, _, month = name[len(PREFIX) : -len(SUFFIX)].partition(".")
    plain = uid.isascii() and uid.isdigit() and month.isascii() and month.isdigit() and len(month) == 6
    return int(uid) if plain and len(uid) <= 10 else None


class Ledgers:
    """The ledgers of an area, read again only where they have grown: whoever waits in line asks often."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self._read: dict[str, tuple[tuple[int, int], int, list[Use]]] = {}

    def read(
        self, area: Area, *, since_s: float, uids: frozenset[int] | None = None
    ) -> tuple[tuple[Use, ...], tuple[str, ...]]:
        """The uses that ended after `since_s` (of these accounts), each once, and what was wrong with some files."""
        # A month that has not come is no ledger: else anybody could have any number of them read.
        first, last = (
            time.strftime("%Y%m", time.gmtime(max(at_s, 0.0))) for at_s in (since_s, clock.epoch_s() + DAY_S)
        )
        found: list[Use] = []
        wrong: list[str] = []
        for directory, name in lease_area.list_names(area):
            uid = _parse_name(name)
            month = name.removesuffix(SUFFIX).rpartition(".")[2]
            if uid is None or not first <= month <= last or (uids is not None and uid not in uids):
                continue
            try:
                uses = self._read_one(f"{directory}/{name}", uid)
            except FileNotFoundError:
                continue
            except OSError as error:
                wrong.append(f"{directory}/{name}: {error.strerror or error}")
                continue
            found.extend(use for use in uses if use.end_s >= since_s)
        return merge_uses(found), tuple(wrong)

    def _read_one(self, path: str, uid: int) -> list[Use]:
        descriptor = os.open(path, _READ)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
                raise OSError(1, "not a plain file: not counted")
            if facts.st_uid != uid:
                raise OSError(1, f"was written by {processes.user_name(facts.st_uid)}, not by uid {uid}: not counted")
            identity = facts.st_dev, facts.st_ino
            before, done, uses = self._read.get(path, (identity, 0, []))
            if before != identity or done > facts.st_size:
                done, uses = 0, []
            data = os.pread(descriptor, min(facts.st_size, MAX_BYTES + 4096) - done, done)
        finally:
            os.close(descriptor)
        whole = data.rfind(b"\n") + 1
        user = processes.user_name(uid)
        uses = [*uses, *(use for line in data[:whole].splitlines() if (use := _decode(line, uid, user)))]
        self._read[path] = identity, done + whole, uses
        return uses


def _decode(line: bytes, uid: int, user: str) -> Use | None:
    """A line of the ledger; None when it is none, or says what cannot be."""
    try:
        value = json.loads(line)
        begin_s, end_s = _parse(value["from"]), _parse(value["to"])
        cards = tuple(str(card)[:LONGEST_TEXT] for card in value["cards"])
        gpu_s, attempt = float(value["gpu_seconds"]), int(value["attempt"])
        run_id = str(value["run"])[:LONGEST_TEXT]
        if value["uid"] != uid or not math.isfinite(gpu_s) or not 0 <= gpu_s <= LONGEST_S * len(cards):
            return None
        marks = {name: value.get(name) is True for name in ("share", "simulated", "exact")}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return Use(run_id, attempt, uid, user, cards, begin_s, max(end_s, begin_s), gpu_s, **marks)


def _parse(text: object) -> float:
    """Epoch seconds of a stored time; of one that is none, as little as can be said: now."""
    try:
        return clock.parse_utc(str(text))
    except (ValueError, IndexError):
        return clock.epoch_s()


def read_live(area: Area) -> tuple[Use, ...]:
    """The leases that hold now, as uses up to this moment."""
    seen_records, _ = lease_records.read_records(area)
    holding = (seen.record for seen in seen_records if lease_records.judge(seen).holds)
    return merge_uses(describe_record(record, live=True) for record in holding)


def find_week_begin(now_s: float) -> float:
    """The epoch time of this week's Monday, 00:00 local time."""
    local = time.localtime(now_s)
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday - local.tm_wday, 0, 0, 0, 0, 0, -1))
