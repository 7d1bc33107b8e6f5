"""Takes a stream of files (`agent.view.run_files`), builds it aside, proves it, and puts it into place in one step.

What arrives is believed in nothing: names stay below the target, links lead nowhere else, there is no more of it than
its beginning said, and each content has the SHA-256 that its end says. Whatever goes wrong leaves nothing there.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from typing import Any, BinaryIO

from holdfast.core.control_characters import one_line
from holdfast.host.files.files import sync_directory
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.record import record
from holdfast.model.units import format_bytes

from .answers import read_error

LONGEST_LINE = 1 << 16
MOST_ENTRIES = 100_000
"""As `agent.view.run_files` sends at most."""


@record
class Fetched:
    """What was copied: where it is, how much, and what of the source is not in it (the first of `left_out_count`).

    `changed` says which results were changed, or went away, since the end of the run at which they were proven (the
    first of `changed_count`).
    """

    target: str
    files: int
    bytes: int
    sha256: str | None
    grew: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0
    changed: tuple[str, ...] = ()
    changed_count: int = 0


class Receiver:
    """One copy. Feed it the stream, then `finish`; `abandon` in any other case."""

    def __init__(self, target: str, *, force: bool, tell: Callable[[int, int], None], alone: bool = False) -> None:
        """`target` as a person named it: a directory that is there gets the copy under its own name.

        `tell` gets the bytes so far and the bytes in all. `alone`: `target` names the file itself, and only a file.
        """
        self._asked, self._force, self._tell, self._alone = target, force, tell, alone
        self._buffer = bytearray()
        self._begun = self._over = self._directory = False
        self._target = self._aside = ""
        self._entries = self._total = self._seen = self._arrived = self._files = 0
        self._file: BinaryIO | None = None
        self._left = 0
        self._path = ""
        self._stamp: tuple[str, float] = ("", 0.0)
        self._hash = hashlib.sha256()
        self._wants_sum = False
        self._sha256: str | None = None
        self._grew: list[str] = []
        self._links: list[str] = []
        self._ending: dict[str, Any] = {}
        self._left_out_count = self._changed_count = 0

    def feed(self, data: bytes) -> None:
        """Take more of the stream.

        Raises:
            UsageError: the target is there, or cannot be one; or the other side says so.
            StorageError: it does not fit, or what arrives is not what was promised.
            HoldfastError: what the other side reported.
        """
        self._buffer += data
        while self._buffer:
            if self._left:
                self._take_contents()
                continue
            line, newline, _ = self._buffer.partition(b"\n")
            if len(line) > LONGEST_LINE:
                raise _broken("a line is too long")
            if not newline:
                return
            del self._buffer[: len(line) + 1]
            self._take_line(bytes(line))

    def finish(self) -> Fetched:
        """Put it into place.

        Raises:
            StorageError: the stream did not come to its end, or the place does not take it.
        """
        if not self._over:
            raise StorageError("the copy did not arrive whole: nothing was kept of it", hint="repeat the command")
        self._prove_links()
        old = None
        if self._force and os.path.lexists(self._target) and (self._directory or _is_directory(self._target)):
            old = _name_aside(self._target)
            os.rename(self._target, old)
        elif not self._force and os.path.lexists(self._target):
            raise _taken(self._target)
        try:
            os.rename(self._aside, self._target)
        except OSError:
            if old is not None:
                os.rename(old, self._target)
            raise
        sync_directory(os.path.dirname(self._target) or ".")
        if old is not None:
            shutil.rmtree(old, ignore_errors=True) if _is_directory(old) else os.unlink(old)
        return Fetched(
            self._target,
            self._files,
            self._arrived,
            None if self._directory else self._sha256,
            tuple(self._grew),
            self._list_told("left_out"),
            self._left_out_count,
            self._list_told("changed"),
            self._changed_count,
        )

    def _list_told(self, name: str) -> tuple[str, ...]:
        told = self._ending.get(name)
        return tuple(one_line(str(item), 300) for item in told[:100]) if isinstance(told, list) else ()

    def _prove_links(self) -> None:
        """No link leads out by way of another one; by its own words none does."""
        top = os.path.realpath(self._aside)
        for path in self._links:
            if not f"{os.path.realpath(f'{top}/{path}')}/".startswith(f"{top}/"):
                raise _broken(f"{path!r} is a link that leads out of it by another one")

    def abandon(self) -> None:
        """Remove what is aside, if it is still there."""
        if self._file is not None:
            self._file.close()
        if self._aside and os.path.lexists(self._aside):
            shutil.rmtree(self._aside, ignore_errors=True) if _is_directory(self._aside) else os.unlink(self._aside)

    # ------------------------------------------------------------------------------------------------------- lines

    def _take_line(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _broken(one_line(line.decode("utf-8", "replace"), 200)) from error
        if not isinstance(value, dict) or self._over:
            raise _broken("a line that means nothing")
        try:
            if "error" in value:
                raise read_error(value["error"])
            if not self._begun:
                self._begin(value)
            elif self._wants_sum:
                self._end_file(value)
            elif value.get("end") is True:
                self._end(value)
            else:
                self._begin_entry(value)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _broken(f"{type(error).__name__}: {error}") from error

    def _begin(self, value: dict[str, Any]) -> None:
        self._entries, self._total = int(value["entries"]), int(value["bytes"])
        self._directory = value["directory"] is True
        name = str(value["name"])
        if not 0 <= self._entries <= MOST_ENTRIES or self._total < 0:
            raise _broken(f"{self._entries} entries")
        if self._alone and (self._directory or os.path.isdir(self._asked)):
            raise StorageError(f"{self._asked}: a directory stands where a file would", hint="name another file")
        if os.path.isdir(self._asked):
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise _broken(f"the name {name!r}")
            self._target = os.path.join(self._asked, name)
        else:
            self._target = self._asked.rstrip("/") if self._directory else self._asked
        parent = os.path.dirname(self._target) or "."
        if self._target.endswith("/") or not os.path.isdir(parent):
            raise UsageError(f"{self._asked}: there is no such directory", hint=f"mkdir -p {parent}")
        if os.path.lexists(self._target) and not self._force:
            raise _taken(self._target)
        free = shutil.disk_usage(parent).free
        if self._total > free:
            raise StorageError(f"{format_bytes(self._total)} do not fit: {format_bytes(free)} are free in {parent}")
        self._aside = _name_aside(self._target)
        self._begun = True
        self._tell(0, self._total)

    def _begin_entry(self, value: dict[str, Any]) -> None:
        self._seen += 1
        path, kind, mode = str(value["path"]), value["kind"], int(value["mode"]) & 0o777
        if self._seen > self._entries:
            raise _broken("more entries than were promised")
        first = self._seen == 1
        parts = path.split("/")
        if (first != (path == "")) or path.startswith("/") or "\0" in path:
            raise _broken(f"the path {path!r}")
        if not first and (not self._directory or any(part in ("", ".", "..") for part in parts)):
            raise _broken(f"the path {path!r}")
        if first and (kind == "dir") != self._directory:
            raise _broken(f"the kind {kind!r}")
        # A link of this copy must not be walked through: whatever is above an entry was made as a directory.
        where = self._aside if first else f"{self._aside}/{path}"
        if not first and os.path.realpath(os.path.dirname(where)) != os.path.join(
            os.path.realpath(self._aside), *parts[:-1]
        ):
            raise _broken(f"{path!r} is behind a link")
        self._path = path
        if kind == "dir":
            os.mkdir(where, mode | 0o700)
        elif kind == "link" and not first:
            link = str(value["link"])
            inside = os.path.normpath(os.path.join(os.path.dirname(path), link))
            if link.startswith("/") or inside == ".." or inside.startswith("../"):
                raise _broken(f"{path!r} is a link out of it")
            os.symlink(link, where)
            self._links.append(path)
        elif kind == "file":
            size = int(value["size"])
            if size < 0 or self._arrived + size > self._total:
                raise _broken("more bytes than were promised")
            descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode | 0o600)
            self._file, self._left, self._hash, self._wants_sum = (
                os.fdopen(descriptor, "wb"),
                size,
                hashlib.sha256(),
                True,
            )
            self._stamp = (where, float(value["mtime"]))
        else:
            raise _broken(f"the kind {kind!r}")

    def _take_contents(self) -> None:
        assert self._file is not None
        data = bytes(self._buffer[: self._left])
        del self._buffer[: len(data)]
        self._file.write(data)
        self._hash.update(data)
        self._left -= len(data)
        self._arrived += len(data)
        self._tell(self._arrived, self._total)

    def _end_file(self, value: dict[str, Any]) -> None:
        assert self._file is not None
        self._sha256 = self._hash.hexdigest()
        if value["sha256"] != self._sha256:
            raise StorageError(
                f"{self._path or self._target} arrived damaged: its SHA-256 is another", hint="repeat it"
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file, self._wants_sum = None, False
        self._files += 1
        if value.get("grew"):
            self._grew.append(self._path or os.path.basename(self._target))
        os.utime(self._stamp[0], (self._stamp[1], self._stamp[1]))

    def _end(self, value: dict[str, Any]) -> None:
        if self._seen != self._entries or self._arrived != self._total:
            raise _broken("less than was promised")
        self._left_out_count = int(value.get("left_out_count", 0))
        self._changed_count = int(value.get("changed_count", 0))
        self._ending, self._over = value, True


def _broken(what: str) -> StorageError:
    return StorageError(f"what arrives is not what a copy looks like ({what}): nothing was kept", hint="repeat it")


def _taken(target: str) -> UsageError:
    return UsageError(f"{target} is there already", hint="name another target, or replace it with --force")


def _name_aside(target: str) -> str:
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{name[:100]}.{secrets.token_hex(6)}.part")


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
