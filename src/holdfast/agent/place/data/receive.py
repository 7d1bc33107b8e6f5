"""Taking a data set: each file is hashed on its way to the disk and renamed into its place, then the roster.

What arrives is believed in nothing: only files of the roster are made, with the contents that it says, below the
directory that was named. A file in its place is whole, always; what was cut off stays as a part beside the data, this
account's alone, and the next push goes on behind it. Nothing is ever removed but such parts.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import (
    EXECUTABLE,
    LINK,
    MOST_FILES,
    PUSHING,
    ROSTER,
    build_manifest,
    leads_out,
    parse_manifest,
)
from holdfast.core.code.stream import StreamCut, StreamError, StreamReader
from holdfast.core.control_characters import clean
from holdfast.host.files import files
from holdfast.host.files.code.hashes import Remembered
from holdfast.host.files.code.roster import MOST_BYTES, look_at, open_memory, read_roster
from holdfast.host.files.disks import DiskUnreadable, measure_space
from holdfast.host.process import libc
from holdfast.model.errors import NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.record import field, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.core.code.manifest import CodeEntry, Manifest
    from holdfast.host.files.code.hashes import HashMemory

REPEAT = "run the same command again; what arrived is kept"
LEAST_PART = 1 << 20
"""A shorter part is not worth asking about."""
CHUNK = 1 << 20


@record
class Missing:
    """What has to be sent, as places in the roster. `directory` is where the data goes, links resolved.

    `replaced` are those of which another content is there. `parts` are beginnings that arrived, by SHA-256 of the
    whole: how many bytes, and their own SHA-256. `others` is how many files of an earlier roster are not in this one.
    """

    directory: str
    missing: tuple[int, ...]
    replaced: int = 0
    others: int = 0
    parts: dict[str, tuple[int, str]] = field(default_factory=dict)
    free_bytes: int | None = None
    free_inodes: int | None = None


@record
class Received:
    """What one stream brought."""

    files: int
    bytes: int


def find_missing(directory: str, roster: Manifest, environ: Mapping[str, str]) -> Missing:
    """What of a roster is not there; files that were touched since they were proven are read again.

    Raises:
        StorageError: something that is no file stands in the place of one, or it cannot be looked at.
    """
    memory = open_memory(directory, environ)
    missing, replaced = [], 0
    for index, entry in enumerate(roster.entries):
        try:
            if look_at(directory, entry, memory):
                continue
            replaced += 1
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise _explain(error, directory) from error
        if entry.kind != LINK and os.path.isdir(f"{directory}/{entry.path}"):
            raise StorageError(
                f"{clean(directory)}/{clean(entry.path)} is a directory there, and a file here",
                hint="move it away, or push into another directory",
            )
        missing.append(index)
    memory.save()
    parts = {}
    for digest in {roster.entries[index].sha256 for index in missing}:
        path = f"{directory}/{PUSHING}/{digest}"
        try:
            size = os.lstat(path).st_size
            if size >= LEAST_PART and _is_ours(directory):
                parts[digest] = (size, _hash_part(path, size).hexdigest())
        except OSError:
            continue
    names = {entry.path for entry in roster.entries}
    others = sum(entry.path not in names for entry in _read_old(directory))
    try:
        space = measure_space(directory)
    except DiskUnreadable:
        return Missing(directory, tuple(missing), replaced, others, parts)
    inodes = space.free_inodes if space.counts_inodes else None
    return Missing(directory, tuple(missing), replaced, others, parts, space.free_bytes, inodes)


def settle_found(directory: str, roster: Manifest, environ: Mapping[str, str]) -> Missing:
    """As `find_missing`; where nothing is missing the roster stands beside the data afterwards, and modes are right.

    Raises:
        ResourceBusy: another push into this directory is at work.
        StorageError, NotPermitted: as of `find_missing`, or that cannot be written.
    """
    found = find_missing(directory, roster, environ)
    if found.missing:
        return found
    try:
        if (
            not _list_other_modes(directory, roster)
            and _read_bytes(f"{directory}/{ROSTER}") == _merge(directory, roster).data
        ):
            return found
        with _hold(directory):
            found = find_missing(directory, roster, environ)  # what another push has made of it since
            if not found.missing:
                settle(directory, roster)
            with suppress(OSError):
                os.rmdir(f"{directory}/{PUSHING}")  # unless parts of another push wait there
    except OSError as error:
        raise _explain(error, directory) from error
    return found


def receive_data(directory: str, read: Callable[[int], bytes], environ: Mapping[str, str]) -> Received:
    """Take files from a stream, each into its place, and then write the roster.

    Raises:
        UsageError: what arrives is not what its roster says.
        StorageError: it was cut off, or the disk does not take it. What arrived whole is in its place.
        ResourceBusy: another push into this directory is at work.
        NotPermitted: another account's directory stands where parts are kept.
    """
    memory = open_memory(directory, environ)
    try:
        os.makedirs(directory, exist_ok=True)
        with _hold(directory):
            reader = StreamReader(read, most_bytes=MOST_BYTES)
            roster = parse_manifest(reader.manifest(), most_bytes=MOST_BYTES)
            _refuse_own_names(roster)
            taken = _Taken(directory, roster)
            while (head := reader.next_file()) is not None:
                taken.take(*head, reader)
            _sync(directory)
            taken.prove(memory)
            settle(directory, roster)
            memory.save()
            files.remove_tree(f"{directory}/{PUSHING}")
    except StreamCut as error:
        raise StorageError(f"the data did not arrive whole: {error}", hint=REPEAT) from error
    except ValueError as error:
        raise UsageError(f"refused as data: {error}", hint=REPEAT) from error
    except OSError as error:
        raise _explain(error, directory) from error
    return Received(len(taken.placed), taken.bytes)


def settle(directory: str, roster: Manifest) -> None:
    """Write the roster of what is there: this one, and of an earlier one what is there still; set modes as it says.

    Raises:
        StorageError: it would be too long.
        OSError: it cannot be written.
    """
    for entry, seen in _list_other_modes(directory, roster):
        with suppress(OSError):  # a file system without modes, or another account's file: its content is right
            os.chmod(f"{directory}/{entry.path}", _choose_mode(entry, stat.S_IMODE(seen.st_mode)))
    merged = _merge(directory, roster)
    path = f"{directory}/{ROSTER}"
    if _read_bytes(path) != merged.data:
        files.commit(path, merged.data, mode=0o644)


def _list_other_modes(directory: str, roster: Manifest) -> list[tuple[CodeEntry, os.stat_result]]:
    """Files that can be executed and should not be, or the other way round."""
    found = []
    for entry in roster.entries:
        if entry.kind != LINK:
            seen = os.lstat(f"{directory}/{entry.path}")
            if stat.S_ISREG(seen.st_mode) and bool(seen.st_mode & stat.S_IXUSR) != (entry.kind == EXECUTABLE):
                found.append((entry, seen))
    return found


def _choose_mode(entry: CodeEntry, mode: int) -> int:
    """`mode` with the right to execute, or without, as the entry has it."""
    umask = os.umask(0)
    os.umask(umask)
    return mode | (0o111 & ~umask) if entry.kind == EXECUTABLE else mode & ~0o111


def _merge(directory: str, roster: Manifest) -> Manifest:
    """This roster, and of an earlier one what is there still."""
    names = {entry.path for entry in roster.entries}
    older = [entry for entry in _read_old(directory) if entry.path not in names and _has(directory, entry)]
    merged = build_manifest((*roster.entries, *older)) if older else roster
    if len(merged.entries) > MOST_FILES:
        raise StorageError(
            f"{directory} would have more than {MOST_FILES} files in its roster", hint="push into another directory"
        )
    return merged


def _read_bytes(path: str) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return b""


def _read_old(directory: str) -> tuple[CodeEntry, ...]:
    """The entries of the roster that is there; one that cannot be read is as none."""
    try:
        found = read_roster(directory)
    except (OSError, ValueError):
        return ()
    return () if found is None else found.entries


def _has(directory: str, entry: CodeEntry) -> bool:
    try:
        return os.lstat(f"{directory}/{entry.path}").st_size == entry.size
    except OSError:
        return False


def _refuse_own_names(roster: Manifest) -> None:
    """What a push keeps beside the data cannot be data: its parts are removed at the end, its roster is replaced."""
    for entry in roster.entries:
        if entry.path.partition("/")[0] in (ROSTER, PUSHING):
            raise ValueError(f"{entry.path!r} has a name that a push needs for itself")


# ---- one file


class _Taken:
    """Takes contents, and puts each where the roster wants it. `placed` has what stood there then, by path."""

    def __init__(self, directory: str, roster: Manifest) -> None:
        self.placed: dict[str, os.stat_result] = {}
        self.bytes = 0
        self._roster = roster
        self._directory = directory
        self._wanted: dict[str, list[CodeEntry]] = {}
        self._parents: set[str] = {""}
        for entry in roster.entries:
            self._wanted.setdefault(entry.sha256, []).append(entry)

    def take(self, digest: str, size: int, reader: StreamReader) -> None:
        """The next content of the stream, of which the first part may be here already.

        Raises:
            ValueError: it is not one of the roster's, or not what it says.
            OSError: it cannot be written.
        """
        entries = self._wanted.pop(digest, None)
        if not entries or size > entries[0].size:
            raise StreamError(f"a content that is not in the roster, or twice: {digest}")
        self.bytes += size
        part = f"{self._directory}/{PUSHING}/{digest}"
        found = _write_part(part, entries[0].size, size, reader.content(size))
        if found != digest:
            os.unlink(part)
            raise StreamError(f"a content is not what its hash says: {digest}")
        for entry in entries[1:]:
            self._copy(part, entry)
        self._place(part, entries[0])

    def prove(self, memory: HashMemory) -> None:
        """Every file of the roster is there: as it was placed, or as it is found now.

        Raises:
            StorageError: one is not.
        """
        for entry in self._roster.entries:
            placed = self.placed.get(entry.path)
            seen = os.lstat(f"{self._directory}/{entry.path}")
            if placed is not None and _facts(placed) == _facts(seen):
                # Made by this process, so that nobody has a map of it that is older than its times.
                memory.remember(entry.path, seen, Remembered(entry.sha256, entry.size), settled_ns=time.time_ns())
            elif not look_at(self._directory, entry, memory):
                raise StorageError(f"{clean(self._directory)}/{clean(entry.path)} is not what was sent", hint=REPEAT)

    def _copy(self, part: str, entry: CodeEntry) -> None:
        """A further file of the same content, unless it is there."""
        if entry.kind != LINK and _is_same(part, f"{self._directory}/{entry.path}"):
            return
        aside = f"{part}.copy"
        with open(part, "rb") as source, open(aside, "wb") as target:
            while piece := source.read(CHUNK):
                target.write(piece)
        self._place(aside, entry)

    def _place(self, aside: str, entry: CodeEntry) -> None:
        target = f"{self._directory}/{entry.path}"
        self._make_parents(entry.path.rpartition("/")[0])
        if entry.kind == LINK:
            with open(aside, "rb") as file:
                words = os.fsdecode(file.read())
            if leads_out(entry.path, words):
                raise StreamError(f"the link {entry.path!r} leads out")
            os.unlink(aside)
            aside = f"{aside}.link"
            with suppress(FileNotFoundError):
                os.unlink(aside)  # of a push that was killed here
            os.symlink(words, aside)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(aside, _choose_mode(entry, 0o666 & ~umask))
        os.rename(aside, target)
        self.placed[entry.path] = os.lstat(target)

    def _make_parents(self, parent: str) -> None:
        """The directories above a file; nothing is written through a link that leads out of the data."""
        if parent in self._parents:
            return
        self._make_parents(parent.rpartition("/")[0])
        path = f"{self._directory}/{parent}"
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.realpath(path).startswith(self._directory.rstrip("/") + "/"):
                raise StorageError(
                    f"{clean(path)} leads out of {clean(self._directory)}",
                    hint="push into the directory that it leads to, or remove the link",
                ) from None
        self._parents.add(parent)


def _facts(seen: os.stat_result) -> tuple[int, ...]:
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _write_part(path: str, whole: int, size: int, pieces: Iterator[bytes]) -> str:
    """Write the last `size` bytes of a content behind what is there of it; the SHA-256 of all.

    Runs of zeros become holes.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        begin = whole - size
        if os.fstat(descriptor).st_size != begin:
            if begin:
                raise StreamError("the rest of a file whose beginning is not here")
            os.ftruncate(descriptor, 0)
        digest = _hash_part(path, begin)
        os.lseek(descriptor, begin, os.SEEK_SET)
        for piece in pieces:
            digest.update(piece)
            if piece.count(0) == len(piece):
                os.lseek(descriptor, len(piece), os.SEEK_CUR)
            else:
                files.write_all(descriptor, piece)
        os.ftruncate(descriptor, whole)
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def _hash_part(path: str, size: int) -> hashlib._Hash:
    digest, left = hashlib.sha256(), size
    with open(path, "rb") as file:
        while left and (piece := file.read(min(left, CHUNK))):
            digest.update(piece)
            left -= len(piece)
    return digest


def _is_same(first: str, second: str) -> bool:
    """Whether two regular files have the same content."""
    try:
        one, other = os.lstat(first), os.lstat(second)
        if not stat.S_ISREG(other.st_mode) or one.st_size != other.st_size:
            return False
        return _hash_part(first, one.st_size).digest() == _hash_part(second, other.st_size).digest()
    except OSError:
        return False


# ---- the directory of parts


@contextmanager
def _hold(directory: str) -> Iterator[None]:
    """Be the one push into this directory; its parts are below `PUSHING`, this account's alone."""
    busy = ResourceBusy(
        f"another push into {directory} is at work", hint="wait for it, then run the same command again"
    )
    place = f"{directory}/{PUSHING}"
    try:
        os.mkdir(place, 0o700)
        os.chmod(place, 0o700)
    except FileExistsError:
        if not _is_ours(directory):
            raise NotPermitted(
                f"{place} is not a directory of this account alone", hint="have it removed, or push somewhere else"
            ) from None
    try:
        descriptor = os.open(place, files.DIRECTORY)
    except FileNotFoundError:
        raise busy from None  # which ends in this moment, and has removed it
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:
            pass  # a file system without locks: two pushes at once hash what they place all the same
        if not os.fstat(descriptor).st_nlink:
            raise busy
        yield
    finally:
        os.close(descriptor)


def _is_ours(directory: str) -> bool:
    try:
        seen = os.lstat(f"{directory}/{PUSHING}")
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o077


def _sync(directory: str) -> None:
    """Everything is on the disk before the roster says so."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc.syncfs(descriptor)
    finally:
        os.close(descriptor)


def _explain(error: OSError, directory: str) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"{directory}: {error.strerror}", hint=f"make room there (see df, df -i), then {REPEAT}")
    where = error.filename if isinstance(error.filename, str) else directory
    return StorageError(
        f"{clean(where)}: {error.strerror}", hint="see its owner and permissions, or push into another directory"
    )
