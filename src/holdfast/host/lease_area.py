"""Where leases live: one directory for every account of this box.

Owns the choice of the directory and its trust checks. An area is one directory or, when two creators raced, several;
then a lease counts only when it is held in all of them. It does not know what is in it.

Trust: the directory is sticky (nobody removes the files of another), or it is root's or ours. Whoever owns a sticky
directory can still remove every file in it, which is why an area of another account is used with a warning.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..model.errors import NotPermitted, StorageError
from .processes import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_DIRECTORIES = ("/var/lib/holdfast", "/run/lock/holdfast", "/dev/shm/holdfast")  # noqa: S108 - checked below
"""Node-local, and left alone by temp cleaners and PrivateTmp. Source: tmpfiles.d(5), systemd.exec(5)."""
HAND_WRITTEN_DIRECTORY = "/tmp/gpu_locks"  # noqa: S108 - where people keep their own lock files
SHARED_MODE = 0o1777

# A lock on these is the server's business, or nobody's. Source: statfs(2), the names are those of mountinfo.
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "coda", "ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2")
_NETWORK_FUSE = ("sshfs", "glusterfs", "ceph", "s3fs", "rclone", "gcsfuse", "juicefs", "orangefs", "pvfs2")
NETWORK_FILESYSTEMS = frozenset((*_NETWORK, "9p", *_NETWORK_FUSE, *(f"fuse.{name}" for name in _NETWORK_FUSE)))


@dataclass(frozen=True, slots=True)
class Area:
    """The directories in force. `candidates` are looked at again after locking; `warnings` are for people.

    `hand_written` is the directory of lock files that people make by hand.
    """

    directories: tuple[str, ...]
    candidates: tuple[str, ...]
    found: str
    warnings: tuple[str, ...] = ()
    hand_written: str = HAND_WRITTEN_DIRECTORY


def open_area(
    rules_directory: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    candidates: tuple[str, ...] = DEFAULT_DIRECTORIES,
    hand_written: str = HAND_WRITTEN_DIRECTORY,
    create: bool = True,
) -> Area:
    """Find the area, or create it: ``HOLDFAST_LEASE_DIR``, the rules file's directory, or the usual places.

    Without `create` an area that does not exist is answered with no directories: nothing is leased then.

    Raises:
        StorageError: a directory cannot be trusted (planted link, network file system), or none can be made.
        NotPermitted: it exists and this account cannot write in it.
    """
    values = os.environ if environ is None else environ
    explicit = values.get("HOLDFAST_LEASE_DIR") or rules_directory
    if explicit:
        source = "HOLDFAST_LEASE_DIR" if values.get("HOLDFAST_LEASE_DIR") else "the rules file"
        path = os.path.abspath(explicit)
        if not _exists(path):
            if not create:
                return Area((), (path,), source, (), hand_written)
            _create(path)
        warnings = _check(path)
        if path.startswith(("/tmp/", "/var/tmp/")):  # noqa: S108 - this is the warning about it
            warnings += (f"{path} is under a temporary directory: cleaners may empty it, services may not see it",)
        return Area((path,), (path,), source, warnings, hand_written)
    area = Area((), candidates, "the usual places", (), hand_written)
    found = refresh(area)
    return found if found.directories or not create else _create_first(area)


def refresh(area: Area) -> Area:
    """The same area as it is now: another directory may have come into being since it was opened.

    Raises:
        StorageError, NotPermitted: as for `open_area`.
    """
    directories: list[str] = []
    warnings: list[str] = []
    for path in area.candidates:
        if not _exists(path):
            continue
        try:
            warnings.extend(_check(path))
        except StorageError as error:
            # The administrator's directory stands: a planted one beside it must not stop the box.
            if not directories or os.lstat(directories[0]).st_uid != 0 or directories[0] != area.candidates[0]:
                raise
            warnings.append(f"ignored: {error}")
            continue
        directories.append(path)
    return replace(area, directories=tuple(directories), warnings=tuple(warnings))


def list_names(area: Area) -> list[tuple[str, str]]:
    """Every file of the area as (directory, name), directory by directory, sorted by name.

    Raises:
        StorageError: a directory of the area is gone or closed.
    """
    found: list[tuple[str, str]] = []
    for directory in area.directories:
        try:
            found.extend((directory, name) for name in sorted(os.listdir(directory)))
        except OSError as error:
            raise StorageError(
                f"the lease directory {directory} cannot be read: {error.strerror}",
                hint="Somebody removed or closed it while it was in use: start again, and find out who.",
            ) from error
    return found


def has_grown(area: Area) -> bool:
    """Whether a candidate exists that is not in force: then look again with `refresh`."""
    return any(_exists(path) and path not in area.directories for path in area.candidates)


def _create_first(area: Area) -> Area:
    refusals = []
    for path in area.candidates:
        if not os.path.isdir(os.path.dirname(path)):
            refusals.append(f"{os.path.dirname(path)} does not exist")
            continue
        try:
            _create(path)
        except StorageError as error:
            refusals.append(str(error))
            continue
        return refresh(area)
    raise StorageError(
        f"no lease directory exists and none can be made: {'; '.join(refusals)}",
        hint=f"Ask an administrator for `install -d -m 1777 {area.candidates[0]}`, or name one in the rules file.",
    )


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _create(path: str) -> None:
    """Make a directory with its final mode in one step, so that nobody ever sees it closed (B-09)."""
    previous = os.umask(0)
    try:
        # mkdir(2) on Linux honours the sticky bit.
        os.mkdir(path, SHARED_MODE)
    except FileExistsError:
        return
    except OSError as error:
        raise StorageError(
            f"the lease directory {path} cannot be made: {error.strerror}",
            hint=f"Ask an administrator for `install -d -m 1777 {path}`.",
        ) from error
    finally:
        os.umask(previous)


def _check(path: str) -> tuple[str, ...]:
    """Warnings about a directory that may be used.

    Raises:
        StorageError, NotPermitted: it may not.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError as error:
        raise _closed(path) from error
    except OSError as error:
        found = "a symbolic link" if os.path.islink(path) else f"not a directory ({error.strerror})"
        raise StorageError(
            f"the lease directory {path} is {found}; somebody may have planted it",
            hint=f"Remove it, then ask an administrator for `install -d -m 1777 {path}`.",
        ) from error
    try:
        seen = os.fstat(descriptor)
        open_to_all, sticky = seen.st_mode & stat.S_IWOTH, seen.st_mode & stat.S_ISVTX
        if open_to_all and not sticky and seen.st_uid == os.geteuid():
            os.fchmod(descriptor, SHARED_MODE)
            sticky = stat.S_ISVTX
    finally:
        os.close(descriptor)
    owner = user_name(seen.st_uid)
    trusted = seen.st_uid in (0, os.geteuid())
    if not sticky and (open_to_all or not trusted):
        raise StorageError(
            f"the lease directory {path} belongs to {owner} and has mode {stat.S_IMODE(seen.st_mode):04o}: "
            "anybody, or its owner, can remove the leases of others",
            hint=f"Ask {owner} or an administrator for `chmod 1777 {path}`.",
        )
    if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        raise _closed(path)
    kind = filesystem_of(path)[0]
    if kind in NETWORK_FILESYSTEMS:
        raise StorageError(
            f"the lease directory {path} is on a network file system ({kind}); a lease is about one box",
            hint="Name a local directory as lease_dir in the rules file.",
        )
    warnings = []
    if not trusted:
        warnings.append(
            f"{path} belongs to {owner}, who could remove lock files; /var/lib/holdfast made by root is safer"
        )
    if not open_to_all:
        warnings.append(f"{path} is not open to other accounts: their runs are not seen there")
    return tuple(warnings)


def _closed(path: str) -> NotPermitted:
    return NotPermitted(
        f"the lease directory {path} exists, and {user_name(os.geteuid())} cannot write in it",
        hint=f"Ask an administrator for `chmod 1777 {path}`.",
    )


def filesystem_of(path: str) -> tuple[str, str]:
    """The type of the file system under `path` and its device as ``major:minor`` in decimal; empty when unknown.

    Source: proc_pid_mountinfo(5). The device is the superblock's, which is what ``/proc/locks`` prints; on btrfs and
    overlayfs it differs from ``st_dev``.
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return "", ""
    real, best, found = os.path.realpath(path), -1, ("", "")
    for line in lines:
        fields = line.split(" ")
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = point in ("/", real) or real.startswith(point + "/")
        # Of two mounts on one point the later one covers the earlier.
        if inside and len(point) >= best:
            best, found = len(point), (fields[fields.index("-") + 1], fields[2])
    return found
