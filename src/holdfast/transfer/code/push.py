"""Sends a code tree to a box: one call when it is there already, else only the contents that the box does not have.

The proof is the box's: it hashes every file before the tree gets its name. Who is cut off calls again: what arrived
whole is not sent again. Contents are compressed where a sample says that it pays (XPORT-18).
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

from holdfast.core.code import stream
from holdfast.core.code.manifest import LINK, MOST_MANIFEST_BYTES, parse_manifest
from holdfast.core.digest import sha256_hex
from holdfast.host.files import files
from holdfast.host.files.code.hashes import choose_memory
from holdfast.model.errors import HoldfastError, InternalError, StorageError

from .content import READ, send_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.core.code.manifest import CodeEntry
    from holdfast.transfer.box import Box

    from .tree import CodeTree

ENTRY = "code"
ASK_LIMIT_S = 120.0
"""The box reads what it has of the tree again: up to 2 GiB, from a disk that may be cold."""
SLOWEST_BYTES_S = 20_000
"""A line slower than this is no line for code."""
SAMPLE_BYTES = 1 << 18
SAMPLED_BYTES = 1 << 15
WHILE_SENT = "the code was sent; nothing was started"
SEND_AGAIN = "run the same command again; a file that is always written belongs into .holdfastignore"
SMALL_STEP_BYTES = 1 << 20
SMALL_TREE_BYTES = 1 << 18
"""A tree of which nothing is known there is sent without asking up to here: sooner there than an answer, most often."""
WORTH_IT = 0.9
"""Compressed where a sample shrinks by a tenth."""


def push_tree(box: Box, tree: CodeTree, *, tell: Callable[[int, int], None] | None = None) -> None:
    """Have the tree on the box, whole; nothing is sent when it is there.

    `tell` gets the bytes of content that were handed to the connection, and how many there are.

    Raises:
        StorageError: a file was changed or removed since the tree was read; or the box cannot keep it.
        NotPermitted: on the box others could replace what is written.
        PlaceError: the place gave no answer. What arrived is kept there for an hour, and not sent again.
    """
    root = box.ensure().root
    memory = PushMemory(box.place.name, root, tree)
    contents = memory.changed if memory.is_small_step() else _ask(box, root, tree)
    if contents is not None:
        try:
            _send(box, root, tree, contents, tell)
        except StorageError as error:
            # The box has no more what it had: it says what it has.
            if error.details.get("again") is not True:
                raise
            contents = _ask(box, root, tree)
            if contents is not None:
                _send(box, root, tree, contents, tell)
    memory.keep()


class PushMemory:
    """The tree that was there last of the same directory for the same box: most often little was changed since.

    `last` is its hash (empty: none is known), `changed` the contents of the tree that it has not.
    """

    def __init__(self, place: str, root: str, tree: CodeTree) -> None:
        """Read what is known; a memory that is damaged is none."""
        name = sha256_hex(os.fsencode(f"{place}\0{root}\0{tree.top}"))[:16]
        self._path = choose_memory(os.environ, f"pushed-{name}")
        self._tree = tree
        self.last, known = "", set[str]()
        try:
            manifest = parse_manifest(files.read_bytes(self._path, limit=MOST_MANIFEST_BYTES))
            self.last, known = manifest.tree, {entry.sha256 for entry in manifest.entries if entry.kind != LINK}
        except (OSError, ValueError):
            pass
        self.changed = {entry.sha256: entry for entry in tree.entries if entry.sha256 not in known}

    def is_small_step(self) -> bool:
        """Whether it is so little that it is sent without asking whether it is there."""
        most = SMALL_STEP_BYTES if self.last else SMALL_TREE_BYTES
        return self.last != self._tree.ref.tree and sum(entry.size for entry in self.changed.values()) <= most

    def keep(self) -> None:
        """The tree is there now. Where that cannot be noted the next push asks more."""
        if self.last != self._tree.ref.tree:
            try:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                files.commit(self._path, self._tree.manifest.data, durable=False)
            except OSError:
                return


def _ask(box: Box, root: str, tree: CodeTree) -> dict[str, CodeEntry] | None:
    """The contents that the box lacks, by hash; None where it has the tree."""
    words = (root, tree.ref.tree)
    answer = box.entry(ENTRY, ("has", *words), limit_s=ASK_LIMIT_S)
    if answer.get("present") is True:
        return None
    contents = {entry.sha256: entry for entry in tree.entries}
    if not answer.get("trees"):
        return contents
    answer = box.entry(ENTRY, ("missing", *words), stdin=tree.manifest.data, limit_s=ASK_LIMIT_S)
    return {digest: contents[digest] for digest in _read_missing(answer, contents)}


def _send(
    box: Box,
    root: str,
    tree: CodeTree,
    contents: Mapping[str, CodeEntry],
    tell: Callable[[int, int], None] | None,
) -> None:
    total = sum(entry.size for entry in contents.values())
    largest = sorted(contents.values(), key=lambda entry: entry.size, reverse=True)
    deflate = shrinks(f"{tree.top}/{entry.path}" for entry in largest if entry.kind != LINK)
    limit_s = ASK_LIMIT_S + (total + len(tree.manifest.data)) / SLOWEST_BYTES_S
    # A file that was changed ends the stream early, and the error that the box makes of that is not what is wrong.
    problem: list[StorageError] = []
    sent = _Stream(lambda: stream.pack(_make_frames(tree, contents, tell, problem), deflate=deflate))
    words = ("receive", root, tree.ref.tree)
    try:
        box.entry(ENTRY, words, stdin=sent, limit_s=limit_s)
    except HoldfastError:
        if problem:
            raise problem[0] from None
        raise


class _Stream:
    """What is sent, made anew whenever it is read: a call that found no bundle there is made again."""

    def __init__(self, make: Callable[[], Iterator[bytes]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[bytes]:
        return self._make()


def _read_missing(answer: Mapping[str, Any], contents: Mapping[str, CodeEntry]) -> list[str]:
    """The hashes that the box asks for: only such as the tree has.

    Raises:
        InternalError: its answer is none.
    """
    asked = answer.get("missing")
    if not isinstance(asked, list) or not all(isinstance(digest, str) and digest in contents for digest in asked):
        raise InternalError("the box asks for contents that the code does not have")
    return list(dict.fromkeys(asked))


def _make_frames(
    tree: CodeTree,
    contents: Mapping[str, CodeEntry],
    tell: Callable[[int, int], None] | None,
    problem: list[StorageError],
) -> Iterator[bytes]:
    yield stream.head_manifest(len(tree.manifest.data)) + tree.manifest.data
    done, total = 0, sum(entry.size for entry in contents.values())
    for digest, entry in contents.items():
        yield stream.head_file(digest, entry.size)
        try:
            path, mended = f"{tree.top}/{entry.path}", entry.path in tree.mended
            for piece in send_file(path, entry, during=WHILE_SENT, hint=SEND_AGAIN, mended=mended):
                yield piece
                done += len(piece)
                if tell is not None:
                    tell(done, total)
        except StorageError as error:
            problem.append(error)
            return
    yield stream.END


def shrinks(paths: Iterable[str]) -> bool:
    """Whether a sample, of the beginnings of these files, shrinks by a tenth."""
    sample = bytearray()
    for path in paths:
        if len(sample) >= SAMPLE_BYTES:
            break
        try:
            descriptor = os.open(path, READ)
            try:
                sample += os.read(descriptor, SAMPLED_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            continue
    return bool(sample) and len(zlib.compress(bytes(sample), 1)) <= WORTH_IT * len(sample)
