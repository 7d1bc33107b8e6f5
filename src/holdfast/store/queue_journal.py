"""The queue's journal: each submission and each order as one committed file that never changes.

``journal/<ten digits>.jsonl``. The first line says what it is (its *head*), each further line is a cell, the last one
carries a CRC-32 of everything before it. A file is complete or not there (temporary file, fsync, rename, fsync of the
directory), so one that does not add up was damaged later, and that is said instead of guessed at.

The head holds all that applying it again needs: the queue's id, the number and the time of the act, the first id that
is free after it, and for orders their *effects*, so that a replay gives the same whatever was true since.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..host import files
from ..model.errors import StorageError
from .queue_locks import LockFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

SCHEMA = 1
MAX_ACT_BYTES = 1 << 30
_SUFFIX = ".jsonl"
_DIGITS = 10
# ASCII only: an argument that is no UTF-8 is lone surrogates here, which JSON can only say as escapes.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Act:
    """One file of the journal: its number, its head and its cells."""

    seq: int
    head: dict[str, Any]
    cells: list[dict[str, Any]] = field(default_factory=list)


class Journal:
    """The journal of one queue's directory."""

    def __init__(self, directory: str) -> None:
        """The journal below a queue's directory, made when it is missing.

        Raises:
            OSError: it cannot be made.
        """
        self.directory = f"{directory}/journal"
        self._lock = LockFile(f"{directory}/journal.lock")
        os.makedirs(self.directory, mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Close the lock file."""
        self._lock.close()

    def hold(self) -> AbstractContextManager[None]:
        """Be the only one who adds to it, inside the block.

        Raises:
            StorageError: somebody else was, for too long.
        """
        return self._lock.hold()

    def numbers(self) -> list[int]:
        """The numbers of all acts, ascending.

        Raises:
            StorageError: the directory cannot be read.
        """
        try:
            names = os.listdir(self.directory)
        except OSError as error:
            raise StorageError(
                f"the queue's journal {self.directory} cannot be read: {error.strerror}",
                hint="Look at the disk and at who owns the directory.",
            ) from error
        return sorted(int(name[:_DIGITS]) for name in names if _is_act(name))

    def newest(self) -> int:
        """The number of the newest act; 0 when there is none.

        Raises:
            StorageError: as `numbers`.
        """
        numbers = self.numbers()
        return numbers[-1] if numbers else 0

    def path(self, seq: int) -> str:
        """Where an act is."""
        return f"{self.directory}/{seq:0{_DIGITS}d}{_SUFFIX}"

    def commit(self, act: Act) -> None:
        """Commit an act; `hold` is held.

        Raises:
            StorageError: the disk took nothing; the journal is as before.
        """
        path = self.path(act.seq)
        body = "\n".join([_ENCODE(act.head), *map(_ENCODE, act.cells), ""]).encode("ascii")
        try:
            self._sweep()
            if os.path.lexists(path):
                raise FileExistsError(17, "it is there already, written without the lock", path)
            files.commit(path, body + b'{"crc32":%d}\n' % zlib.crc32(body))
        except OSError as error:
            raise StorageError(
                f"the queue took nothing: {path} cannot be written: {error.strerror}",
                hint="Make room on that disk (df shows it) and say it again; the queue is as it was.",
            ) from error

    def withdraw(self, act: Act) -> None:
        """Take an act back that was not applied, so that it has not been; `hold` is held.

        Raises:
            OSError: it is still there.
        """
        os.unlink(self.path(act.seq))
        files.sync_directory(self.directory)

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove acts that nothing rests on any more; what cannot be removed stays and does no harm."""
        for seq in numbers:
            files.remove_quietly(self.path(seq))

    def read(self, seq: int) -> Act:
        """One act.

        Raises:
            StorageError: it cannot be read, is damaged, or a newer holdfast wrote it.
        """
        path = self.path(seq)
        try:
            head, cells = _parse(files.read_bytes(path, limit=MAX_ACT_BYTES))
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _unusable(path, str(error)) from error
        if head["schema"] > SCHEMA:
            raise StorageError(
                f"{path} was written by a newer holdfast (form {head['schema']}; this one knows {SCHEMA})",
                hint="Use that newer holdfast for this queue.",
            )
        return Act(seq, head, cells)

    def _sweep(self) -> None:
        """Remove what writers left that were killed in the middle; we are the only writer now."""
        for name in os.listdir(self.directory):
            if name.startswith(".") and name.endswith(".tmp"):
                files.remove_quietly(f"{self.directory}/{name}")


def _is_act(name: str) -> bool:
    return len(name) == _DIGITS + len(_SUFFIX) and name.endswith(_SUFFIX) and name[:_DIGITS].isdecimal()


def _parse(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    if json.loads(last or b"{}").get("crc32") != zlib.crc32(body):
        raise ValueError("its checksum is missing or does not fit")
    # One call for all lines: with ten thousand cells that is a third of the time of as many calls.
    head, *cells = json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    if not isinstance(head["schema"], int) or not isinstance(head["time"], (int, float)):
        raise TypeError("its first line is not that of an act")
    return head, cells


def _unusable(path: str, why: str) -> StorageError:
    return StorageError(
        f"{path}, which says what was handed in, cannot be used: {why}",
        hint="Restore that file, or move it away and hand its cells in again; their runs are not touched by this.",
    )
