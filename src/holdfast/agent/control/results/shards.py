"""Many small files in few tar archives: the same files give the same bytes, wherever and whenever they are packed.

Files go by name, sorted; owner, times and all of the mode but its execute bit are left out. An archive is written under
a hidden name, read back and renamed; the roster is written last.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from typing import IO, TYPE_CHECKING

from holdfast.host.files import files
from holdfast.host.files.copies.proven import CopyError, describe_error, make_target
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.record import record

if TYPE_CHECKING:
    from collections.abc import Iterator

ROSTER = "shards.json"


@record
class Shard:
    """One archive: its name, bytes, SHA-256, and how many files are in it."""

    name: str
    bytes: int
    sha256: str
    files: int


@record
class Shards:
    """The content of ``shards.json``, and the answer: the archives, and what was not packed and why."""

    directory: str
    files: int
    bytes: int
    shards: tuple[Shard, ...]
    left_out: tuple[str, ...] = ()


def pack_directory(top: str, out: str, most_bytes: int) -> Shards:
    """Pack every file below `top` into archives of about `most_bytes` in `out`; a larger file has one of its own.

    Raises:
        StorageError: there is nothing to pack, `out` holds something else or is inside `top`, or cannot be written.
    """
    try:
        return _pack(top, out, most_bytes)
    except CopyError as error:
        raise StorageError(str(error), hint=f"see df; nothing of {top} was changed") from error


def _pack(top: str, out: str, most_bytes: int) -> Shards:
    real = os.path.realpath(out)
    if f"{real}/".startswith(f"{os.path.realpath(top)}/"):
        raise CopyError(f"{out} is inside of {top}: it would be packed with it")
    left: list[str] = []
    packed = list(_walk(top, left))
    if not packed:
        raise CopyError(f"{top} holds no file")
    make_target(out)
    others = [name for name in os.listdir(out) if name != ROSTER and not _is_shard(name)]
    if others:
        raise CopyError(f"{out} holds {min(others)}: name an empty directory, or one that was packed into before")
    groups: list[list[tuple[str, int]]] = [[]]
    room = most_bytes
    for path, size in packed:
        if groups[-1] and size > room:
            groups.append([])
            room = most_bytes
        groups[-1].append((path, size))
        room -= size
    try:
        files.remove_quietly(f"{out}/{ROSTER}")
        shards = tuple(_write(top, out, number, group) for number, group in enumerate(groups))
        for name in set(os.listdir(out)) - {shard.name for shard in shards} - {ROSTER}:
            os.unlink(f"{out}/{name}")
        done = Shards(out, len(packed), sum(size for _, size in packed), shards, tuple(left))
        files.commit(f"{out}/{ROSTER}", wire.to_bytes(done), mode=0o644)
    except OSError as error:
        raise CopyError(describe_error(error, out)) from error
    return done


def _is_shard(name: str) -> bool:
    return (name.startswith("shard-") and name.endswith(".tar")) or files.is_temporary(name)


def _walk(top: str, left: list[str]) -> Iterator[tuple[str, int]]:
    """Paths below `top`, sorted, with their bytes; what is no file is named.

    Raises:
        CopyError: a directory cannot be read: what is in it would be missed by nobody.
    """
    found = []

    def refuse(error: OSError) -> None:
        raise CopyError(f"{error.filename} cannot be read: {error.strerror}") from error

    for directory, names, others in os.walk(top, onerror=refuse):
        names.sort()
        for name in (*others, *(name for name in names if os.path.islink(f"{directory}/{name}"))):
            path = os.path.relpath(f"{directory}/{name}", top)
            facts = os.lstat(f"{directory}/{name}")
            if stat.S_ISREG(facts.st_mode):
                found.append((path, facts.st_size))
            else:
                left.append(f"{path}: is no regular file")
    yield from sorted(found)


def _write(top: str, out: str, number: int, group: list[tuple[str, int]]) -> Shard:
    name = f"shard-{number:05}.tar"
    temporary = files.name_temporary(f"{out}/{name}")
    try:
        with open(temporary, "xb") as file:
            written = _Hashed(file)
            with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload] # it writes only
                for path, size in group:
                    _add(archive, f"{top}/{path}", path, size)
            file.flush()
            os.fsync(file.fileno())
        with open(temporary, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            made = Shard(name, os.fstat(file.fileno()).st_size, _hash(file), len(group))
        if made.sha256 != written.digest.hexdigest():
            raise OSError(errno.EIO, "what was read back is not what was written")
        os.rename(temporary, f"{out}/{name}")
    except OSError:
        files.remove_quietly(temporary)
        raise
    return made


def _add(archive: tarfile.TarFile, source: str, path: str, size: int) -> None:
    """One file as it was when it was listed.

    Raises:
        OSError: it is another by now, or changed while it was read.
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        before = os.fstat(descriptor)
        if stat.S_ISREG(before.st_mode) and before.st_size == size:
            archive.addfile(_describe(path, size, before.st_mode), file)
            after = os.fstat(descriptor)
            if (after.st_size, after.st_mtime_ns) == (size, before.st_mtime_ns):
                return
    raise OSError(errno.ESTALE, f"{path} changed while it was packed")


def _describe(path: str, size: int, mode: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(path)
    found.size, found.mode = size, 0o755 if mode & 0o100 else 0o644
    return found


class _Hashed:
    """A file with the hash of what was written to it, as tarfile takes it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _hash(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while data := file.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()
