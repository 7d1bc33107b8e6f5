"""Cards set aside on this host: who said so, why, when, on what evidence; until cleared (GPUH-09).

One file for each card and account in the lease area, ``quarantine-<uuid>.<uid>.json``, readable for everybody, written
by its owner only. It binds whoever wrote it; root's bind everybody; those of others are only told, so that no stranger
can take cards away from the box. Clearing leaves a file that says so: what the kernel's log said about the card before
that moment does not count any more.

It outlives a reboot where the area does; an area in memory (/run, /dev/shm) forgets.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model import wire
from ..model.errors import NotPermitted, StorageError, UsageError
from . import clock, files, lease_area, processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.gpu import Inventory
    from .lease_area import Area

PREFIX, SUFFIX = "quarantine-", ".json"
MAX_BYTES = 1 << 16
MOST_EVIDENCE = 10
LONGEST_TEXT = 500
LONGEST_TIME = 40
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One account's word on one card. `monotonic_s` is when, on this boot's clock; `cleared` means given back."""

    uuid: str
    reason: str
    user: str
    uid: int
    at: str
    boot_id: str
    monotonic_s: float
    evidence: tuple[str, ...] = ()
    cleared: bool = False

    @property
    def binding(self) -> bool:
        """Whether it counts for this account: its own word, or root's."""
        return not self.cleared and self.uid in (0, os.geteuid())

    def describe(self) -> str:
        """Who, when and why, in one line."""
        return f"{self.reason} (set aside by {self.user}, {self.at[:16]}Z)"


def quarantine(uuid: str, reason: str, evidence: str | Sequence[str] = (), *, area: Area | None = None) -> Quarantine:
    """Set a card aside on this host, for this account (for everybody when root says it), until `clear`.

    Raises:
        UsageError: no card can have that UUID, or the reason is empty.
        StorageError, NotPermitted: the lease area cannot be used.
    """
    if not reason.strip():
        raise UsageError("a card is set aside for a reason", hint="say it with --reason TEXT")
    record = _record(uuid, reason.strip()[:LONGEST_TEXT])
    lines = [evidence] if isinstance(evidence, str) else evidence
    record = replace(record, evidence=tuple(text[:LONGEST_TEXT] for text in lines[:MOST_EVIDENCE]))
    _write(_open(area), record)
    return record


def clear(uuid: str, *, reason: str = "", area: Area | None = None) -> tuple[Quarantine, ...]:
    """Give a card back; answers what was in the way. Root clears everybody's, others only their own.

    A card that nobody has set aside is marked as cleared too: older lines of the kernel's log then do not count.

    Raises:
        NotPermitted: only root's word is in the way, and we are not root.
        UsageError, StorageError: as `quarantine`.
    """
    place = _open(area)
    record = replace(_record(uuid, reason[:LONGEST_TEXT] or "cleared"), cleared=True)
    standing = tuple(found for found in list_quarantined(place) if found.uuid == uuid)
    if os.geteuid() != 0:
        roots = [found for found in standing if found.uid == 0]
        if roots and not any(found.uid == os.geteuid() for found in standing):
            raise NotPermitted(
                f"card {uuid} was set aside by root: {roots[0].reason}",
                hint="ask an administrator for `holdfast gpus clear`",
            )
    _write(place, record)
    removed = tuple(found for found in standing if os.geteuid() == 0 or found.uid == os.geteuid())
    for found in removed:
        if found.uid != os.geteuid():
            for directory in place.directories:
                files.remove_quietly(f"{directory}/{_name(found)}")
    return removed


def list_quarantined(area: Area | None = None) -> tuple[Quarantine, ...]:
    """Every card that somebody has set aside, binding or not. Creates nothing.

    Raises:
        StorageError, NotPermitted: the lease area cannot be used.
    """
    return tuple(record for record in _read_all(_open(area, create=False))[0] if not record.cleared)


def cleared_since(uuid: str, area: Area | None = None) -> float:
    """When this card was last cleared by us or root, in seconds of this boot's monotonic clock; 0.0 if it was not."""
    found, _ = _read_all(_open(area, create=False), binding=True)
    boot = clock.boot_id()
    times = [
        record.monotonic_s
        for record in found
        if record.cleared and record.uuid == uuid and record.boot_id == boot and record.uid in (0, os.geteuid())
    ]
    return max(times, default=0.0)


def mark_quarantined(inventory: Inventory, area: Area | None = None) -> Inventory:
    """The same reading with the word of those that bind us on each card. Does not raise: no area, no word."""
    try:
        found, _ = _read_all(_open(area, create=False), binding=True)
    except (StorageError, NotPermitted):
        return inventory
    words = {record.uuid: record.describe() for record in found if record.binding}
    if not words:
        return inventory
    cards = tuple(
        replace(card, quarantined=words[card.uuid]) if card.uuid in words else card for card in inventory.cards
    )
    return replace(inventory, cards=cards)


def describe_others(area: Area | None = None) -> tuple[str, ...]:
    """Warnings: what other accounts have set aside, which does not bind us, and files that are no records."""
    try:
        found, wrong = _read_all(_open(area, create=False))
    except (StorageError, NotPermitted):
        return ()
    told = tuple(
        f"{record.user} has set card {record.uuid} aside: {record.reason}; that binds only {record.user}"
        for record in found
        if not record.binding and not record.cleared
    )
    return told + wrong


def _record(uuid: str, reason: str) -> Quarantine:
    if not _UUID.fullmatch(uuid):
        raise UsageError(f"{uuid!r} is not a card's UUID", hint="holdfast gpus --json shows them")
    uid = os.geteuid()
    return Quarantine(
        uuid=uuid,
        reason=reason,
        user=processes.user_name(uid),
        uid=uid,
        at=clock.utc_now(),
        boot_id=clock.boot_id(),
        monotonic_s=clock.monotonic_s(),
    )


def _open(area: Area | None, *, create: bool = True) -> Area:
    if area is not None:
        return area
    from .rulesfile import read_rules

    return lease_area.open_area(read_rules(os.environ).lease_dir, create=create)


def _name(record: Quarantine) -> str:
    return f"{PREFIX}{record.uuid}.{record.uid}{SUFFIX}"


def _write(area: Area, record: Quarantine) -> None:
    for directory in area.directories:
        path = f"{directory}/{_name(record)}"
        try:
            files.commit(path, wire.to_bytes(record), mode=0o644)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}", hint="see who owns it, and docs/leases.md"
            ) from error


def _read_all(area: Area, *, binding: bool = False) -> tuple[tuple[Quarantine, ...], tuple[str, ...]]:
    """Every trusted record once, and what was wrong with the others; `binding`: only those that can bind us.

    Those of others are not even opened then: a stranger with thousands of them must not slow every reading of a card.
    """
    ends = tuple(f".{uid}{SUFFIX}" for uid in (0, os.geteuid())) if binding else (SUFFIX,)
    found: dict[str, Quarantine] = {}
    wrong: list[str] = []
    for directory, name in lease_area.list_names(area):
        if not (name.startswith(PREFIX) and name.endswith(ends)):
            continue
        path = f"{directory}/{name}"
        try:
            record = _read(path)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError) as error:
            wrong.append(f"{path}: {error}")
            record = _stand_in(path, name)
        if isinstance(record, Quarantine):
            found.setdefault(name, record)
        elif record:
            wrong.append(f"{path}: {record}")
    return tuple(found.values()), tuple(wrong)


def _read(path: str) -> Quarantine | str:
    before = os.lstat(path)
    if not stat.S_ISREG(before.st_mode):
        return "not a regular file: ignored"
    record = wire.from_bytes(Quarantine, files.read_bytes(path, limit=MAX_BYTES), path)
    if before.st_uid != record.uid:
        return f"names uid {record.uid} and was written by uid {before.st_uid}: not trusted"
    if os.path.basename(path) != _name(record):
        return "its name and its content differ: not trusted"
    return replace(
        record,
        # Whose word it is says the file's owner, not the name that stands in it.
        user=processes.user_name(before.st_uid),
        # Line breaks could pass for lines of ours where it is shown.
        reason=" ".join(record.reason[:LONGEST_TEXT].split()),
        at=" ".join(record.at[:LONGEST_TIME].split()),
        evidence=record.evidence[:MOST_EVIDENCE],
    )


def _stand_in(path: str, name: str) -> Quarantine | str:
    """For a record that cannot be understood: its name and owner still say whose word on which card it was.

    Not so for a file with a second name: where root's file may be written by all, or the kernel lets anybody link
    (``fs.protected_hardlinks``, proc_sys_fs(5)), a stranger can give it that name.
    """
    uuid, _, number = name[len(PREFIX) : -len(SUFFIX)].rpartition(".")
    try:
        facts = os.lstat(path)
    except OSError:
        return ""
    owner = facts.st_uid
    if not _UUID.fullmatch(uuid) or number != str(owner) or facts.st_nlink != 1:
        return ""
    return Quarantine(uuid, "its record cannot be read", processes.user_name(owner), owner, "", "", 0.0)
