"""The ledger of the box: who had which cards for how long. One file for each account and month, written by its owner.

Owns ``usage-<uid>.<YYYYMM>.<random>.jsonl`` in the lease area: a line for each lease, appended by the supervisor just
before it gives the cards back, so a line may come twice (`core.cards.usage.merge_uses`) and is never missing after a
normal end. Of a lease whose supervisor died, whoever clears it away writes the line: its end is then the last sign of
life.

A line counts only in a plain file of the account that it names. An account can falsify or remove its own ledger, as
everything here is advisory; it cannot touch that of another.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import time
from typing import Any

from holdfast.core.cards.usage import DAY_S, LONGEST_S, LeaseUse, merge_uses
from holdfast.core.control_characters import one_line
from holdfast.host import clock
from holdfast.host.files.files import remove_quietly, write_all
from holdfast.host.files.public_files import Complaint, find_own, list_public, random_name, tell
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.lease import LeaseRecord
from holdfast.model.record import replace

from . import area as lease_area
from . import records
from .area import LeaseArea
from .records import FoundRecord

PREFIX, SUFFIX = "usage-", ".jsonl"
MAX_BYTES = 16 * 1024**2
"""About fifty thousand leases in a month; what comes after is not written down."""
MOST_FILES, MOST_BYTES = 32, 2 * MAX_BYTES
"""Of one account among those that are asked for; two runs that end at once may begin a month twice."""
MOST_LINES, MOST_CARDS = 100_000, 500_000
"""Of one account likewise, in all of these files: leases of eight cards each that fill them name no more cards."""
KEPT_MONTHS = 13
LONGEST_TEXT = 200
LONGEST_LINE = 1 << 16
"""What is longer is no line of holdfast's: it names a few hundred slices at most."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def ledger_stem(uid: int, at_s: float) -> str:
    """How the names of an account's ledgers for the month of an epoch time (UTC) begin."""
    return f"{PREFIX}{uid}.{time.strftime('%Y%m', time.gmtime(at_s))}"


def _find_ledger(area: LeaseArea, uid: int, at_s: float) -> str:
    """The account's ledger of that month, or where a new one goes."""
    first, stem = replace(area, directories=area.directories[:1]), ledger_stem(uid, at_s)
    own = find_own(lease_area.list_names(first, stem), f"{stem}.", SUFFIX, uid)
    return own[0] if own else f"{area.directories[0]}/{random_name(stem, SUFFIX)}"


def describe_record(record: LeaseRecord, *, end_s: float | None = None, live: bool = False) -> LeaseUse:
    """The use that a lease's record tells of, up to now or to `end_s` (epoch seconds), which is then a guess.

    Measured on the clock that runs through suspend and that nobody can set, where the record was made on this boot.
    """
    begin_s, now_s = _parse(record.since), clock.epoch_s()
    last_s = now_s if end_s is None else min(end_s, now_s)
    held_s = max(0.0, last_s - begin_s)
    if end_s is None and record.since_boot_ns > 0 and record.supervisor.boot_id == (clock.boot_id() or None):
        held_s = max(0.0, (clock.boottime_ns() - record.since_boot_ns) / 1e9)
    cards = tuple(dict.fromkeys(device.uuid for device in record.devices))
    return LeaseUse(
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


def record_use(area: LeaseArea, record: LeaseRecord, *, end_s: float | None = None) -> bool:
    """Write a lease down that ends now, or ended at `end_s`; False when it could not be. Does not raise.

    Only the lessee's own account does, and root for somebody whose leavings it clears.
    """
    if os.geteuid() not in (0, record.uid) or not area.directories:
        return False
    use = describe_record(record, end_s=end_s)
    try:
        _append(_find_ledger(area, use.uid, use.end_s), _encode(use), use.uid)
    except (OSError, StorageError):
        return False
    return True


def note_left(area: LeaseArea, seen: FoundRecord) -> bool:
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
    return record_use(area, record, end_s=max(times, default=clock.epoch_s()))


def _encode(use: LeaseUse) -> bytes:
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
    """This month's ledger, new and opened."""
    descriptor = os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    os.fchmod(descriptor, 0o644)
    if os.geteuid() != uid:
        os.fchown(descriptor, uid, -1)
    _remove_old(path, uid)
    return descriptor


def _remove_old(path: str, uid: int) -> None:
    """A new month begins: what is older than a year of this account goes."""
    directory, name = os.path.split(path)
    this = _parse_name(name)
    newest = 0 if this is None else _count_months(this[1])
    for old in os.listdir(directory):
        parsed = _parse_name(old)
        is_old = parsed is not None and parsed[0] == uid and newest - _count_months(parsed[1]) > KEPT_MONTHS
        if is_old and find_own([(directory, old)], PREFIX, SUFFIX, uid):
            remove_quietly(f"{directory}/{old}")


def _count_months(month: str) -> int:
    return int(month[:4]) * 12 + int(month[4:])


def _parse_name(name: str) -> tuple[int, str] | None:
    """The account and the month (YYYYMM) of a ledger by its name; None when it is no ledger."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    uid, _, rest = name[len(PREFIX) : -len(SUFFIX)].partition(".")
    month = rest.partition(".")[0]
    plain = uid.isascii() and uid.isdigit() and month.isascii() and month.isdigit() and len(month) == 6
    return (int(uid), month) if plain and len(uid) <= 10 else None


class _ReadLedger:
    """What one file said so far: up to where it was read, and how many lines and cards that were."""

    def __init__(self, identity: tuple[int, int]) -> None:
        self.identity, self.done, self.is_cut = identity, 0, False
        self.lines = self.cards = 0
        self.uses: list[LeaseUse] = []

    def take(self, data: bytes, uid: int, *, most_lines: int, most_cards: int) -> None:
        """Take in what has come since, line by line, up to so many lines and cards of this file."""
        user = processes.user_name(uid)
        for line in io.BytesIO(data):
            if not line.endswith(b"\n"):
                return
            if self.lines >= most_lines or self.cards >= most_cards:
                self.is_cut = True
                return
            self.done += len(line)
            self.lines += 1
            value = _parse_line(line) if len(line) <= LONGEST_LINE else {}
            cards = value.get("cards")
            self.cards += len(cards) if isinstance(cards, list) else 0
            if use := _decode(value, uid, user):
                self.uses.append(use)


class UsageLedgers:
    """The ledgers of an area, read again only where they have grown: whoever waits in line asks often."""

    def __init__(self) -> None:
        """Nothing has been read."""
        self._read: dict[str, _ReadLedger] = {}

    def read(
        self, area: LeaseArea, *, since_s: float, uids: frozenset[int] | None = None
    ) -> tuple[tuple[LeaseUse, ...], tuple[str, ...]]:
        """The uses that ended after `since_s` (of these accounts), each once, and what was wrong with some files."""
        # A month that has not come is no ledger: else anybody could have any number of them read.
        first, last = (
            time.strftime("%Y%m", time.gmtime(max(at_s, 0.0))) for at_s in (since_s, clock.epoch_s() + DAY_S)
        )
        found: list[LeaseUse] = []
        wanted: list[tuple[str, str]] = []
        for directory, name in lease_area.list_names(area, PREFIX):
            parsed = _parse_name(name)
            if parsed is not None and first <= parsed[1] <= last and (uids is None or parsed[0] in uids):
                wanted.append((directory, name))
        listed, wrong = list_public(wanted, PREFIX, SUFFIX, most=MOST_FILES, most_bytes=MOST_BYTES, last=True)
        self._forget_others({file.path for file in listed}, uids)
        spent: dict[int, tuple[int, int]] = {}
        for file in listed:
            uid, _ = _parse_name(file.name) or (-1, "")
            account = processes.find_account(uid)
            lines, cards = spent.get(account, (0, 0))
            try:
                ledger = self._read_one(file.path, uid, most_lines=MOST_LINES - lines, most_cards=MOST_CARDS - cards)
            except FileNotFoundError:
                continue
            except OSError as error:
                wrong.append(Complaint(file.uid, file.path, str(error.strerror or error)))
                continue
            spent[account] = lines + ledger.lines, cards + ledger.cards
            if ledger.is_cut:
                wrong.append(Complaint(file.uid, file.path, "too many lines or cards; not all of them were read"))
            found.extend(use for use in ledger.uses if use.end_s >= since_s)
        return merge_uses(found), tell(wrong)

    def _forget_others(self, listed: set[str], uids: frozenset[int] | None) -> None:
        """Drop what was read of these accounts and is listed no more: a ledger can have a new name for each look."""
        for path in self._read.keys() - listed:
            parsed = _parse_name(os.path.basename(path))
            if uids is None or parsed is None or parsed[0] in uids:
                del self._read[path]

    def _read_one(self, path: str, uid: int, *, most_lines: int, most_cards: int) -> _ReadLedger:
        descriptor = os.open(path, _READ)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
                raise OSError(1, "not a plain file: not counted")
            if facts.st_uid != uid:
                raise OSError(1, f"was written by {processes.user_name(facts.st_uid)}, not by uid {uid}: not counted")
            identity = facts.st_dev, facts.st_ino
            ledger = self._read.get(path)
            if ledger is None or ledger.identity != identity or ledger.done > facts.st_size:
                ledger = _ReadLedger(identity)
            left = 0 if ledger.is_cut else min(facts.st_size, MAX_BYTES + 4096) - ledger.done
            data = os.pread(descriptor, left, ledger.done)
        finally:
            os.close(descriptor)
        ledger.take(data, uid, most_lines=most_lines, most_cards=most_cards)
        ledger.is_cut = ledger.is_cut or facts.st_size > MAX_BYTES + 4096
        self._read[path] = ledger
        return ledger


def _parse_line(line: bytes) -> dict[str, object]:
    """What a line of the ledger says; nothing when it is none."""
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _decode(value: dict[str, Any], uid: int, user: str) -> LeaseUse | None:
    """The use that a line tells of; None when it is none, or says what cannot be: no lease has so many cards."""
    try:
        if not isinstance(value["cards"], list) or len(value["cards"]) > records.MOST_DEVICES:
            return None
        begin_s, end_s = _parse(value["from"]), _parse(value["to"])
        cards = tuple(one_line(str(card), LONGEST_TEXT) for card in value["cards"])
        gpu_s, attempt = float(value["gpu_seconds"]), int(value["attempt"])
        run_id = one_line(str(value["run"]), LONGEST_TEXT)
        if value["uid"] != uid or not math.isfinite(gpu_s) or not 0 <= gpu_s <= LONGEST_S * len(cards):
            return None
        marks = {name: value.get(name) is True for name in ("share", "simulated", "exact")}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return LeaseUse(run_id, attempt, uid, user, cards, begin_s, max(end_s, begin_s), gpu_s, **marks)


def _parse(text: object) -> float:
    """Epoch seconds of a stored time; of one that is none, as little as can be said: now."""
    try:
        return clock.parse_utc(str(text))
    except (ValueError, IndexError):
        return clock.epoch_s()


def read_live(area: LeaseArea) -> tuple[LeaseUse, ...]:
    """The leases that hold now, as uses up to this moment."""
    seen_records, _ = records.read_records(area)
    judge = records.Judge()
    holding = (seen.record for seen in seen_records if judge.judge(seen).holds)
    return merge_uses(describe_record(record, live=True) for record in holding)


def find_week_begin(now_s: float) -> float:
    """The epoch time of this week's Monday, 00:00 local time."""
    local = time.localtime(now_s)
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday - local.tm_wday, 0, 0, 0, 0, 0, -1))
