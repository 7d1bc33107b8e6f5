"""Files that accounts publish in a directory where all of them write: how they are named, written and listed.

A name has a random part, so nobody can put something else there before; whose a file is says its inode, never its name
or content. A listing has a bound for each account, so nobody makes others read more than that: the rest of that
account's files is left out, and the account is named.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable

from holdfast.core.control_characters import one_line
from holdfast.host.process.processes import find_account, user_name
from holdfast.model.record import record
from holdfast.model.units import format_count

from .files import remove_quietly, write_all

MOST_TOLD = 3
"""So many files of one account are complained of one by one."""
LONGEST_TOLD = 400
TEMPORARY = ".tmp"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@record
class PublicFile:
    """A regular file as its inode describes it: whose it is, its size, when it was last changed (epoch seconds)."""

    path: str
    uid: int
    size: int
    changed_s: float

    @property
    def name(self) -> str:
        """Its name without the directory."""
        return os.path.basename(self.path)


@record
class Complaint:
    """What is wrong with a file (or the files at a path with ``*``) of an account, for people."""

    uid: int
    path: str
    text: str


def random_name(stem: str, suffix: str) -> str:
    """A name that nobody can foresee: `stem`, a dot, 16 random hex digits, `suffix`."""
    return f"{stem}.{os.urandom(8).hex()}{suffix}"


def create_temporary(directory: str, mode: int = 0o644) -> tuple[int, str]:
    """A new file (open for reading and writing) that no listing shows, and its path: to be renamed or removed.

    Raises:
        OSError: it cannot be made.
    """
    path = f"{directory}/{random_name('', TEMPORARY)}"
    descriptor = os.open(path, _NEW, mode)
    try:
        os.fchmod(descriptor, mode)
    except OSError:
        os.close(descriptor)
        remove_quietly(path)
        raise
    return descriptor, path


def publish(path: str, data: bytes) -> None:
    """Put a public file (0644) at `path` in one step, in place of ours; does not wait for the disk.

    Raises:
        OSError: nothing was replaced.
    """
    descriptor, temporary = create_temporary(os.path.dirname(path))
    try:
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError:
        remove_quietly(temporary)
        raise


def list_public(
    names: Iterable[tuple[str, str]], prefix: str, suffix: str, *, most: int, most_bytes: int, last: bool = False
) -> tuple[list[PublicFile], list[Complaint]]:
    """The regular files among `names` (directory, name) that begin and end so, by path, and what is wrong.

    Of each account and directory no more than `most` files and `most_bytes` in all are answered, the first ones, or the
    `last`. A file with several names is answered once.
    """
    found: dict[tuple[int, str], list[PublicFile]] = {}
    inodes: set[tuple[int, int]] = set()
    wrong: list[Complaint] = []
    for directory, name in names:
        if not (name.startswith(prefix) and name.endswith(suffix)):
            continue
        path = f"{directory}/{name}"
        try:
            facts = os.lstat(path)
        except OSError:
            continue
        if not stat.S_ISREG(facts.st_mode):
            wrong.append(Complaint(facts.st_uid, path, "not a plain file: ignored"))
        elif (facts.st_dev, facts.st_ino) not in inodes:
            inodes.add((facts.st_dev, facts.st_ino))
            file = PublicFile(path, facts.st_uid, facts.st_size, facts.st_ctime)
            found.setdefault((find_account(facts.st_uid), directory), []).append(file)
    taken: list[PublicFile] = []
    for (uid, directory), files in found.items():
        within = _cut(files, most, most_bytes, last=last)
        taken += within
        if len(within) < len(files):
            wrong.append(Complaint(uid, f"{directory}/{prefix}*", f"{len(files)} files; not all of them were read"))
    return sorted(taken, key=lambda file: file.path), wrong


def _cut(files: list[PublicFile], most: int, most_bytes: int, *, last: bool) -> list[PublicFile]:
    """The first (or last) of the files of one account that are within its bound."""
    within: list[PublicFile] = []
    size = 0
    for file in reversed(files) if last else files:
        size += file.size
        if len(within) == most or size > most_bytes:
            break
        within.append(file)
    return within


def tell(wrong: Iterable[Complaint]) -> tuple[str, ...]:
    """What is wrong, for people: a few files of each account one by one, then how many more."""
    by_account: dict[int, list[Complaint]] = {}
    for item in wrong:
        by_account.setdefault(find_account(item.uid), []).append(item)
    told: list[str] = []
    for uid, items in by_account.items():
        told += [_describe(item) for item in items[:MOST_TOLD]]
        if len(items) > MOST_TOLD:
            more = len(items) - MOST_TOLD
            files = f"{format_count(more, 'more file')} of {user_name(uid)} there {'is' if more == 1 else 'are'}"
            told.append(f"{files} not what holdfast writes")
    return tuple(told)


def _describe(item: Complaint) -> str:
    """For people, whose name of an account is looked up; errors of records begin with their path."""
    text = item.text.removeprefix(item.path).lstrip(": ")
    return one_line(f"{item.path} of {user_name(item.uid)}: {text}", LONGEST_TOLD)


def find_own(names: Iterable[tuple[str, str]], prefix: str, suffix: str, uid: int) -> list[str]:
    """The plain files (one name each) of one account among `names` that begin and end so."""
    found = []
    for directory, name in names:
        if not (name.startswith(prefix) and name.endswith(suffix)):
            continue
        try:
            facts = os.lstat(f"{directory}/{name}")
        except OSError:
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and facts.st_uid == uid:
            found.append(f"{directory}/{name}")
    return found


def list_left_temporaries(names: Iterable[tuple[str, str]], *, age_s: float) -> list[str]:
    """Temporary files of this account (as root of everybody) that nobody has touched for `age_s` seconds."""
    left = []
    for directory, name in names:
        if not (name.startswith(".") and name.endswith(TEMPORARY)):
            continue
        path = f"{directory}/{name}"
        try:
            facts = os.lstat(path)
        except OSError:
            continue
        if os.geteuid() in (0, facts.st_uid) and time.time() - facts.st_mtime > age_s:
            left.append(path)
    return left
