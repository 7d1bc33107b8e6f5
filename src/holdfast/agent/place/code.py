"""The entry ``code``: trees of code on this box, for a desk that sends them.

| words | standard input | answer |
|---|---|---|
| ``has ROOT TREE`` | | ``present``: it is there, every file as its manifest says; ``trees``: how many others are |
| ``missing ROOT TREE`` | its manifest | ``missing``: the hashes of the contents that have to be sent |
| ``receive ROOT TREE`` | a stream (`core.code.stream`) | ``files`` and ``bytes`` of the tree, which is there now |
"""

from __future__ import annotations

import os
import sys

from holdfast.core.code.manifest import MOST_MANIFEST_BYTES, parse_manifest
from holdfast.host.files.code import store
from holdfast.host.files.code.receive import find_missing, receive_tree
from holdfast.model.errors import UsageError

from .answer import answer


def main(words: list[str]) -> int:
    """Answer one question about code; the exit code."""
    previous = os.umask(0o077)
    try:
        return answer(lambda: _answer(words))
    finally:
        os.umask(previous)


def _answer(words: list[str]) -> dict[str, object]:
    if len(words) != 3 or words[0] not in ("has", "missing", "receive"):
        raise UsageError("agent code takes: has|missing|receive ROOT TREE")
    verb, root, tree = words
    try:
        store.tree_dir(root, tree)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if verb == "has":
        return {"present": store.is_whole(root, tree), "trees": _count_sources(root)}
    if verb == "missing":
        try:
            manifest = parse_manifest(sys.stdin.buffer.read(MOST_MANIFEST_BYTES + 1))
        except ValueError as error:
            raise UsageError(f"refused as code: {error}") from error
        return {"missing": list(find_missing(root, manifest))}
    taken = receive_tree(root, tree, lambda size: os.read(sys.stdin.fileno(), size))
    return {"tree": taken.tree, "files": len(taken.entries), "bytes": taken.bytes}


def _count_sources(root: str) -> int:
    """How many directories here may have contents that need not be sent."""
    try:
        return len(os.listdir(store.trees_dir(root)))
    except OSError:
        return 0
