"""Lock files: one per device, locked with flock(2), which the kernel frees with the last copy of the descriptor.

Owns how a lock file is named, opened, created and locked. Invariants: a lock file is a regular file with one link
that was never reached through a symbolic link; a lock counts only while the locked inode is still the one at the
path; everybody locks in one sorted order. flock works on read-only descriptors, so nobody needs to write somebody
else's file. It does not know what a lease is. Source: flock(2), open(2), proc_sys_fs(5).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

from holdfast.host.files.public_files import find_own, random_name
from holdfast.host.process.processes import user_name
from holdfast.model.errors import StorageError

from . import area as lease_area

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.model.lease import LeasedDevice

    from .area import LeaseArea


_PROTECTED_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAX_TRIES = 16
LONGEST_UUID = 100
_ELSEWHERE = "Ask an administrator to look at the lease directory, or name another as lease_dir in the rules file."


class LockObstructed(StorageError):
    """Somebody has put something that cannot be locked where a lock file belongs: `holder` says who and what."""

    path = holder = ""


def call_obstructed(path: str, holder: str) -> LockObstructed:
    """The error for `path`, where a lock file belongs."""
    error = LockObstructed(
        f"{path} cannot be locked: {holder}",
        hint=f"Ask its owner or an administrator to remove it, or for `chmod 644 {path}` where it is a lock file.",
    )
    error.path, error.holder = path, holder
    return error


def lock_name(uuid: str) -> str:
    """The name of a device's lock file.

    Raises:
        ValueError: `uuid` cannot be part of a file name.
    """
    if not is_device_uuid(uuid):
        raise ValueError(f"{uuid!r} is not a device's UUID")
    return f"gpu-{uuid}.lock"


def is_device_uuid(text: str) -> bool:
    """Whether `text` can be a device's UUID, and so part of a file name."""
    plain = text.replace("-", "").replace("_", "").replace(".", "")
    return len(text) <= LONGEST_UUID and text.isascii() and plain.isalnum()


def gate_name(card_uuid: str) -> str:
    """The name of a card's gate: held while somebody decides about a shared lock on the card.

    Raises:
        ValueError: as `lock_name`.
    """
    return lock_name(card_uuid).removesuffix(".lock") + ".gate"


def list_account_gates(area: LeaseArea) -> tuple[str, ...]:
    """The gates of this account, one in each directory at least: held while a limit of the account is looked at.

    Nobody else can open them, and nobody can foresee their names. Whoever locks all of them, and sees no further one
    then, is alone: of two that made one at once the later sees both.

    Raises:
        StorageError: none can be made.
    """
    uid = os.geteuid()
    stem = f"account-{uid}"
    gates = find_own(lease_area.list_names(area, stem), f"{stem}.", ".gate", uid)
    missing = set(area.directories) - {os.path.dirname(path) for path in gates}
    for directory in missing:
        _create_lock_file(f"{directory}/{random_name(stem, '.gate')}", 0o600)
    return tuple(sorted(find_own(lease_area.list_names(area, stem), f"{stem}.", ".gate", uid) if missing else gates))


def plan_locks(area: LeaseArea, devices: Iterable[LeasedDevice], *, share: bool) -> tuple[tuple[str, bool], ...]:
    """What to lock for these devices, as (path, exclusively), in the one order that everybody keeps.

    A slice takes its own file exclusively and its card's file shared; a whole card takes its file exclusively, or
    shared when the run shares.
    """
    wanted: dict[str, bool] = {}
    for device in devices:
        whole = device.slice_uuid is None
        card = lock_name(device.card_uuid)
        wanted[card] = wanted.get(card, False) or (whole and not share)
        if device.slice_uuid is not None:
            wanted[lock_name(device.slice_uuid)] = not share
    return tuple((f"{directory}/{name}", wanted[name]) for directory in area.directories for name in sorted(wanted))


class LockFiles:
    """Open lock files of one request, by path. Locks go when the last copy of a descriptor is closed.

    Descriptors are kept after a failed try, so that trying again makes no event for those who watch the file.
    """

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._locked: set[str] = set()

    def try_lock(self, path: str, *, exclusive: bool) -> bool:
        """Lock one file now or not at all; True when it is ours and still the file at its path.

        Raises:
            StorageError: the file cannot be trusted (`LockObstructed`) or opened.
        """
        mode = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
        for _ in range(_MAX_TRIES):
            descriptor = self.open(path)
            try:
                fcntl.flock(descriptor, mode)
            except BlockingIOError:
                if self._is_current(path, descriptor):
                    return False
                self._forget(path)
                continue
            except OSError as error:
                raise StorageError(f"{path} cannot be locked: {error.strerror}", hint=_ELSEWHERE) from error
            self._locked.add(path)
            if self._is_current(path, descriptor):
                return True
            self._forget(path)
        raise call_obstructed(path, _name_owner(path, "is replaced again and again"))

    def open(self, path: str) -> int:
        """The descriptor of a lock file, opened or created when it is not open yet.

        Raises:
            StorageError: it cannot be trusted (`LockObstructed`) or opened.
        """
        if path not in self._open:
            self._open[path] = open_lock_file(path)
        return self._open[path]

    def open_current(self, path: str) -> int:
        """As `open`, and opened anew when the file at the path is no longer the one that is open.

        Raises:
            StorageError: as `open`.
        """
        if path in self._open and not self._is_current(path, self._open[path]):
            self._forget(path)
        return self.open(path)

    def _is_current(self, path: str, descriptor: int) -> bool:
        ours = os.fstat(descriptor)
        try:
            there = os.stat(path, follow_symlinks=False)
        except OSError:
            # It is gone, or the directory is, or was closed.
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _forget(self, path: str) -> None:
        self._locked.discard(path)
        os.close(self._open.pop(path))

    def require_current(self) -> None:
        """Make sure that nobody replaced a locked file since: then somebody else may have locked the new one.

        Raises:
            LockObstructed: one is no longer at its path.
        """
        for path in sorted(self._locked):
            if not self._is_current(path, self._open[path]):
                raise call_obstructed(path, _name_owner(path, "was replaced while it was locked"))

    def unlock(self) -> None:
        """Drop the locks and keep the descriptors. Only before a descriptor was handed to another process."""
        for path in self._locked:
            fcntl.flock(self._open[path], fcntl.LOCK_UN)
        self._locked.clear()

    def hand_over(self) -> LockFiles:
        """The locked files as a set of their own; what was only open stays here."""
        held = LockFiles()
        held._open = {path: self._open.pop(path) for path in sorted(self._locked)}
        held._locked, self._locked = self._locked, set()
        return held

    def drop(self, paths: Iterable[str]) -> None:
        """Close some files again, and with them their locks."""
        for path in paths:
            self._forget(path)

    def has_locked(self, path: str) -> bool:
        """Whether this file is locked by us."""
        return path in self._locked

    def adopt(self, path: str, descriptor: int) -> None:
        """Take over a descriptor that is locked already."""
        self._open[path] = descriptor
        self._locked.add(path)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the locked files, in the order of their paths."""
        return tuple(self._open[path] for path in sorted(self._locked))

    def close(self) -> None:
        """Close everything; the kernel frees a lock with the last copy of its descriptor."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        self._locked.clear()


def find_obstacle(path: str) -> str | None:
    """Who keeps everybody, or only us, from locking a file, and by what, as a holder in words; None when nobody does.

    It opens nothing: that would wake those who watch the file.
    """
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISLNK(facts.st_mode):
        what = "is a symbolic link, no lock file"
    elif not stat.S_ISREG(facts.st_mode):
        what = "is not a regular file, no lock file"
    elif facts.st_nlink > 1:
        what = f"has {facts.st_nlink} names, as no lock file has"
    elif not os.access(path, os.R_OK, effective_ids=True):
        what = f"cannot be opened by {user_name(os.geteuid())}"
    else:
        return None
    return f"{user_name(facts.st_uid)} ({path} {what})"


def _name_owner(path: str, what: str) -> str:
    """Whose file it is and what is wrong with it, as a holder in words."""
    try:
        return f"{user_name(os.lstat(path).st_uid)} ({path} {what})"
    except OSError:
        return f"somebody ({path} {what})"


def open_lock_file(path: str) -> int:
    """Open a lock file for locking, creating it readable for everybody when it is not there.

    It is opened without O_CREAT first: in a sticky directory O_CREAT on somebody else's file is refused
    (fs.protected_regular, proc_sys_fs(5)); creation is O_EXCL, so nothing that was planted is ever followed or reused.

    Raises:
        LockObstructed: what is there is no plain lock file, or not readable for this account.
        StorageError: it cannot be opened otherwise, or the directory is gone or full.
    """
    for _ in range(_MAX_TRIES):
        try:
            descriptor = os.open(path, _PROTECTED_OPEN)
        except FileNotFoundError:
            _create_lock_file(path)
            continue
        except OSError as error:
            if holder := find_obstacle(path):
                raise call_obstructed(path, holder) from error
            if error.errno == errno.EWOULDBLOCK:
                # Source: fcntl(2), F_SETLEASE: the owner of a file can keep others from opening it.
                raise call_obstructed(path, _name_owner(path, "is kept from being opened, by F_SETLEASE")) from error
            raise StorageError(f"the lock file {path} cannot be opened: {error.strerror}", hint=_ELSEWHERE) from error
        seen = os.fstat(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        if holder := find_obstacle(path):
            raise call_obstructed(path, holder)
    raise call_obstructed(path, _name_owner(path, "is replaced again and again"))


def _create_lock_file(path: str, mode: int = 0o644) -> None:
    previous = os.umask(0o022)
    try:
        os.close(os.open(path, _PROTECTED_OPEN | os.O_CREAT | os.O_EXCL, mode))
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(f"the lock file {path} cannot be made: {error.strerror}", hint=_ELSEWHERE) from error
    finally:
        os.umask(previous)
