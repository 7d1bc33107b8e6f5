"""The directory that a run is pulled into: whose it is, what of the run is in it already, and how a file gets there.

Invariants: a file has its name only when all of it was hashed on its way and is what was sent; it is never written in
place. Nothing is removed but parts of our own, which lie below ``.holdfast-pull`` and are this account's alone. A
directory is marked as a copy (`CopyMark`) before the first file is in it, so that no verb takes it for the run.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from holdfast.core.code.manifest import DIRECTORY_SUM, hash_link, leads_out
from holdfast.core.control_characters import clean
from holdfast.core.digest import sha256_hex
from holdfast.core.pull.stream import LEAST_PART, OURS, PULLING, About, Have
from holdfast.host.clock import boot_id, utc_now
from holdfast.host.files import files
from holdfast.host.files.code.hashes import HashMemory, Remembered, choose_memory, settle_file
from holdfast.host.formats.copy_mark import read_mark
from holdfast.host.process import libc
from holdfast.model import wire
from holdfast.model.errors import NotPermitted, ResourceBusy, StorageError, UsageError
from holdfast.model.receipt import COPY, CopyMark
from holdfast.model.record import record
from holdfast.model.units import format_bytes, format_count

from .earlier import Earlier

CHUNK = 1 << 20
SMALL = "new"
"""The part of a file that is too small to be gone on with."""
GOES_ON = "the same command goes on; what arrived is kept"
WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@record
class Placed:
    """A file at home: its hash, and size, times and inode with which it has it.

    `settled_ns` as of `hashes.settle`; None: this process has made it.
    """

    sha256: str
    size: int
    facts: tuple[int, ...]
    settled_ns: int | None = None


class Copy:
    """One directory, held by one pull. `placed` has what is there and proven, by path."""

    def __init__(self, directory: str, place: str, run_id: str, environ: Mapping[str, str]) -> None:
        """Nothing is looked at, nor made."""
        self.directory, self.place, self.run_id = os.path.realpath(directory), place, run_id
        self.parts = f"{self.directory}/{PULLING}"
        self.placed: dict[str, Placed] = {}
        self.earlier = Earlier(0, {})
        """What an earlier pull proved of it, where somebody has read that."""
        self._memory = HashMemory(
            choose_memory(environ, f"pull-{sha256_hex(os.fsencode(self.directory))[:16]}"), epoch=boot_id() or ""
        )
        self._begun: dict[str, tuple[str, hashlib._Hash]] = {}
        """Where the beginning of a path lies that the other side was told of, and the state of its hash."""
        self._parents: set[str] = {""}
        self._names: dict[str, str] | None = None
        """What is here, by names as a disk that folds case has them; None on one that does not, or before `look`."""

    # ------------------------------------------------------------------------------------------------- the directory

    def check(self) -> None:
        """Refuse what is not an empty directory, a new one, or a copy of this very run of this very place.

        Raises:
            UsageError: something else is there.
            StorageError: it cannot be looked at.
        """
        instead = f"holdfast pull {self.place}:{self.run_id} DIR, with a DIR that is empty or not there"
        try:
            found = os.listdir(self.directory)
            names = [name for name in found if name != PULLING and not files.is_temporary(name)]
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise UsageError(f"{self.directory} is a file", hint=instead) from None
        except OSError as error:
            raise StorageError(f"{self.directory}: {error.strerror}", hint=instead) from error
        mark = read_mark(self.directory)
        if mark is not None and (mark.place, mark.run_id) != (self.place, self.run_id):
            whose = f"{clean(mark.place)}:{clean(mark.run_id)}"
            raise UsageError(f"{self.directory} holds a copy of {whose}, another run", hint=instead)
        if mark is None and names:
            what = "a run" if wire.RUN in names else f"{format_count(len(names), 'entry', 'entries')} of something else"
            raise UsageError(f"{self.directory} holds {what}, and no copy of {self.run_id}", hint=instead)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one pull into this directory, which is made and marked.

        Raises:
            UsageError: as of `check`: another one may have been at work since.
            ResourceBusy: another one is.
            NotPermitted: another account's directory stands where parts are kept.
            StorageError: it cannot be written.
        """
        try:
            os.makedirs(self.directory, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self.parts, 0o700)
            seen = os.lstat(self.parts)
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
                raise NotPermitted(
                    f"{self.parts} is not a directory of this account alone", hint="pull into another directory"
                )
            descriptor = os.open(self.parts, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise explain(error, self.directory) from error
        try:
            self._lock(descriptor)
            if not _is_at(descriptor, self.parts):
                raise self._busy()  # the one that had it has just ended, and removed it
            self.check()
            try:
                if read_mark(self.directory) is None:
                    self.mark(live=True)
            except OSError as error:
                raise explain(error, self.directory) from error
            yield
        finally:
            os.close(descriptor)
            self.save()

    def save(self) -> None:
        """Remember what was hashed."""
        self._memory.save()

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._busy() from None
        except OSError:
            pass  # a file system without locks: files are placed whole by both

    def _busy(self) -> ResourceBusy:
        return ResourceBusy(
            f"another pull into {self.directory} is at work", hint="wait for it, then run the same command again"
        )

    def mark(self, *, live: bool, taken_at: str = "") -> None:
        """Mark the directory as a copy.

        Raises:
            OSError: it cannot be written.
        """
        mark = CopyMark(self.place, self.run_id, taken_at or utc_now(), live)
        files.commit(f"{self.directory}/{COPY}", wire.to_bytes(mark), mode=0o644)

    def require_room(self, rest: int, new_files: int) -> None:
        """Refuse what does not fit.

        Raises:
            StorageError: there is too little room, or there are too few inodes.
        """
        space = os.statvfs(self.directory)
        free = space.f_bavail * space.f_frsize
        where = f"{self.directory} has"
        if rest > free:
            raise StorageError(
                f"{where} {format_bytes(free)} free, and {format_bytes(rest)} would come: "
                f"{format_bytes(rest - free)} are missing",
                hint=f"make room there, or pull into another directory; {GOES_ON}",
            )
        if space.f_files and new_files > space.f_favail:
            raise StorageError(
                f"{where} {format_count(space.f_favail, 'inode')} free, for {format_count(new_files, 'file')}",
                hint=f"make room there (df -i), or pull into another directory; {GOES_ON}",
            )

    # ------------------------------------------------------------------------------------------------ what is there

    def look(self, tell: Callable[[int], None] = lambda _: None) -> dict[str, Have]:
        """What of the run is here: whole files, and beginnings of large ones; each by the hash of its bytes.

        Raises:
            StorageError: it cannot be read.
        """
        self._begun.clear()
        found: dict[str, Have] = {}
        try:
            for path, seen in _walk(self.directory):
                known = self._recall(path, seen) or self._hash(path, tell)
                self.placed[path] = known
                found[path] = Have(known.size, known.sha256)
            folds = os.path.lexists(f"{self.directory}/{PULLING.upper()}")
            self._names = {name.casefold(): name for name in OURS} if folds else None
            for path in found:
                self.require_own_name(path)
            for path, part in self._list_parts():
                digest, size = hash_file(part, tell)
                if size >= LEAST_PART:
                    found[path] = Have(size, digest.hexdigest())
                    self._begun[path] = (part, digest)
        except OSError as error:
            raise explain(error, self.directory) from error
        return found

    def is_as_proven(self, path: str) -> bool:
        """Whether a file here is what an earlier pull proved, by what `look` has found."""
        placed = self.placed.get(path)
        return placed is not None and placed.sha256 == self.earlier.proven.get(path)

    def find_good(self, about: About) -> set[str]:
        """Results that are here as the end of this run left them, and that no later attempt wrote."""
        if about.proven != self.earlier.attempt:
            return set()
        return set(filter(self.is_as_proven, self.earlier.good)).difference(about.rewritten)

    def _recall(self, path: str, seen: os.stat_result) -> Placed | None:
        placed = self.placed.get(path)
        if placed is not None and placed.facts == facts_of(seen):
            return placed
        if stat.S_ISLNK(seen.st_mode):
            target = os.fsencode(os.readlink(f"{self.directory}/{path}"))
            return Placed(hash_link(target), len(target), facts_of(seen))
        if stat.S_ISDIR(seen.st_mode):
            return Placed(DIRECTORY_SUM, 0, facts_of(seen))
        known = self._memory.recall(path, seen)
        return None if known is None else Placed(known.sha256, known.size, facts_of(seen))

    def _hash(self, path: str, tell: Callable[[int], None]) -> Placed:
        settled_ns = settle_file(f"{self.directory}/{path}")
        seen = os.lstat(f"{self.directory}/{path}")
        digest, size = hash_file(f"{self.directory}/{path}", tell)
        after = os.lstat(f"{self.directory}/{path}")
        if facts_of(seen) == facts_of(after):
            self._memory.remember(path, after, Remembered(digest.hexdigest(), size), settled_ns=settled_ns)
        return Placed(digest.hexdigest(), size, facts_of(seen), settled_ns)

    def _list_parts(self) -> Iterator[tuple[str, str]]:
        """Parts that were begun, with the paths that they are of. Nothing is removed: another pull may be at work."""
        names = set(os.listdir(self.parts)) if os.path.isdir(self.parts) else set()
        for name in sorted(names):
            where = f"{self.parts}/{name}"
            if name.endswith(".of"):
                continue
            if f"{name}.of" not in names:
                continue
            path = os.fsdecode(files.read_bytes(f"{where}.of", limit=1 << 13))
            if part_name(path) == name:
                yield path, where

    # --------------------------------------------------------------------------------------------------- one file

    def open_part(self, path: str, start: int, size: int, mode: int) -> tuple[int, str, hashlib._Hash]:
        """The descriptor, path and hash of the part of a file, which has `start` bytes already.

        Raises:
            ValueError: the other side goes on behind something that it was not told.
            OSError: it cannot be written.
        """
        if size < LEAST_PART:
            return _make(f"{self.parts}/{SMALL}", mode), f"{self.parts}/{SMALL}", hashlib.sha256()
        part = f"{self.parts}/{part_name(path)}"
        files.commit(f"{part}.of", os.fsencode(path), durable=False)
        if not start:
            return _make(part, mode), part, hashlib.sha256()
        source, digest = self._begun.pop(path, (f"{self.directory}/{path}", None))
        if digest is None:
            with suppress(FileNotFoundError):
                os.unlink(part)
            digest, begun = _copy(source, part, mode | 0o600)
        else:
            begun = os.lstat(part).st_size
        descriptor = os.open(part, WRITE, mode | 0o600)
        if begun != start:
            os.close(descriptor)
            raise ValueError(f"a file goes on at {start}, and {begun} bytes of it are here")
        os.lseek(descriptor, start, os.SEEK_SET)
        return descriptor, part, digest

    def place_file(self, path: str, descriptor: int, part: str, sha256: str, mtime_ns: int) -> None:
        """Give a whole and proven part its name.

        Raises:
            StorageError: something stands there that is not replaced.
            OSError: it cannot be written.
        """
        self._make_parents(path)
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        target = f"{self.directory}/{path}"
        if path in self.placed:
            os.fsync(descriptor)  # the earlier one was good
        self._rename(part, path)
        if not part.endswith(f"/{SMALL}"):
            with suppress(FileNotFoundError):
                os.unlink(f"{part}.of")
        self._keep(path, target, sha256)

    def place_link(self, path: str, target: str, sha256: str) -> None:
        """Make a link that stays inside.

        Raises:
            ValueError: it leads out.
            OSError: it cannot be made.
        """
        if leads_out(path, target):
            raise ValueError(f"the link {path!r} leads out")
        self._make_parents(path)
        aside = f"{self.parts}/{SMALL}"
        with suppress(FileNotFoundError):
            os.unlink(aside)
        os.symlink(target, aside)
        self._rename(aside, path)
        self._keep(path, f"{self.directory}/{path}", sha256)

    def place_directory(self, path: str) -> None:
        """Make a directory that is empty in the run.

        Raises:
            StorageError: something else stands there.
            OSError: it cannot be made.
        """
        self._make_parents(f"{path}/")
        self._keep(path, f"{self.directory}/{path}", DIRECTORY_SUM)

    def require_own_name(self, path: str) -> None:
        """Refuse a path that this disk takes for another one, which is here or comes.

        Raises:
            StorageError: it does.
        """
        if self._names is None:
            return
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            other = self._names.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
            if other != name:
                raise StorageError(
                    f"{clean(other)} and {clean(name)} are one name to the disk of {self.directory}, which takes "
                    f"upper and lower case for the same",
                    hint=f"pull into a directory on a disk that tells them apart; {GOES_ON}",
                )

    def _rename(self, part: str, path: str) -> None:
        target = f"{self.directory}/{path}"
        try:
            os.rename(part, target)
        except IsADirectoryError:
            # What comes may be a link: nothing that was known to be below is believed any more.
            self._parents = {known for known in self._parents if known != path and not known.startswith(f"{path}/")}
            try:
                os.rmdir(target)  # it was empty in the run, once
            except OSError:
                raise StorageError(
                    f"{target} is a directory here, and a file in the run", hint="pull into another directory"
                ) from None
            os.rename(part, target)

    def _keep(self, path: str, target: str, sha256: str) -> None:
        seen = os.lstat(target)
        self.placed[path] = Placed(sha256, seen.st_size, facts_of(seen))

    def _make_parents(self, path: str) -> None:
        """The directories above a file; nothing is written through a link."""
        above = path.split("/")[:-1]
        if "/".join(above) in self._parents:
            return
        for depth in range(1, len(above) + 1):
            self._make_parent("/".join(above[:depth]))

    def _make_parent(self, parent: str) -> None:
        if parent in self._parents:
            return
        where = f"{self.directory}/{parent}"
        try:
            os.mkdir(where)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(where).st_mode):
                raise StorageError(
                    f"{where} is no directory here, and one in the run", hint="pull into another directory"
                ) from None
        self._parents.add(parent)

    # --------------------------------------------------------------------------------------------------- the end

    def prove(self, path: str) -> Placed | None:
        """What a file is now: as it was placed, where nothing touched it since, else read again; None: not there."""
        try:
            seen = os.lstat(f"{self.directory}/{path}")
            if not (stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode) or stat.S_ISDIR(seen.st_mode)):
                return None
            known = self._recall(path, seen)
            if known is None:
                return self._hash(path, lambda _: None)
        except OSError:
            return None
        if stat.S_ISREG(seen.st_mode) and known.settled_ns is None:
            self._memory.remember(path, seen, Remembered(known.sha256, known.size), settled_ns=time.time_ns())
        return known

    def sync(self) -> None:
        """Everything is on the disk.

        Raises:
            OSError: it could not be written.
        """
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            libc.syncfs(descriptor)
        except AttributeError:  # no such call on this system
            os.sync()
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """Nothing of this pull is under way any more, nor of one that was killed as it wrote a record."""
        with suppress(OSError):
            for name in filter(files.is_temporary, os.listdir(self.directory)):
                files.remove_quietly(f"{self.directory}/{name}")
        shutil.rmtree(self.parts, ignore_errors=True)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _make(part: str, mode: int) -> int:
    """A new part; one that was left is none."""
    try:
        return os.open(part, WRITE | os.O_EXCL, mode | 0o600)
    except FileExistsError:
        os.unlink(part)
        return os.open(part, WRITE | os.O_EXCL, mode | 0o600)


def part_name(path: str) -> str:
    """The name of the part of a file."""
    return sha256_hex(os.fsencode(path))[:40]


def facts_of(seen: os.stat_result) -> tuple[int, ...]:
    """What changes with any change of a file."""
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def hash_file(path: str, tell: Callable[[int], None]) -> tuple[hashlib._Hash, int]:
    """The hash of a file, still open for more, and its size.

    Raises:
        OSError: it cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            size += len(piece)
            tell(len(piece))
    return digest, size


def _copy(source: str, target: str, mode: int) -> tuple[hashlib._Hash, int]:
    """A file beside itself, to be gone on with there."""
    digest, size = hashlib.sha256(), 0
    with open(source, "rb") as old, open(os.open(target, WRITE | os.O_EXCL, mode), "wb") as new:
        while piece := old.read(CHUNK):
            new.write(piece)
            digest.update(piece)
            size += len(piece)
    return digest, size


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Files, links and empty directories of a copy, but for our own, however deep they lie."""
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        try:
            with os.scandir(f"{top}/{prefix}") as entries:
                listed = list(entries)
            if prefix and not listed:
                yield prefix[:-1], os.lstat(f"{top}/{prefix[:-1]}")
        except FileNotFoundError:
            continue
        for entry in listed:
            if not prefix and entry.name in OURS:
                continue
            seen = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(seen.st_mode):
                prefixes.append(f"{prefix}{entry.name}/")
            elif stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode):
                yield f"{prefix}{entry.name}", seen


def explain(error: OSError, directory: str) -> StorageError:
    """What a person does about a target that does not take a file."""
    where = error.filename if isinstance(error.filename, str) else directory
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"make room there (df, df -i), or pull into another directory; {GOES_ON}"
        return StorageError(f"{directory}: {error.strerror}", hint=hint)
    return StorageError(
        f"{clean(where)}: {error.strerror}",
        hint=f"see its owner and permissions, or pull into another directory; {GOES_ON}",
    )
