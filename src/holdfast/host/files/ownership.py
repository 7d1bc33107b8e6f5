"""Whether another account could put something of its own in the place of a path.

Whoever may write a directory can rename what is in it, however closed that is itself. So every directory is judged
through which a path is reached, and every link on the way: each must be root's or ours, and writable by nobody else,
unless it is sticky. A group of which we are the only member counts as us (many boxes give every account one, and its
directories mode 0775).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager

from holdfast.model.errors import NotPermitted, StorageError

MOST_PARTS = 1000
"""Of a path with all that its links lead through; more is a loop."""


def make_own_directory(path: str, what: str, hint: str) -> None:
    """Make a directory where there is none, mode 0700, in a place in which nobody else can put another one.

    `what` names it in errors, `hint` says what to do instead.

    Raises:
        NotPermitted: others could replace it; nothing was made.
        StorageError: it cannot be made or looked at.
    """
    try:
        weakness = describe_weakness(path)
        if weakness:
            raise NotPermitted(f"{what} {path} could be replaced by others: {weakness}", hint=hint)
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{what} {path}: {describe_unmade(path, error)}", hint=hint) from error


def describe_unmade(path: str, error: OSError) -> str:
    """Why a directory could not be made, in words: ``File exists`` would hide that something else has its name."""
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        is_this = os.path.lexists(path)
        return f"{'it' if is_this else 'something above it'} is a file, not a directory"
    return error.strerror or str(error)


def describe_weakness(path: str, owners: Container[int] | None = None) -> str:
    """Why others could replace what is at `path`, as words; empty when they cannot.

    `owners` may have the directories, besides root; None: we may. What does not exist is not judged.

    Raises:
        OSError: a directory cannot be looked at.
    """
    trusted = {os.geteuid()} if owners is None else owners
    for part in _list_parts(path):
        try:
            facts = os.lstat(part)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if facts.st_uid != 0 and facts.st_uid not in trusted and _is_known(facts.st_uid):
            return f"{part} belongs to {_name(facts.st_uid)}"
        if _is_open(facts):
            return f"{part} can be written by others (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""


def _list_parts(path: str) -> Iterator[str]:
    """The directories above `path`, itself, and the same of what the links among them lead to."""
    pending, seen = [os.path.realpath(path), os.path.abspath(path)], set[str]()
    while pending:
        current, parts = pending.pop(), []
        while current not in seen and len(seen) < MOST_PARTS:
            seen.add(current)
            parts.append(current)
            current = os.path.dirname(current)
        for part in reversed(parts):
            if os.path.islink(part):
                pending.append(os.path.normpath(os.path.join(os.path.dirname(part), os.readlink(part))))
            yield part


def _is_open(facts: os.stat_result) -> bool:
    """Whether others may rename what is in it; a link has no rights of its own."""
    if stat.S_ISLNK(facts.st_mode) or facts.st_mode & stat.S_ISVTX:
        return False
    if facts.st_mode & stat.S_IWOTH:
        return True
    return bool(facts.st_mode & stat.S_IWGRP) and not _is_own_group(facts.st_gid)


def _is_own_group(gid: int) -> bool:
    """Whether we alone are in a group: it is called as we are, is our first one, and lists nobody else."""
    try:
        account, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return account.pw_gid == gid and group.gr_name == account.pw_name and set(group.gr_mem) <= {account.pw_name}


def _is_known(uid: int) -> bool:
    """Whether the number stands for an account here: in a user namespace the owners outside of it have none.

    Source: user_namespaces(7), "Unmapped user and group IDs".
    """
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in ranges)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


@contextmanager
def act_as(uid: int) -> Iterator[None]:
    """Within the block files are opened as `uid` would; the process stays root's, and cannot be signalled by it.

    What root writes below a directory of another account, that account could lead elsewhere by a link; with its rights
    only what it could have written itself can be. Concerns the whole process: not for one with threads.

    Source: setresuid(2), credentials(7): the file system's ids follow the effective ones.

    Raises:
        PermissionError: we are not root.
    """
    if uid == os.geteuid():
        yield
        return
    groups, own_gid, own_uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        account = pwd.getpwuid(uid)
        gid, theirs = account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid)
    except KeyError:
        gid, theirs = own_gid, []
    try:
        os.setgroups(theirs)
        os.setegid(gid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(own_uid)
        os.setegid(own_gid)
        os.setgroups(groups)
