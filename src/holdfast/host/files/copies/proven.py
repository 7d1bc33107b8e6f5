"""Copies of files that count only after they were read back: survey, copy, prove.

Each file is written under a temporary name beside its own, synced, dropped from this box's cache, read back and hashed,
and only then renamed: under a file's name there is never half of it, and a good copy is never written over in place.
What is there already with the same bytes is proven and left. So a copy may be killed anywhere and said again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from holdfast.host.files import files
from holdfast.model.receipt import LeftOut
from holdfast.model.record import record
from holdfast.model.results import CopiedFile
from holdfast.model.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from .progress import Progress

CHUNK = 1 << 20
SYNC_EVERY = 64 << 20
"""So many bytes are on the far disk before more are sent: a slow one is seen to move, and memory stays free."""
MOST_FILES = 20_000
MOST_ROSTER_BYTES = 3 << 20
"""Of a roster: readers believe records up to 4 MiB (docs/run-directory.md)."""
_CHANGED = "is not what the whole copy that is there has, which stays as it is; copy to another directory"
SHARD_HINT = "pack them first: holdfast results shard DIR OUT"


class CopyError(Exception):
    """The copy was not made; the message says of what and why. Nothing that was good is worse for it."""


class SourceProblem(CopyError):
    """What is to be copied, or where to, is not as it must be: another try would end alike."""


@record
class SourceFile:
    """One file to copy: its path in the copy, where it is, its bytes when it was seen."""

    path: str
    source: str
    bytes: int


def survey(top: str, patterns: Iterable[str], *, optional: bool) -> tuple[list[SourceFile], list[LeftOut]]:
    """What the patterns name below `top`, by path; a directory is taken whole.

    A link to a file counts as that file. What is left out is named with why: links to directories, to nothing, what is
    neither file nor directory, half-written records. `optional`: a pattern may name nothing.

    Raises:
        CopyError: a pattern names nothing, no file is left at all, there are too many, or a directory cannot be read.
    """
    found: dict[str, SourceFile] = {}
    left: dict[str, LeftOut] = {}
    for pattern in patterns:
        paths = _expand(top, pattern)
        if not paths and not optional:
            raise SourceProblem(f"{pattern} is not there (in {top})")
        for path in paths:
            for source in _walk(top, path, left, named=path == pattern):
                found[source.path] = source
    if not found:
        raise SourceProblem(f"there is nothing to copy: {', '.join(patterns)} in {top} holds no file")
    roster = sum(len(path.encode("utf-8", "surrogateescape")) + 120 for path in found)
    if len(found) > MOST_FILES or roster > MOST_ROSTER_BYTES:
        raise SourceProblem(f"{len(found)} files are too many for one copy (most: {MOST_FILES}); {SHARD_HINT}")
    return [found[path] for path in sorted(found)], [left[path] for path in sorted(left)]


def _expand(top: str, pattern: str) -> list[str]:
    if os.path.lexists(os.path.join(top, pattern)):
        return [pattern]
    if not any(letter in pattern for letter in "*?["):
        return []
    real = os.path.realpath(top)
    paths = {os.path.normpath(path) for path in glob.glob(pattern, root_dir=top, recursive=True)}
    # What is found through a link to a directory is found, or not wanted, without it.
    return sorted(path for path in paths if os.path.realpath(_above(top, path)) == _above(real, path))


def _above(top: str, path: str) -> str:
    return os.path.normpath(os.path.join(top, os.path.dirname(path)))


def _walk(top: str, path: str, left: dict[str, LeftOut], *, named: bool) -> Iterator[SourceFile]:
    """The files of one path; links to directories are not followed, but for a path that was `named` itself."""
    todo = [(path, named)]
    while todo:
        path, named = todo.pop()
        whole = os.path.join(top, path)
        try:
            seen = os.lstat(whole)
            linked = stat.S_ISLNK(seen.st_mode)
            seen = os.stat(whole) if linked else seen
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise CopyError(f"{path} cannot be read: {error.strerror}") from error
            left[path] = LeftOut(path, f"leads to nothing: {error.strerror}")
            continue
        if files.is_temporary(os.path.basename(path)):
            left[path] = LeftOut(path, "a record that was being written")
        elif stat.S_ISREG(seen.st_mode):
            yield SourceFile(path, whole, seen.st_size)
        elif not stat.S_ISDIR(seen.st_mode):
            left[path] = LeftOut(path, "is neither a file nor a directory")
        elif linked and not named:
            left[path] = LeftOut(path, f"is a link to the directory {os.readlink(whole)}")
        elif _is_above(whole, top):
            raise SourceProblem(
                f"{path} is {os.path.realpath(whole)}, in which the run itself lies: name what is in it"
            )
        else:
            try:
                todo += [(os.path.join(path, name), False) for name in os.listdir(whole)]
            except OSError as error:
                raise CopyError(f"{path} cannot be read: {error.strerror}") from error


def _is_above(directory: str, top: str) -> bool:
    """Whether a directory is one that `top` lies in, however it is reached."""
    return os.path.realpath(top).startswith(f"{os.path.realpath(directory).rstrip('/')}/")


def copy_all(
    sources: list[SourceFile],
    target: str,
    progress: Progress,
    *,
    known: Mapping[str, CopiedFile] | None = None,
    mended: Callable[[str], None] = lambda _: None,
) -> tuple[CopiedFile, ...]:
    """Copy and prove every file below `target`, which is made; what it lies in must be there.

    `known` is what an earlier whole copy there has: a source that is something else by now is not put over it, and of
    one that is gone the copy is proven. `mended` hears of each that had gone bad there, and was copied again.

    Raises:
        CopyError: one of them was not copied; those before it are there, whole and proven.
    """
    gone = {} if known is None else dict(known)
    for source in sources:
        if known is not None and gone.pop(source.path, None) is None:
            raise SourceProblem(f"{source.path} {_CHANGED}")
    if wrong := prove_all(gone.values(), target, progress):
        raise SourceProblem(f"{wrong[0]} in {target}, and its source is gone")
    progress.begin(len(sources), sum(source.bytes for source in sources))
    made: set[str] = set()
    copied = []
    for source in sources:
        place = os.path.join(target, source.path)
        try:
            _make_directory(os.path.dirname(place), target, made)
            file, is_new = _copy(source, place, progress, None if known is None else known[source.path])
        except OSError as error:
            raise CopyError(f"{source.path}: {describe_error(error, target)}") from error
        copied.append(file)
        if is_new and known is not None:
            mended(source.path)
        progress.move(files_done=1)
    try:
        for directory in made:
            files.sync_directory(directory)
    except OSError as error:
        raise CopyError(describe_error(error, target)) from error
    return tuple(sorted((*copied, *gone.values()), key=lambda file: file.path))


def prove_all(copied: Iterable[CopiedFile], target: str, progress: Progress | None = None) -> list[str]:
    """What of a copy is not what its roster says, in words; empty when all of it is."""
    wrong = []
    for file in copied:
        try:
            size, digest = _hash(os.path.join(target, file.path), progress)
        except OSError as error:
            wrong.append(f"{file.path}: {error.strerror}")
            continue
        if (size, digest) != (file.bytes, file.sha256):
            wrong.append(f"{file.path}: is not what was copied")
    return wrong


def check_room(sources: list[SourceFile], target: str) -> None:
    """Refuse what cannot fit, before anything is written; a file system that does not count is not asked.

    Raises:
        CopyError: there is less room than is missing there.
    """
    missing = [source for source in sources if not _has_size(os.path.join(target, source.path), source.bytes)]
    near = target
    while not os.path.isdir(near) and near != "/":
        near = os.path.dirname(near)
    try:
        room = os.statvfs(near)
    except OSError as error:
        raise CopyError(describe_error(error, near)) from error
    wanted, free = sum(source.bytes for source in missing), room.f_bavail * room.f_frsize
    if room.f_blocks and wanted > free:
        raise CopyError(f"{near}: {format_bytes(wanted)} are needed, {format_bytes(free)} are free")
    if room.f_files and missing and room.f_favail < len(missing):
        raise CopyError(f"{near}: {len(missing)} files are to be made, {room.f_favail} inodes are free (df -i)")


def describe_error(error: OSError, place: str) -> str:
    """Words for an error of the far side; a file system without inodes says that it has no space."""
    words = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        try:
            room = os.statvfs(place)
        except OSError:
            return words
        if room.f_files and not room.f_favail:
            return f"{words}: no inode is free on {place} (df -i)"
        return f"{words} on {place}: {format_bytes(room.f_bavail * room.f_frsize)} are free"
    return f"{words} ({place})"


def make_target(directory: str) -> None:
    """Make a directory; what it lies in must be there.

    Raises:
        CopyError: it cannot be made.
    """
    try:
        try:
            os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        else:
            files.sync_quietly(os.path.dirname(directory))
    except OSError as error:
        raise CopyError(f"{directory}: {describe_error(error, os.path.dirname(directory))}") from error


def refuse_foreign(directory: str) -> None:
    """Refuse what another account has put where a directory of ours is to be: in a shared one anybody may.

    It may be this account's, root's, or that of whoever owns the directory above, who can do there what they will. To
    be asked before anything there is believed, and again once it stands: under a sticky bit it stays ours then.

    Raises:
        SourceProblem: it is another account's directory or link.
        CopyError: it cannot be looked at.
    """
    try:
        seen = os.lstat(directory)
        above = os.stat(os.path.dirname(directory) or ".")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CopyError(f"{directory}: {describe_error(error, os.path.dirname(directory))}") from error
    if seen.st_uid not in (os.geteuid(), 0, above.st_uid):
        what = "link" if stat.S_ISLNK(seen.st_mode) else "directory" if stat.S_ISDIR(seen.st_mode) else "file"
        raise SourceProblem(
            f"{directory} is a {what} of another account (uid {seen.st_uid}): nothing is written there; have it removed"
        )


def _make_directory(directory: str, top: str, made: set[str]) -> None:
    """A directory of the copy, with those above it; temporary files that a killed copy left in it go."""
    if directory in made:
        return
    if directory != top:
        _make_directory(os.path.dirname(directory), top, made)
    try:
        os.mkdir(directory)
    except FileExistsError:
        if directory != top and os.path.islink(directory):  # what it leads to may last no longer than this box
            raise OSError(errno.ELOOP, "its directory there is a link") from None
        for name in os.listdir(directory):
            if files.is_temporary(name):
                files.remove_quietly(os.path.join(directory, name))
    made.add(directory)


def _has_size(path: str, size: int) -> bool:
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_size == size


def _copy(source: SourceFile, place: str, progress: Progress, known: CopiedFile | None) -> tuple[CopiedFile, bool]:
    """The file as it is proven there, and whether it was written for that."""
    descriptor = os.open(source.source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(errno.ESTALE, "is no file any more")
        if known is not None or _has_size(place, before.st_size):
            digest = _read(descriptor, before.st_size, progress.move)[1]
            if known is not None and (before.st_size, digest) != (known.bytes, known.sha256):
                raise SourceProblem(f"{source.path} {_CHANGED}")
            if _has_size(place, before.st_size) and _hash(place, progress) == (before.st_size, digest):
                progress.move(bytes_done=before.st_size)
                return CopiedFile(source.path, before.st_size, digest), False
            os.lseek(descriptor, 0, os.SEEK_SET)
        size, digest = _write(descriptor, before, place, progress)
        return CopiedFile(source.path, size, digest), True
    finally:
        os.close(descriptor)


def _write(descriptor: int, before: os.stat_result, place: str, progress: Progress) -> tuple[int, str]:
    temporary = files.name_temporary(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    far = os.open(temporary, flags, stat.S_IMODE(before.st_mode) & 0o777 | 0o600)
    try:
        try:
            unsynced = 0

            def write(data: bytes) -> None:
                nonlocal unsynced
                files.write_all(far, data)
                unsynced += len(data)
                if unsynced >= SYNC_EVERY:
                    os.fdatasync(far)
                    unsynced = 0
                progress.move(bytes_done=len(data))

            size, digest = _read(descriptor, before.st_size, lambda: None, write)
            os.fsync(far)
        finally:
            os.close(far)
        after = os.fstat(descriptor)
        if (size, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
            raise OSError(errno.ESTALE, "changed while it was copied")
        if _hash(temporary, progress) != (size, digest):
            raise OSError(errno.EIO, "what was read back is not what was written")
        with contextlib.suppress(OSError):  # some mounts keep no times
            os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.rename(temporary, place)
    except OSError:
        files.remove_quietly(temporary)
        raise
    return size, digest


def _read(
    descriptor: int, most: int, moved: Callable[[], None], write: Callable[[bytes], None] | None = None
) -> tuple[int, str]:
    """Size and SHA-256 of what is there, up to `most` bytes: a file may grow faster than it is read."""
    digest, size = hashlib.sha256(), 0
    while size < most and (data := os.read(descriptor, min(CHUNK, most - size))):
        digest.update(data)
        size += len(data)
        moved()
        if write is not None:
            write(data)
    return size, digest.hexdigest()


def _hash(path: str, progress: Progress | None) -> tuple[int, str]:
    """Size and SHA-256 of a file as the far side has it: what this box's cache has of it is dropped first."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        most = os.fstat(descriptor).st_size
        return _read(descriptor, most, progress.move if progress is not None else lambda: None)
    finally:
        os.close(descriptor)
