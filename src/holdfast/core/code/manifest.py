"""The manifest of a code tree: path, kind, size and SHA-256 of each file; the hash of it names the tree.

One record a file, in the order of the paths' bytes, each ended by a zero byte, so that a name may hold anything that a
file name can: ``KIND SHA256 SIZE<tab>PATH``. `KIND` is ``f`` (a file), ``x`` (a file that may be executed) or ``l`` (a
symbolic link: its target is its content). There is one way only to write a tree, so equal trees have equal hashes. The
roster of a run is written in the same way under a head of its own: it also has ``d`` (an empty directory), and what
stands there for the SHA-256 of a link is no file's (`hash_link`).

A manifest comes from another machine: `parse_manifest` refuses whatever could lead out of the tree. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.core.digest import sha256_hex
from holdfast.model.record import record

from .ignore import IGNORE_FILE

FORMAT, RUN_FORMAT = b"holdfast-code 1\n", b"holdfast-run 1\n"
MOST_FILES = 100_000
MOST_BYTES = 2 * 1024**3
"""A tree of code that is larger holds data, which has other ways to a box."""
MOST_MANIFEST_BYTES = 64 * 1024**2
LONGEST_PATH = 4095
LONGEST_NAME = 255
LONGEST_TARGET = 4095
PROGRAM_NAMES = (
    *(".py", ".pyx", ".pyi", ".sh", ".bash", ".so", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs", ".jl"),
    *(".js", ".ts", ".pl", ".lua", ".r", ".R"),
)
"""What a job surely does not write itself: how names of programs end."""
ROSTER, PUSHING = ".holdfast-roster", ".holdfast-push"
"""Beside data that was pushed: its roster; and while it arrives, parts of it."""
OWN_NAMES = frozenset({IGNORE_FILE, ROSTER, PUSHING})
TREE_HASH = re.compile(r"[0-9a-f]{16}\Z")
FILE, EXECUTABLE, LINK, DIRECTORY = "f", "x", "l", "d"
DIRECTORY_SUM = sha256_hex(b"directory\0")
"""What stands for the SHA-256 of an empty directory."""
_SHORT = 16
_NO_NAMES = frozenset({b"", b".", b".."})
_RECORD = re.compile(rb"([fxld]) ([0-9a-f]{64}) (0|[1-9][0-9]{0,15})\t(.+)", re.DOTALL)


@record
class CodeEntry:
    """One file of a tree as it is sent. `path` is relative, as `os.fsdecode` has it; sizes in bytes."""

    path: str
    kind: str
    sha256: str
    size: int


@record
class Manifest:
    """A tree: its entries in order, their bytes as written, and the first 16 digits of the SHA-256 of these."""

    entries: tuple[CodeEntry, ...]
    data: bytes
    tree: str

    @property
    def bytes(self) -> int:
        """What all files hold together."""
        return sum(entry.size for entry in self.entries)


def build_manifest(entries: Iterable[CodeEntry], form: bytes = FORMAT) -> Manifest:
    """The manifest of these entries, which may come in any order."""
    ordered = sorted(entries, key=lambda entry: encode_path(entry.path))
    data = form + b"".join(
        f"{entry.kind} {entry.sha256} {entry.size}\t".encode("ascii") + encode_path(entry.path) + b"\0"
        for entry in ordered
    )
    return Manifest(tuple(ordered), data, hash_tree(data))


def state_files(manifest: Manifest, *, besides: Iterable[str] = ()) -> dict[str, str]:
    """What each file of a tree is, in short, without `besides` and what holdfast itself puts beside code."""
    left_out = frozenset(besides)
    return {
        entry.path: f"{entry.kind}{entry.sha256[:_SHORT]}"
        for entry in manifest.entries
        if entry.path not in left_out and entry.path.rpartition("/")[2] not in OWN_NAMES
    }


def describe_other_code(before: Mapping[str, str], now: Mapping[str, str], words: Iterable[str]) -> list[str]:
    """Which files make the code `now` another one than `before`, both as `state_files` has them; empty: none does.

    A file that is new or gone counts where it is a program, and a new one where `words`, of the command, name it: what
    else comes and goes beside code is data, exports, or what holdfast has written there.
    """
    words = tuple(words)
    found = []
    for path in sorted({*before, *now}, key=encode_path):
        old, new = before.get(path), now.get(path)
        if old is not None and new is not None:
            found += [f"{path} was changed"] if old != new else []
        elif path.endswith(PROGRAM_NAMES) or str(old or new).startswith(EXECUTABLE):
            found.append(f"{path} is {'gone' if new is None else 'new'}")
        elif old is None and any(path.rpartition("/")[2] in word for word in words):
            found.append(f"{path}, which the command names, is new")
    return found


def hash_link(target: bytes) -> str:
    """What stands for the SHA-256 of a link in the roster of a run: a file that holds the link's target has another."""
    return sha256_hex(b"link\0" + target)


def hash_tree(manifest: bytes) -> str:
    """The name of the tree that has this manifest."""
    return sha256_hex(manifest)[:16]


def encode_path(path: str) -> bytes:
    """A path's bytes, also of a name that is no UTF-8."""
    return path.encode("utf-8", "surrogateescape")


def parse_manifest(
    data: bytes, *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES, form: bytes = FORMAT
) -> Manifest:
    """Read a manifest, of at most `most_files` files with at most `most_bytes` together.

    Raises:
        ValueError: it is none, is not in order, is too large, or names a place outside of the tree.
    """
    if not data.startswith(form) or len(data) > MOST_MANIFEST_BYTES:
        raise ValueError("not a manifest of code that this version reads")
    records = data[len(form) :].split(b"\0")
    if records.pop():
        raise ValueError("the manifest is torn")
    if len(records) > most_files:
        raise ValueError(f"more than {most_files} files")
    entries, last, total = [], b"", 0
    for record_ in records:
        match = _RECORD.fullmatch(record_)
        if match is None or (match[1] == b"d" and form != RUN_FORMAT):
            raise ValueError(f"not a record of a manifest: {record_[:100]!r}")
        kind, digest, size, path = match[1].decode(), match[2].decode(), int(match[3]), match[4]
        check_path(path)
        if path <= last:
            raise ValueError(f"out of order, or there twice: {path[:100]!r}")
        if kind == LINK and size > LONGEST_TARGET:
            raise ValueError(f"the target of the link {path[:100]!r} is too long")
        last, total = path, total + size
        entries.append(CodeEntry(path.decode("utf-8", "surrogateescape"), kind, digest, size))
    if total > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    _check_parents(entries)
    return Manifest(tuple(entries), data, hash_tree(data))


def check_path(path: bytes) -> None:
    """Refuse a path that leads out of a tree, or that no file can have.

    Raises:
        ValueError: it is absolute, has empty parts or dots, or is too long.
    """
    parts = path.split(b"/")
    if len(path) > LONGEST_PATH or max(map(len, parts)) > LONGEST_NAME:
        raise ValueError(f"too long a path: {path[:100]!r}")
    if not _NO_NAMES.isdisjoint(parts) or b"\0" in path:
        raise ValueError(f"not a path in a tree: {path[:100]!r}")


def _check_parents(entries: list[CodeEntry]) -> None:
    """A file or link is nobody's directory: nothing is ever written through it."""
    names, proven = {entry.path for entry in entries}, {""}
    for entry in entries:
        parent = entry.path.rpartition("/")[0]
        while parent not in proven:
            if parent in names:
                raise ValueError(f"{parent!r} is a file and a directory")
            proven.add(parent)
            parent = parent.rpartition("/")[0]


def leads_out(path: str, target: str) -> bool:
    """Whether a link at `path` of the tree leads out of it by its words alone, is absolute, or can be none."""
    if target.startswith("/") or not target or "\0" in target:
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += 0 if part in ("", ".") else -1 if part == ".." else 1
        if depth < 0:
            return True
    return False
