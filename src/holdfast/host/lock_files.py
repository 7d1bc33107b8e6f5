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

from ..model.errors import NotPermitted, StorageError
from .processes import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..model.lease import LeasedDevice
    from .lease_area import Area

_PROTECTED_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_MAX_TRIES = 16
_ELSEWHERE = "Ask an administrator to look at the lease directory, or name another as lease_dir in the rules file."
_REMOVE = "Somebody planted it: ask its owner or an administrator to remove it."


def lock_name(uuid: str) -> str:
    """The name of a device's lock file.

    Raises:
        ValueError: `uuid` cannot be part of a file name.
    """
    if not uuid or not uuid.isascii() or not uuid.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ValueError(f"{uuid!r} is not a device's UUID")
    return f"gpu-{uuid}.lock"


def gate_name(card_uuid: str) -> str:
    """The name of a card's gate: held while somebody decides about a shared lock on the card.

    Raises:
        ValueError: as `lock_name`.
    """
    return lock_name(card_uuid).removesuffix(".lock") + ".gate"


def plan_locks(area: Area, devices: Iterable[LeasedDevice], *, share: bool) -> tuple[tuple[str, bool], ...]:
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
            StorageError, NotPermitted: the file cannot be trusted or opened.
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
        raise StorageError(f"{path} was replaced {_MAX_TRIES} times while it was being locked", hint=_ELSEWHERE)

    def open(self, path: str) -> int:
        """The descriptor of a lock file, opened or created when it is not open yet.

        Raises:
            StorageError, NotPermitted: it cannot be trusted or opened.
        """
        if path not in self._open:
            self._open[path] = open_lock_file(path)
        return self._open[path]

    def open_current(self, path: str) -> int:
        """As `open`, and opened anew when the file at the path is no longer the one that is open.

        Raises:
            StorageError, NotPermitted: as `open`.
        """
        if path in self._open and not self._is_current(path, self._open[path]):
            self._forget(path)
        return self.open(path)

    def _is_current(self, path: str, descriptor: int) -> bool:
        ours = os.fstat(descriptor)
        try:
            there = os.stat(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _forget(self, path: str) -> None:
        self._locked.discard(path)
        os.close(self._open.pop(path))

    def is_current(self) -> bool:
        """Whether every locked file is still the one at its path: False when somebody removed or replaced one."""
        return all(self._is_current(path, self._open[path]) for path in self._locked)

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


def is_planted(path: str) -> bool:
    """Whether something other than a plain file lies where a lock file belongs: nothing that holdfast made."""
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1


def open_lock_file(path: str) -> int:
    """Open a lock file for locking, creating it readable for everybody when it is not there.

    It is opened without O_CREAT first: in a sticky directory O_CREAT on somebody else's file is refused
    (fs.protected_regular, proc_sys_fs(5)); creation is O_EXCL, so nothing that was planted is ever followed or reused.

    Raises:
        StorageError: what is there is not a plain lock file, or the directory is gone or full.
        NotPermitted: it is not readable for this account.
    """
    for _ in range(_MAX_TRIES):
        try:
            descriptor = os.open(path, _PROTECTED_OPEN)
        except FileNotFoundError:
            _create_lock_file(path)
            continue
        except PermissionError as error:
            raise NotPermitted(
                f"{user_name(os.geteuid())} cannot open {path}", hint=f"Ask its owner for `chmod 644 {path}`."
            ) from error
        except OSError as error:
            what = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise StorageError(f"the lock file {path} cannot be used: {what}", hint=_REMOVE) from error
        seen = os.fstat(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 0:
            continue
        what = f"it has {seen.st_nlink} names" if stat.S_ISREG(seen.st_mode) else "it is not a regular file"
        raise StorageError(f"the lock file {path} cannot be used: {what}", hint=_REMOVE)
    raise StorageError(f"{path} vanished {_MAX_TRIES} times while it was being opened", hint=_ELSEWHERE)


def _create_lock_file(path: str) -> None:
    previous = os.umask(0o022)
    try:
        os.close(os.open(path, _PROTECTED_OPEN | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(f"the lock file {path} cannot be made: {error.strerror}", hint=_ELSEWHERE) from error
    finally:
        os.umask(previous)
