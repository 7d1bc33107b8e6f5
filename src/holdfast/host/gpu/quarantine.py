"""Cards set aside on this host: who said so, why, when, on what evidence; until cleared (GPUH-09).

One file for each card and account in the lease area, ``quarantine-<uuid>.<uid>.<random>.json``, readable for
everybody, written by its owner only. It binds whoever wrote it; root's bind everybody; those of others are only told,
so that no stranger can take cards away from the box. Clearing leaves a file that says so: what the kernel's log said
about the card before that moment does not count any more.

It outlives a reboot where the area does; an area in memory (/run, /dev/shm) forgets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from holdfast.core.control_characters import one_line
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.files.public_files import Complaint, find_own, list_public, random_name, tell
from holdfast.host.files.rules_file import read_rules
from holdfast.host.lease import area as lease_area
from holdfast.host.lease.area import LeaseArea
from holdfast.host.process import processes
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, StorageError, UsageError
from holdfast.model.gpu import Inventory
from holdfast.model.pattern import compile_later
from holdfast.model.record import record, replace

PREFIX, SUFFIX = "quarantine-", ".json"
MAX_BYTES = 1 << 16
MOST_EVIDENCE = 10
LONGEST_TEXT = 500
LONGEST_TIME = 40
MOST_FILES = 64
"""Of one account: a box has no more cards."""
_RANDOM = compile_later(r"[.][0-9a-f]{16}$")
_UUID = compile_later(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@record
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


def quarantine(
    uuid: str, reason: str, evidence: str | Sequence[str] = (), *, area: LeaseArea | None = None
) -> Quarantine:
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


def clear(uuid: str, *, reason: str = "", area: LeaseArea | None = None) -> tuple[Quarantine, ...]:
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
            for path in _find_paths(place, found):
                files.remove_quietly(path)
    return removed


def list_quarantined(area: LeaseArea | None = None) -> tuple[Quarantine, ...]:
    """Every card that somebody has set aside, binding or not. Creates nothing.

    Raises:
        StorageError, NotPermitted: the lease area cannot be used.
    """
    return tuple(record for record in _read_all(_open(area, create=False))[0] if not record.cleared)


def cleared_since(uuid: str, area: LeaseArea | None = None) -> float:
    """When this card was last cleared by us or root, in seconds of this boot's monotonic clock; 0.0 if it was not."""
    found, _ = _read_all(_open(area, create=False), binding=True)
    boot = clock.boot_id()
    times = [
        record.monotonic_s
        for record in found
        if record.cleared and record.uuid == uuid and record.boot_id == boot and record.uid in (0, os.geteuid())
    ]
    return max(times, default=0.0)


def mark_quarantined(inventory: Inventory, area: LeaseArea | None = None) -> Inventory:
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


def describe_others(area: LeaseArea | None = None) -> tuple[str, ...]:
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


def _open(area: LeaseArea | None, *, create: bool = True) -> LeaseArea:
    if area is not None:
        return area

    return lease_area.open_area(read_rules(os.environ).lease_dir, create=create)


def _find_paths(area: LeaseArea, record: Quarantine) -> list[str]:
    """The files of the account that say something of the card."""
    return find_own(lease_area.list_names(area, PREFIX), f"{PREFIX}{record.uuid}.{record.uid}.", SUFFIX, record.uid)


def _write(area: LeaseArea, record: Quarantine) -> None:
    """Write it in every directory, in place of what this account has said of the card before."""
    before = _find_paths(area, record)
    for directory in area.directories:
        here = [path for path in before if os.path.dirname(path) == directory]
        path = here[0] if here else f"{directory}/{random_name(f'{PREFIX}{record.uuid}.{record.uid}', SUFFIX)}"
        try:
            files.commit(path, wire.to_bytes(record), mode=0o644)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}", hint="see who owns it, and holdfast's docs/leases.md"
            ) from error
        for other in here[1:]:
            files.remove_quietly(other)


def _read_all(area: LeaseArea, *, binding: bool = False) -> tuple[tuple[Quarantine, ...], tuple[str, ...]]:
    """Every trusted record once, and what was wrong with the others; `binding`: only those that can bind us.

    Those of others are not even opened then: a stranger with thousands of them must not slow every reading of a card.
    """
    found: dict[tuple[str, int], Quarantine] = {}
    names = lease_area.list_names(area, PREFIX)
    listed, wrong = list_public(names, PREFIX, SUFFIX, most=MOST_FILES, most_bytes=MOST_FILES * MAX_BYTES)
    for file in listed:
        if binding and file.uid not in (0, os.geteuid()):
            continue
        try:
            record = _read(file.path)
        except FileNotFoundError:
            continue
        except (OSError, wire.WireError) as error:
            wrong.append(Complaint(file.uid, file.path, str(error)))
            record = _stand_in(file.path, file.name)
        if isinstance(record, Quarantine):
            found.setdefault((record.uuid, record.uid), record)
        elif record:
            wrong.append(Complaint(file.uid, file.path, record))
    return tuple(found.values()), tell(wrong)


def _read(path: str) -> Quarantine | str:
    before = os.lstat(path)
    record = wire.from_bytes(Quarantine, files.read_bytes(path, limit=MAX_BYTES), path)
    if before.st_uid != record.uid:
        return f"names uid {record.uid} and was written by uid {before.st_uid}: not trusted"
    if not _UUID.fullmatch(record.uuid) or not os.path.basename(path).startswith(f"{PREFIX}{record.uuid}."):
        return "its name and its content differ: not trusted"
    return replace(
        record,
        # Whose word it is says the file's owner, not the name that stands in it.
        user=processes.user_name(before.st_uid),
        # Line breaks could pass for lines of ours where it is shown.
        reason=one_line(record.reason, LONGEST_TEXT),
        at=one_line(record.at, LONGEST_TIME),
        evidence=tuple(one_line(text, LONGEST_TEXT) for text in record.evidence[:MOST_EVIDENCE]),
    )


def _stand_in(path: str, name: str) -> Quarantine | str:
    """For a record that cannot be understood: its name and owner still say whose word on which card it was.

    Not so for a file with a second name: where root's file may be written by all, or the kernel lets anybody link
    (``fs.protected_hardlinks``, proc_sys_fs(5)), a stranger can give it that name.
    """
    uuid, _, number = _RANDOM.sub("", name[len(PREFIX) : -len(SUFFIX)]).rpartition(".")
    try:
        facts = os.lstat(path)
    except OSError:
        return ""
    owner = facts.st_uid
    if not _UUID.fullmatch(uuid) or number != str(owner) or facts.st_nlink != 1:
        return ""
    return Quarantine(uuid, "its record cannot be read", processes.user_name(owner), owner, "", "", 0.0)
