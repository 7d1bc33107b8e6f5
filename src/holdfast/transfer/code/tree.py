"""A job's code as it is sent: the manifest of what git sees, and what is refused or said about it (XPORT-14, XPORT-16).

Each file is read once, and what was read is what the manifest says: a shell script with Windows line ends counts as it
is sent, mended. Sent is nothing but files and links that stay inside. Refused, all at once and with what to do: private
keys, files that hold credentials, large files that git does not have, sockets and the like, a tree beyond all measure.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.core.code import refusals
from holdfast.core.code.ignore import IGNORE_FILE, is_asked_for
from holdfast.core.code.manifest import (
    EXECUTABLE,
    FILE,
    LINK,
    MOST_BYTES,
    MOST_FILES,
    CodeEntry,
    Manifest,
    build_manifest,
    leads_out,
)
from holdfast.core.code.requirements import describe_replacing, is_requirements_file
from holdfast.core.control_characters import clean
from holdfast.core.digest import sha256_hex
from holdfast.host.files.code.hashes import HashMemory, choose_memory
from holdfast.model.errors import PreflightFailed, StorageError
from holdfast.model.order import CodeRef
from holdfast.model.record import field, record
from holdfast.model.units import format_bytes

from .content import CHUNK, MENDED, POINTER, hash_file, name_some
from .listing import list_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .listing import Listing


@record
class CodeTree:
    """A tree that can be sent. `ref` is what an order says of it, `top` where it lies here; `warnings` are for people.

    `mended` are paths of scripts that are sent with their line ends mended.
    """

    top: str
    ref: CodeRef
    manifest: Manifest
    warnings: tuple[str, ...] = ()
    mended: frozenset[str] = frozenset()

    @property
    def entries(self) -> tuple[CodeEntry, ...]:
        """What is sent, in the order of the manifest."""
        return self.manifest.entries


@record
class _Read:
    """What was found while the files were read; refusals by what is wrong."""

    entries: list[CodeEntry] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    pointers: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_tree(workdir: str, environ: Mapping[str, str]) -> CodeTree:
    """The code around a job's working directory, as it is sent to a box.

    Raises:
        PreflightFailed: something in it must not be sent, or it is too large; all of it is named, with what to do.
        StorageError: it cannot be read, or git cannot list it.
    """
    listing = list_code(workdir, environ)
    _refuse_size(listing)
    memory = HashMemory(choose_memory(environ, sha256_hex(os.fsencode(listing.top))[:16]))
    found = _Read()
    for path in listing.paths:
        _read_entry(path, listing, memory, found)
    memory.save()
    _refuse(found, listing)
    manifest = build_manifest(found.entries)
    below = os.path.relpath(os.path.realpath(workdir), listing.top)
    ref = CodeRef(
        tree=manifest.tree,
        files=len(manifest.entries),
        bytes=manifest.bytes,
        workdir="" if below == "." else below,
        commit=listing.commit,
        dirty=listing.dirty,
    )
    return CodeTree(listing.top, ref, manifest, tuple(_warn(found, listing)), frozenset(found.mended))


def _read_entry(path: str, listing: Listing, memory: HashMemory, found: _Read) -> None:
    full = f"{listing.top}/{path}"
    name = path.rpartition("/")[2]
    try:
        seen = os.lstat(full)
        if stat.S_ISLNK(seen.st_mode):
            _read_link(path, listing.top, found)
        elif not stat.S_ISREG(seen.st_mode):
            found.special.append(path)
        elif refusals.is_key_name(name):
            found.keys.append(path)
        elif refusals.is_credential_name(name) and not is_asked_for(path, listing.patterns):
            found.credentials.append(path)
        elif (
            seen.st_size > refusals.LARGEST_UNTRACKED_BYTES
            and path not in listing.tracked
            and not is_asked_for(path, listing.patterns)
        ):
            found.large.append(f"{clean(path)} ({format_bytes(seen.st_size)})")
        else:
            _read_file(path, full, seen, memory, found)
    except FileNotFoundError:
        return  # deleted since it was listed
    except OSError as error:
        found.unreadable.append(f"{clean(path)} ({error.strerror})")


def _read_link(path: str, top: str, found: _Read) -> None:
    target = os.readlink(f"{top}/{path}")
    real = os.path.realpath(f"{top}/{path}")
    if leads_out(path, target) or not (real == top or real.startswith(f"{top}/")):
        found.outside.append(f"{clean(path)} -> {clean(target)}")
        return
    content = os.fsencode(target)
    found.entries.append(CodeEntry(path, LINK, sha256_hex(content), len(content)))


def _read_file(path: str, full: str, seen: os.stat_result, memory: HashMemory, found: _Read) -> None:
    known = memory.recall(path, seen)
    if known is None:
        known = hash_file(path, full, memory, mends=True)
        if known is None:
            found.keys.append(path)
            return
    if known.notes == MENDED:
        found.mended.append(path)
    elif known.notes == POINTER:
        found.pointers.append(path)
    kind = EXECUTABLE if seen.st_mode & stat.S_IXUSR else FILE
    found.entries.append(CodeEntry(path, kind, known.sha256, known.size))


# ---- what is said of it


def _refuse_size(listing: Listing) -> None:
    """Before anything is read: what is beyond all measure is no code."""
    sizes: Counter[str] = Counter()
    for path in listing.paths:
        try:
            seen = os.lstat(f"{listing.top}/{path}")
        except OSError:
            continue
        sizes["/".join(path.split("/")[:-1][:2]) or "."] += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    total, count = sum(sizes.values()), len(listing.paths)
    if total <= MOST_BYTES and count <= MOST_FILES:
        return
    largest = ", ".join(f"{clean(path)} ({format_bytes(size)})" for path, size in sizes.most_common(5))
    raise PreflightFailed(
        f"the code in {clean(listing.top)} cannot be sent, and nothing was: {format_bytes(total)} in {count} files are"
        f" more than code can be ({format_bytes(MOST_BYTES)}, {MOST_FILES} files); the largest directories: {largest}",
        hint=f"name what is no code in {IGNORE_FILE} at its top, and bring data by `holdfast push`",
    )


def _refuse(found: _Read, listing: Listing) -> None:
    kinds = (
        (
            "private keys, which never leave",
            found.keys,
            f"move them out of {clean(listing.top)}, or name them in {IGNORE_FILE}",
        ),
        (
            "files that usually hold credentials",
            found.credentials,
            f"name them in {IGNORE_FILE} (to send one: a line !NAME there); secrets go by `holdfast secret push`",
        ),
        (
            f"untracked files over {format_bytes(refusals.LARGEST_UNTRACKED_BYTES)}",
            found.large,
            f"name them in {IGNORE_FILE}, and bring data by `holdfast push` (to send one as it is: a line !NAME there)",
        ),
        ("no files, directories or links", found.special, f"name them in {IGNORE_FILE}, or remove them"),
        ("not readable", found.unreadable, f"chmod u+r them, or name them in {IGNORE_FILE}"),
    )
    wrong = [kind for kind in kinds if kind[1]]
    if wrong:
        text = "\n".join(f"{what}: {name_some(names)}" for what, names, _ in wrong)
        raise PreflightFailed(
            f"the code in {clean(listing.top)} cannot be sent, and nothing was:\n{text}",
            hint="; ".join(remedy for _, _, remedy in wrong),
            details={
                "top": listing.top,
                "refused": {what: [clean(name) for name in names] for what, names, _ in wrong},
            },
        )


def _warn(found: _Read, listing: Listing) -> Iterator[str]:
    yield from listing.notes
    if found.mended:
        yield f"sent with Unix line ends, which shells need: {name_some(found.mended)}"
    if found.pointers:
        yield f"only pointers of git LFS, their files were never fetched (git lfs pull): {name_some(found.pointers)}"
    if found.outside:
        yield f"links that lead out of the tree are left out: {name_some(found.outside)}"
    if listing.repositories:
        yield f"other repositories inside are sent as they lie here: {name_some(listing.repositories)}"
    if listing.absent:
        yield f"submodules without files here (git submodule update --init): {name_some(listing.absent)}"
    nested = [path for path in listing.paths if path.endswith(f"/{IGNORE_FILE}")]
    if nested:
        yield f"only the {IGNORE_FILE} at the top, {clean(listing.top)}, is read: {name_some(nested)}"
    for entry in found.entries:
        if is_requirements_file(entry.path) and entry.size <= CHUNK:
            yield from _warn_of_requirements(listing.top, entry)


def _warn_of_requirements(top: str, entry: CodeEntry) -> Iterator[str]:
    try:
        with open(f"{top}/{entry.path}", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        raise StorageError(f"{top}/{entry.path}: {error.strerror}", hint="run the same command again") from error
    words = describe_replacing(entry.path, text)
    if words:
        yield words
