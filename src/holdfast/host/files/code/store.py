"""Code trees below a runs root: ``ROOT/.code-UID/TREE/`` with ``manifest`` and ``files/``, read-only, ours alone.

A tree is there whole or not at all: it is built aside in the same directory and renamed. What it holds is compared with
its manifest, whose own hash is its name, so nothing else has to be believed. Nothing is flushed file by file (thousands
of them cost seconds on a disk): a tree that a power cut tore is found by its hashes, which are remembered for one boot
of the box only.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from io import FileIO
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import EXECUTABLE, LINK, MOST_MANIFEST_BYTES, TREE_HASH, Manifest, parse_manifest
from holdfast.host import clock
from holdfast.host.files import files
from holdfast.host.files.ownership import describe_weakness
from holdfast.model import runs_root
from holdfast.model.errors import NotPermitted, StorageError
from holdfast.model.record import record

from .hashes import HashMemory, Remembered, settle_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.core.code.manifest import CodeEntry

MANIFEST = "manifest"
FILES = "files"
WORK = "work"
"""A run's own copy of its code, in its run directory."""
HASHES = "hashes.json"
EXTRA = "not in the tree"
FICLONE = 0x40049409
"""Source: ioctl_ficlone(2), linux/fs.h: _IOW(0x94, 9, int)."""
CHUNK = 1 << 20


@record
class Difference:
    """A file that is not as the manifest says: its path, and how (``missing``, ``changed``, ``not in the tree``)."""

    path: str
    words: str


def trees_dir(root: str) -> str:
    """Where the code trees of this account are below a runs root."""
    return runs_root.trees_dir(root, os.geteuid())


def tree_dir(root: str, tree: str) -> str:
    """Where a tree is, or would be.

    Raises:
        ValueError: that is no hash of a tree.
    """
    if TREE_HASH.match(tree) is None:
        raise ValueError(f"not the hash of a code tree: {tree[:40]!r}")
    return f"{trees_dir(root)}/{tree}"


def open_store(root: str) -> str:
    """The directory of this account's trees, made where it is missing; nobody else can write there.

    Raises:
        NotPermitted: others could replace it, or it is another account's.
        StorageError: it cannot be made.
    """
    place = trees_dir(root)
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        os.makedirs(place, mode=0o700, exist_ok=True)
        check_store(root)
    except OSError as error:
        raise StorageError(
            f"code trees cannot be kept in {place}: {error.strerror}", hint="name another runs root for this place"
        ) from error
    return place


def check_store(root: str) -> None:
    """Refuse a directory of trees that somebody else can write; one that is not there is fine.

    Raises:
        NotPermitted: it is another account's, or others could replace it.
        OSError: it cannot be looked at.
    """
    place = trees_dir(root)
    try:
        seen = os.lstat(place)
    except FileNotFoundError:
        return
    hint = "name another runs root for this place, or have the directory removed"
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
        raise NotPermitted(f"{place} is not a directory of this account (uid {os.geteuid()})", hint=hint)
    if seen.st_mode & 0o022:
        raise NotPermitted(f"{place} can be written by others (mode {stat.S_IMODE(seen.st_mode):04o})", hint=hint)
    weakness = describe_weakness(place)
    if weakness:
        raise NotPermitted(f"code trees in {place} could be replaced by others: {weakness}", hint=hint)


def read_manifest(directory: str, tree: str) -> Manifest:
    """The manifest of a tree in `directory`, proven to be the one that its name says.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what the name says.
    """
    found = parse_manifest(files.read_bytes(f"{directory}/{MANIFEST}", limit=MOST_MANIFEST_BYTES))
    if found.tree != tree:
        raise ValueError(f"the manifest of {tree} is that of {found.tree}")
    return found


def compare_tree(
    directory: str, manifest: Manifest, *, memory: HashMemory | None = None, extras: bool = True
) -> Iterator[Difference]:
    """How the files in a directory differ from a manifest, in its order; with `extras` also what is there beside them.

    What Python compiles where it runs (``__pycache__``) is no difference.

    Raises:
        OSError: the directory itself cannot be read.
    """
    for entry in manifest.entries:
        words = _compare(f"{directory}/{entry.path}", entry, memory)
        if words:
            yield Difference(entry.path, words)
    if extras:
        names = {entry.path for entry in manifest.entries}
        for path in _list_files(directory):
            if path not in names:
                yield Difference(path, EXTRA)


def is_whole(root: str, tree: str) -> bool:
    """Whether a tree is there and every file of it is what the manifest says; a tree that is damaged is not there.

    What lies beside its files is not looked at: a job of root may write even there.

    Raises:
        NotPermitted: others could have replaced it.
    """
    directory = tree_dir(root, tree)
    try:
        check_store(root)
        manifest = read_manifest(directory, tree)
        memory = open_memory(directory)
        whole = next(compare_tree(f"{directory}/{FILES}", manifest, memory=memory, extras=False), None) is None
    except (OSError, ValueError):
        return False
    if whole and memory is not None:
        memory.save()
    return whole


def list_trees(root: str) -> list[str]:
    """The trees of this account below a runs root, newest first."""
    place = trees_dir(root)
    found = []
    try:
        names = os.listdir(place)
    except OSError:
        return []
    for name in names:
        if TREE_HASH.match(name):
            try:
                found.append((os.lstat(f"{place}/{name}").st_mtime_ns, name))
            except OSError:
                continue
    return [name for _, name in sorted(found, reverse=True)]


def remove_tree(path: str) -> None:
    """Remove a tree, or one that is being built; read-only directories are made writable for it.

    Raises:
        OSError: a part of it stays.
    """
    files.remove_all(path, unlock=True)


def copy_tree(source: str, target: str, manifest: Manifest) -> None:
    """Copy the files of a manifest into the new directory `target`, writable, sharing their blocks where the disk can.

    Raises:
        OSError: a file cannot be read or written; what was written so far is there.
    """
    os.mkdir(target, 0o700)
    made = {""}
    for entry in manifest.entries:
        make_parents(target, entry.path, made)
        if entry.kind == LINK:
            os.symlink(os.readlink(f"{source}/{entry.path}"), f"{target}/{entry.path}")
            continue
        mode = 0o755 if entry.kind == EXECUTABLE else 0o644
        with open_file(f"{source}/{entry.path}") as reader, create_file(f"{target}/{entry.path}", mode) as writer:
            try:
                fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
            except OSError:
                while chunk := reader.read(CHUNK):
                    files.write_all(writer.fileno(), chunk)


def make_parents(target: str, path: str, made: set[str]) -> None:
    """Make the directories above `path` in `target`; `made` are those that were made already."""
    parent = path.rpartition("/")[0]
    if parent in made:
        return
    make_parents(target, parent, made)
    os.mkdir(f"{target}/{parent}", 0o755)
    made.add(parent)


def open_file(path: str) -> FileIO:
    """A regular file to read.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    file = FileIO(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def create_file(path: str, mode: int) -> FileIO:
    """A new file to write.

    Raises:
        OSError: it cannot be made, or there is something already.
    """
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "wb")


def read_pieces(path: str) -> Iterator[bytes]:
    """The content of a regular file. Raises as `open_file` does."""
    with open_file(path) as file:
        while piece := file.read(CHUNK):
            yield piece


def write_file(path: str, pieces: Iterable[bytes], mode: int) -> str:
    """Write a new file; answers the SHA-256 of what was written.

    Raises:
        OSError: it cannot be made or written.
    """
    digest = hashlib.sha256()
    with create_file(path, mode) as file:
        for piece in pieces:
            files.write_all(file.fileno(), piece)
            digest.update(piece)
    return digest.hexdigest()


def hash_content(path: str, entry: CodeEntry) -> str | None:
    """SHA-256 of a file or link as an entry of this kind and size has it; None where it is of another size.

    Raises:
        OSError: it cannot be read, or is of another kind.
    """
    if entry.kind == LINK:
        return hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
    digest, size = hashlib.sha256(), 0
    for piece in read_pieces(path):
        digest.update(piece)
        size += len(piece)
        if size > entry.size:
            return None
    return digest.hexdigest()


def open_memory(directory: str) -> HashMemory | None:
    """What the files of a tree hashed to since this box began; None where the kernel does not tell when that was."""
    boot = clock.boot_id()
    return HashMemory(f"{directory}/{HASHES}", epoch=boot) if boot else None


def holds(directory: str, entry: CodeEntry, memory: HashMemory | None) -> bool:
    """Whether a file of a tree has the content of its entry: read, or remembered and not touched since."""
    path = f"{directory}/{FILES}/{entry.path}"
    try:
        known = None if memory is None else memory.recall(entry.path, os.lstat(path))
        return (known.sha256 if known is not None else hash_content(path, entry)) == entry.sha256
    except OSError:
        return False


def _compare(path: str, entry: CodeEntry, memory: HashMemory | None) -> str:
    try:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode) != (entry.kind == LINK):
            return "changed: of another kind"
        if entry.kind != LINK and bool(seen.st_mode & stat.S_IXUSR) != (entry.kind == "x"):
            return "changed: its right to be executed"
        known = None if memory is None else memory.recall(entry.path, seen)
        settled_ns = settle_file(path) if memory is not None and known is None else 0
        seen = os.lstat(path)
        found = known.sha256 if known is not None else hash_content(path, entry)
        if found != entry.sha256:
            return "changed"
        if memory is not None and known is None:
            memory.remember(entry.path, seen, Remembered(found, entry.size), settled_ns=settled_ns)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def _list_files(directory: str, prefix: str = "") -> Iterator[str]:
    with os.scandir(f"{directory}/{prefix}") as entries:
        listed = list(entries)
    for entry in listed:
        if entry.name == "__pycache__":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _list_files(directory, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"
