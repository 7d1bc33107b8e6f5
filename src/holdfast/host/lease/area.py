"""Where leases live: one directory for every account of this box.

Owns the choice of the directory and its trust checks. An area is one directory or, when two creators raced, several;
then a lease counts only when it is held in all of them. It does not know what is in it.

Trust: the directory is sticky (nobody removes the files of another), or it is root's or ours. Whoever owns a sticky
directory can still remove every file in it, and whoever may write the directory above it can replace it: such an area
is used with a warning.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from collections.abc import Mapping

from holdfast.core.rules.rules import Rules
from holdfast.host import clock
from holdfast.host.files.files import write_all
from holdfast.host.files.filesystems import NETWORK_FILESYSTEMS, filesystem_of
from holdfast.host.files.ownership import describe_weakness
from holdfast.host.files.public_files import find_own, random_name
from holdfast.host.files.rules_file import read_rules
from holdfast.host.process.processes import user_name
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.record import record, replace

DEFAULT_DIRECTORIES = ("/var/lib/holdfast", "/run/lock/holdfast", "/dev/shm/holdfast")  # noqa: S108 - checked below
"""Node-local, and left alone by temp cleaners and PrivateTmp. Source: tmpfiles.d(5), systemd.exec(5)."""
HAND_WRITTEN_DIRECTORY = "/tmp/gpu_locks"  # noqa: S108 - where people keep their own lock files
SHARED_MODE = 0o1777
CROWD = 10_000
"""No box has so many leases, tickets and ledgers."""
_LEAST_ENTRY_BYTES = 10
"""What an entry adds to a directory's size: 20 on tmpfs (mm/shmem.c, BOGO_DIRENT_SIZE), measured 16 on ext4."""


@record
class LeaseArea:
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
) -> LeaseArea:
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
                return LeaseArea((), (path,), source, (), hand_written)
            _create(path)
        warnings = _check(path)
        if path.startswith(("/tmp/", "/var/tmp/")):  # noqa: S108 - this is the warning about it
            warnings += (f"{path} is under a temporary directory: cleaners may empty it, services may not see it",)
        return LeaseArea((path,), (path,), source, warnings, hand_written)
    area = LeaseArea((), candidates, "the usual places", (), hand_written)
    found = refresh_area(area)
    return found if found.directories or not create else _create_first(area)


def refresh_area(area: LeaseArea) -> LeaseArea:
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
        except (StorageError, NotPermitted) as error:
            # The administrator's directory stands: a planted one beside it must not stop the box.
            if keep_first(replace(area, directories=(*directories, path))) is None:
                raise
            warnings.append(f"ignored: {error}")
            continue
        directories.append(path)
    return replace(area, directories=tuple(directories), warnings=tuple(warnings))


def keep_first(area: LeaseArea) -> LeaseArea | None:
    """The administrator's directory alone, for whom another one beside it fails; None where there is no such choice."""
    first = area.directories[:1]
    if len(area.directories) < 2 or first != area.candidates[:1]:
        return None
    try:
        owner = os.lstat(first[0]).st_uid
    except OSError:
        return None
    return replace(area, directories=first, candidates=first) if owner == 0 else None


def list_names(area: LeaseArea, prefix: str) -> list[tuple[str, str]]:
    """The files of the area that begin with `prefix` as (directory, name), directory by directory, sorted by name.

    Anybody can put any number of names there: those of another kind cost next to nothing. A directory that is gone or
    closed beside that of the administrator has none.

    Raises:
        StorageError: a directory of the area is gone or closed.
    """
    found: list[tuple[str, str]] = []
    for directory in area.directories:
        try:
            names = [name for name in os.listdir(directory) if name.startswith(prefix)]
        except OSError as error:
            if directory != area.directories[0] and keep_first(area) is not None:
                continue
            raise StorageError(
                f"the lease directory {directory} cannot be read: {error.strerror}",
                hint="Somebody removed or closed it while it was in use: start again, and find out who.",
            ) from error
        found.extend((directory, name) for name in sorted(names))
    return found


def describe_crowds(area: LeaseArea) -> tuple[str, ...]:
    """Directories with so many files that each look at them takes long, and who has most of them, for people."""
    told = []
    for path in area.directories:
        try:
            if os.stat(path).st_size < CROWD * _LEAST_ENTRY_BYTES:
                continue
            names = os.listdir(path)
        except OSError:
            continue
        if len(names) >= CROWD:
            owner = _find_most_frequent_owner(path, names[:: len(names) // 100])
            told.append(f"{path} has {len(names)} files, most of them of {owner}: looking at leases takes long")
    return tuple(told)


def _find_most_frequent_owner(directory: str, names: list[str]) -> str:
    owners = Counter[int]()
    for name in names:
        with contextlib.suppress(OSError):
            owners[os.lstat(f"{directory}/{name}").st_uid] += 1
    return " and ".join(user_name(uid) for uid, _ in owners.most_common(1)) or "somebody"


def has_grown(area: LeaseArea) -> bool:
    """Whether a candidate exists that is not in force: then look again with `refresh_area`."""
    return any(_exists(path) and path not in area.directories for path in area.candidates)


def leave_closed(area: LeaseArea) -> LeaseArea:
    """The same area without the directories that somebody has removed or closed, unless that is where it began.

    Raises:
        StorageError, NotPermitted: as for `open_area`.
    """
    if all(os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True) for path in area.directories):
        return area
    now = refresh_area(area)
    return now if now.directories[:1] == area.directories[:1] else area


def _create_first(area: LeaseArea) -> LeaseArea:
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
        return refresh_area(area)
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
            f"the lease directory {path} is {found}, and {_name_owner(path)} made it",
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
    if weakness := describe_weakness(os.path.dirname(path)):
        warnings.append(f"{weakness}: {path} could be replaced, and then a card be leased twice")
    if not open_to_all:
        warnings.append(f"{path} is not open to other accounts: their runs are not seen there")
    return tuple(warnings)


def _closed(path: str) -> NotPermitted:
    return NotPermitted(
        f"the lease directory {path} of {_name_owner(path)} exists, and {user_name(os.geteuid())} cannot write in it",
        hint=f"Ask an administrator for `chmod 1777 {path}`.",
    )


def _name_owner(path: str) -> str:
    try:
        return user_name(os.lstat(path).st_uid)
    except OSError:
        return "somebody"


def find_second_areas(area: LeaseArea, rules_directory: str | None) -> tuple[str, ...]:
    """Other places on this box in which somebody leases: two areas see nothing of each other's leases.

    A variable names an area for who has it set alone, and a call through ssh has not; so there may be a second one.
    """
    others = (rules_directory,) if rules_directory else DEFAULT_DIRECTORIES
    known = {os.path.realpath(path) for path in area.candidates}
    return tuple(path for path in others if os.path.realpath(path) not in known and _is_used(path))


def _is_used(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except OSError:
        return False


def open_existing_area(rules: Rules | None = None) -> LeaseArea | None:
    """The lease area if there is one; None when nobody has ever leased here. Looking does not create it.

    Raises:
        HoldfastError: there is one that cannot be trusted or used.
    """
    if rules is None:
        rules = read_rules(os.environ)
    named = os.environ.get("HOLDFAST_LEASE_DIR") or rules.lease_dir
    places = (named,) if named else DEFAULT_DIRECTORIES
    if not any(os.path.lexists(place) for place in places):
        return None
    return open_area(rules.lease_dir)


def write_audit(area: LeaseArea, action: str, facts: dict[str, object]) -> None:
    """Append one line to this account's own audit file, before what it tells is done: nobody else can write or cut it.

    Raises:
        StorageError: it cannot be written.
    """
    actor = os.geteuid()
    line = {"schema": 1, "time": clock.utc_now(), "action": action, "by": user_name(actor), "uid": actor}
    path = _find_audit(area, actor)
    try:
        _append_public(path, (json.dumps({**line, **facts}) + "\n").encode())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}; nothing was done",
            hint="Ask an administrator to look at that file.",
        ) from error


def _find_audit(area: LeaseArea, uid: int) -> str:
    """Where an account writes down what it did: its own file, or a new one where it has none."""
    first = replace(area, directories=area.directories[:1])
    prefix, suffix = f"audit-{uid}", ".jsonl"
    own = find_own(list_names(first, prefix), prefix + ".", suffix, uid)
    return own[0] if own else f"{area.directories[0]}/{random_name(prefix, suffix)}"


def _append_public(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(descriptor, 0o644)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1 or seen.st_uid != os.geteuid():
            raise OSError(1, "it is not a plain file of this account", path)
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
