"""Rosters of data: beside a data set, path, size and SHA-256 of every file of it that was sent there and proven.

``.holdfast-roster`` has the form of a code tree's manifest. It is whole or not there: it is written when every file of
it stands in its place. What the files hashed to is remembered by size, times and inode, so that only what was touched
since is read again.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from holdfast.core.code.manifest import LINK, MOST_MANIFEST_BYTES, ROSTER, Manifest, parse_manifest
from holdfast.core.digest import sha256_hex
from holdfast.host.files import files

from .hashes import HashMemory, Remembered, choose_memory, settle_file
from .store import hash_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.code.manifest import CodeEntry

MOST_BYTES = 1 << 50
"""A roster of more is a mistake."""


def read_roster(directory: str) -> Manifest | None:
    """The roster of a directory; None where there is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none.
    """
    try:
        data = files.read_bytes(f"{directory}/{ROSTER}", limit=MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        return None
    return parse_manifest(data, most_bytes=MOST_BYTES)


def open_memory(directory: str, environ: Mapping[str, str]) -> HashMemory:
    """What the files of a data set hashed to."""
    return HashMemory(choose_memory(environ, f"data-{sha256_hex(os.fsencode(directory))[:16]}"))


def look_at(directory: str, entry: CodeEntry, memory: HashMemory, *, read: bool = True) -> bool | None:
    """Whether a file is what its entry says; None where only reading it could tell, and that is not wanted.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    path = f"{directory}/{entry.path}"
    seen = os.lstat(path)
    if stat.S_ISLNK(seen.st_mode) != (entry.kind == LINK) or seen.st_size != entry.size:
        return False
    if entry.kind != LINK and not stat.S_ISREG(seen.st_mode):
        return False
    known = memory.recall(entry.path, seen)
    if known is not None:
        return known.sha256 == entry.sha256
    if not read and entry.kind != LINK:
        return None
    settled_ns = settle_file(path)
    seen = os.lstat(path)
    found = hash_content(path, entry)
    if found is None:
        return False
    memory.remember(entry.path, seen, Remembered(found, entry.size), settled_ns=settled_ns)
    return found == entry.sha256
