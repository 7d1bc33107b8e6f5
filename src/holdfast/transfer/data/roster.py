"""The roster of data that is to be pushed: path, size and SHA-256 of every file, each read once and remembered.

A directory goes by its name into the target, with a slash behind it its content does, as of rsync. Links that stay
inside go as links. Refused, all at once: private keys, files that hold credentials, what is no file or unreadable.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.core.code import refusals
from holdfast.core.code.ignore import IGNORE_FILE, is_asked_for, is_left_out, parse_ignore
from holdfast.core.code.manifest import (
    EXECUTABLE,
    FILE,
    LINK,
    MOST_FILES,
    PUSHING,
    ROSTER,
    CodeEntry,
    Manifest,
    build_manifest,
    leads_out,
)
from holdfast.core.control_characters import clean
from holdfast.core.digest import sha256_hex
from holdfast.host.files import files
from holdfast.host.files.code.hashes import HashMemory, choose_memory
from holdfast.model.errors import PreflightFailed, StorageError, UsageError
from holdfast.model.record import field, record
from holdfast.transfer.code.content import hash_file, name_some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.core.code.ignore import Pattern

MOST_IGNORE_BYTES = 1 << 20
OURS = frozenset({ROSTER, PUSHING})
REPOSITORY = ".git"


@record
class DataSet:
    """Data that can be pushed: its roster, and where each path of it lies here. `warnings` are for people."""

    roster: Manifest
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()


@record
class _Found:
    entries: list[CodeEntry] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_data(
    locals_: Sequence[str], environ: Mapping[str, str], *, tell: Callable[[int], None] = lambda _: None
) -> DataSet:
    """The files below these paths, as they are pushed; `tell` gets how many bytes have been read so far.

    Raises:
        UsageError: a path is not there, or two would go to the same place.
        PreflightFailed: something in it must not be sent; all of it is named, with what to do.
        StorageError: there are too many files, or a directory cannot be read.
    """
    found, done = _Found(), [0]

    def count(size: int) -> None:
        done[0] += size
        tell(done[0])

    for text in locals_:
        _read_one(text, environ, count, found)
    _refuse(found)
    roster = build_manifest(found.entries)
    return DataSet(roster, found.sources, tuple(_warn(found)))


def _read_one(text: str, environ: Mapping[str, str], count: Callable[[int], None], found: _Found) -> None:
    top = os.path.realpath(text)
    name = os.path.basename(os.path.normpath(os.path.abspath(text)))
    if not os.path.lexists(top):
        raise UsageError(
            f"{text} does not exist", hint="name files or directories of this machine, then the directory there"
        )
    if name in OURS:
        raise UsageError(
            f"{text}: a push keeps files of its own under this name",
            hint="rename it, or push its content: a slash behind it",
        )
    memory = HashMemory(choose_memory(environ, f"push-{sha256_hex(os.fsencode(top))[:16]}"))
    if not os.path.isdir(top):
        _take(os.path.dirname(top), os.path.basename(top), name, (), memory, count, found)
    else:
        content_only = text.endswith("/") or os.path.basename(text) in (".", "..")
        patterns = _read_patterns(top)
        for path in _walk(top, "", patterns, found):
            _take(top, path, path if content_only else f"{name}/{path}", patterns, memory, count, found)
    memory.save()


def _read_patterns(top: str) -> tuple[Pattern, ...]:
    try:
        data = files.read_bytes(f"{top}/{IGNORE_FILE}", limit=MOST_IGNORE_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StorageError(f"{top}/{IGNORE_FILE} cannot be read: {error.strerror}") from error
    return parse_ignore(data.decode("utf-8", "surrogateescape"))


def _walk(top: str, prefix: str, patterns: tuple[Pattern, ...], found: _Found) -> Iterator[str]:
    try:
        with os.scandir(f"{top}/{prefix}") as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.unreadable.append(f"{clean(prefix or top)} ({error.strerror})")
        return
    for entry in listed:
        path = f"{prefix}{entry.name}"
        is_directory = entry.is_dir(follow_symlinks=False)
        if entry.name in OURS or (not prefix and entry.name == IGNORE_FILE):
            continue
        if is_left_out(path, patterns, is_directory=is_directory):
            continue
        if is_directory and entry.name == REPOSITORY:
            found.repositories.append(path)
        elif is_directory:
            yield from _walk(top, f"{path}/", patterns, found)
        else:
            yield path


def _take(  # noqa: PLR0917 - one file, and all that it is judged by
    top: str,
    path: str,
    target: str,
    patterns: tuple[Pattern, ...],
    memory: HashMemory,
    count: Callable[[int], None],
    found: _Found,
) -> None:
    """One file into the roster as `target`, or among what is refused."""
    full, name = f"{top}/{path}", path.rpartition("/")[2]
    try:
        seen = os.lstat(full)
        if stat.S_ISLNK(seen.st_mode):
            entry = _read_link(top, path, target, found)
        elif not stat.S_ISREG(seen.st_mode):
            found.special.append(path)
            return
        elif refusals.is_key_name(name):
            found.keys.append(path)
            return
        elif refusals.is_credential_name(name) and not is_asked_for(path, patterns):
            found.credentials.append(path)
            return
        else:
            known = memory.recall(path, seen) or hash_file(path, full, memory, tell=count)
            kind = EXECUTABLE if seen.st_mode & stat.S_IXUSR else FILE
            entry = None if known is None else CodeEntry(target, kind, known.sha256, known.size)
            if known is None:
                found.keys.append(path)
    except OSError as error:
        found.unreadable.append(f"{clean(path)} ({error.strerror})")
        return
    if entry is None:
        return
    if target in found.sources:
        raise UsageError(
            f"{full} and {found.sources[target]} would both be {target}", hint="push them one after the other"
        )
    if len(found.entries) >= MOST_FILES:
        raise StorageError(
            f"more than {MOST_FILES} files",
            hint="push parts of it into directories of their own, or pack it (tar, zip)",
        )
    found.entries.append(entry)
    found.sources[target] = full


def _read_link(top: str, path: str, target: str, found: _Found) -> CodeEntry | None:
    words = os.readlink(f"{top}/{path}")
    if leads_out(path, words) or leads_out(target, words):
        found.outside.append(f"{clean(path)} -> {clean(words)}")
        return None
    content = os.fsencode(words)
    return CodeEntry(target, LINK, sha256_hex(content), len(content))


def _refuse(found: _Found) -> None:
    kinds = (
        ("private keys, which never leave", found.keys, f"move them away, or name them in {IGNORE_FILE}"),
        (
            "files that usually hold credentials",
            found.credentials,
            f"name them in {IGNORE_FILE} at the top of the data (to send one: a line !NAME there)",
        ),
        ("no files, directories or links", found.special, f"name them in {IGNORE_FILE}, or remove them"),
        ("not readable", found.unreadable, f"chmod u+r them, or name them in {IGNORE_FILE}"),
    )
    wrong = [kind for kind in kinds if kind[1]]
    if wrong:
        text = "\n".join(f"{what}: {name_some(names)}" for what, names, _ in wrong)
        raise PreflightFailed(
            f"the data cannot be pushed, and nothing was:\n{text}", hint="; ".join(remedy for _, _, remedy in wrong)
        )


def _warn(found: _Found) -> Iterator[str]:
    if found.outside:
        yield f"links that lead out are left out: {name_some(found.outside)}"
    if found.repositories:
        yield f"repositories of git are left out: {name_some(found.repositories)}"
