"""Taking a code tree from a stream: built aside, proven file by file, made read-only, renamed into place.

What arrives is believed in nothing: the manifest must have the hash that was asked for, each content the hash that its
entry says as it goes to the disk, and only files of the manifest are made, in directories that are made here, links
last. A content that is not in the stream is copied from another tree of this account. Whoever is cut off or killed
leaves a hidden directory, of whose files the next one makes use; after an hour without a word it is swept.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import EXECUTABLE, LINK, leads_out, parse_manifest
from holdfast.core.code.stream import StreamCut, StreamError, StreamReader
from holdfast.host.files import files, trees
from holdfast.model.errors import StorageError, UsageError

from . import store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.code.manifest import CodeEntry, Manifest

LOOKED_AT = 5
"""How many trees a content is looked for in, newest first."""
REPEAT = "run the same command again"


def find_missing(root: str, manifest: Manifest) -> tuple[str, ...]:
    """The contents of a manifest, by hash, that no tree of this account here has; a link's is always sent."""
    wanted = dict.fromkeys(entry.sha256 for entry in manifest.entries)
    here = _find_contents(root, set(wanted), read=True)
    links = {entry.sha256 for entry in manifest.entries if entry.kind == LINK}
    return tuple(digest for digest in wanted if digest not in here or digest in links)


def receive_tree(root: str, tree: str, read: Callable[[int], bytes]) -> Manifest:
    """Take a tree from a stream; at the end it is there, whole, whoever else sends it at the same time.

    Raises:
        UsageError: what arrives is not that tree.
        StorageError: it was cut off, a content is neither in it nor here, or the disk does not take it.
        NotPermitted: others could replace what is written.
    """
    place = store.open_store(root)
    sweep_store(root)
    aside = files.name_temporary(f"{place}/{tree}")
    try:
        os.mkdir(aside, 0o700)
        manifest = _build(StreamReader(read), aside, tree, root)
        _settle(aside, place, manifest)
    except StreamCut as error:
        # What arrived stays for the next one.
        if not os.path.exists(f"{aside}/{store.FILES}"):
            _remove(aside)
        raise StorageError(f"the code did not arrive whole: {error}", hint=REPEAT) from error
    except StreamError as error:
        _remove(aside)
        raise UsageError(f"refused as code: {error}", hint=REPEAT) from error
    except OSError as error:
        explained = _explain(error, place)  # before room is made
        _remove(aside)
        raise explained from error
    except (StorageError, UsageError):
        _remove(aside)
        raise
    return manifest


def sweep_store(root: str) -> int:
    """Remove what receivers left that were cut off or killed long ago; answers how many."""
    place, count = store.trees_dir(root), 0
    for name in trees.list_stale(place):
        count += _remove(f"{place}/{name}")
    return count


def _build(reader: StreamReader, aside: str, tree: str, root: str) -> Manifest:
    data = reader.manifest()
    try:
        manifest = parse_manifest(data)
    except ValueError as error:
        raise StreamError(str(error)) from error
    if manifest.tree != tree:
        raise StreamError(f"the manifest is that of {manifest.tree}, not of {tree}")
    store.write_file(f"{aside}/{store.MANIFEST}", (data,), 0o400)
    top = f"{aside}/{store.FILES}"
    os.mkdir(top, 0o700)
    by_content: dict[str, list[CodeEntry]] = {}
    made = {""}
    for entry in manifest.entries:
        store.make_parents(top, entry.path, made)
        by_content.setdefault(entry.sha256, []).append(entry)
    links = _take_contents(reader, aside, by_content)
    if by_content:
        _copy_contents(root, top, by_content)
    for entry, target in links:
        if leads_out(entry.path, target):
            raise StreamError(f"the link {entry.path!r} leads out of the tree")
        os.symlink(target, f"{top}/{entry.path}")
    return manifest


def _take_contents(
    reader: StreamReader, aside: str, by_content: dict[str, list[CodeEntry]]
) -> list[tuple[CodeEntry, str]]:
    """Write what is in the stream; takes it out of `by_content`, and answers the links that are to be made."""
    top, links = f"{aside}/{store.FILES}", []
    while (head := reader.next_file()) is not None:
        digest, size = head
        entries = by_content.pop(digest, None)
        if entries is None or any(entry.size != size for entry in entries):
            raise StreamError(f"a content that was not asked for, or twice: {digest}")
        plain = [entry for entry in entries if entry.kind != LINK]
        if len(plain) < len(entries):
            content = b"".join(_read_content(reader, size, aside))
            found = hashlib.sha256(content).hexdigest()
            links += [(entry, os.fsdecode(content)) for entry in entries if entry.kind == LINK]
            if plain:
                store.write_file(f"{top}/{plain[0].path}", (content,), _mode(plain[0]))
        else:
            found = store.write_file(f"{top}/{plain[0].path}", _read_content(reader, size, aside), _mode(plain[0]))
        if found != digest:
            raise StreamError(f"a content is not what its hash says: {digest}")
        for entry in plain[1:]:
            _copy(f"{top}/{plain[0].path}", top, entry)
    return links


def _read_content(reader: StreamReader, size: int, aside: str) -> Iterator[bytes]:
    """The next content; with each piece the directory says that somebody is at it."""
    for piece in reader.content(size):
        os.utime(aside)
        yield piece


def _copy_contents(root: str, top: str, by_content: dict[str, list[CodeEntry]]) -> None:
    """Copy what was not sent from other trees of this account, hashed again on the way."""
    here = _find_contents(root, set(by_content), read=False)
    for digest, entries in by_content.items():
        source = here.get(digest)
        if source is None or any(entry.kind == LINK for entry in entries):
            raise StorageError(
                f"{entries[0].path} was not sent, and no other tree here has it", hint=REPEAT, details={"again": True}
            )
        for entry in entries:
            _copy(source, top, entry)


def _copy(source: str, top: str, entry: CodeEntry) -> None:
    if store.write_file(f"{top}/{entry.path}", store.read_pieces(source), _mode(entry)) != entry.sha256:
        raise StorageError(
            f"{source} was changed, and cannot be copied to {entry.path}", hint=REPEAT, details={"again": True}
        )


def _find_contents(root: str, wanted: set[str], *, read: bool) -> dict[str, str]:
    """Where files of these hashes lie here already: proven with `read`, else by what the manifests there say."""
    place = store.trees_dir(root)
    found: dict[str, str] = {}
    try:
        begun = [name for name in os.listdir(place) if files.is_temporary(name)]
    except OSError:
        return found
    for name in (*store.list_trees(root)[:LOOKED_AT], *begun[:LOOKED_AT]):
        if not wanted:
            break
        directory = f"{place}/{name}"
        try:
            entries = store.read_manifest(directory, name[1:].split(".")[0] if name.startswith(".") else name).entries
        except (OSError, ValueError):
            continue
        memory = store.open_memory(directory) if read else None
        for entry in entries:
            if entry.sha256 not in wanted or entry.kind == LINK:
                continue
            path = f"{directory}/{store.FILES}/{entry.path}"
            if store.holds(directory, entry, memory) if read else os.path.isfile(path):
                found[entry.sha256] = path
                wanted.discard(entry.sha256)
    return found


def _mode(entry: CodeEntry) -> int:
    return 0o500 if entry.kind == EXECUTABLE else 0o400


# ---- into place


def _settle(aside: str, place: str, manifest: Manifest) -> None:
    """Rename the tree into place; where it is already, mend what is damaged of it, file by file."""
    target = f"{place}/{manifest.tree}"
    _close_directories(f"{aside}/{store.FILES}")
    try:
        os.rename(aside, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _mend(aside, target, manifest)
        _remove(aside)


def _close_directories(top: str) -> None:
    for directory, _, _ in os.walk(top):
        os.chmod(directory, 0o500)


def _mend(aside: str, target: str, manifest: Manifest) -> None:
    try:
        store.read_manifest(target, manifest.tree)
    except (OSError, ValueError):
        os.rename(f"{aside}/{store.MANIFEST}", f"{target}/{store.MANIFEST}")
    os.makedirs(f"{target}/{store.FILES}", mode=0o700, exist_ok=True)
    for found in list(store.compare_tree(f"{target}/{store.FILES}", manifest, extras=False)):
        path, whole = f"{target}/{store.FILES}/{found.path}", f"{aside}/{store.FILES}/{found.path}"
        os.chmod(os.path.dirname(whole), 0o700)
        os.chmod(_make_way(path), 0o700)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.rename(whole, path)
    _close_directories(f"{target}/{store.FILES}")


def _make_way(path: str) -> str:
    """The nearest directory above that is there."""
    parent = os.path.dirname(path)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    return parent


def _remove(path: str) -> bool:
    try:
        store.remove_tree(path)
    except OSError:
        return False
    return True


def _explain(error: OSError, place: str) -> StorageError:
    words, look = files.explain_refusal(error, os.path.dirname(place))
    hint = f"see {look} there, make room, or name another runs root for this place"
    return StorageError(f"the code cannot be written below {place}: {words}; nothing of it was kept", hint=hint)
