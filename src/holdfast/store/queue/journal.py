"""The queue's journal: each submission and each order as one committed file that never changes.

``journal/<ten digits>.jsonl``. The first line says what it is (its *head*), each further line is a job, the last one
carries a CRC-32 of everything before it. A file is complete or not there (temporary file, fsync, rename, fsync of the
directory), so one that does not add up was damaged later, and that is said instead of guessed at.

The head holds all that applying it again needs: the queue's id, the number and the time of the act, the first id that
is free after it, and for orders their *effects*, so that a replay gives the same whatever was true since.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.host.files import files
from holdfast.model.errors import StorageError
from holdfast.model.record import field, record

from .locks import LockFile

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SCHEMA = 1
MAX_ACT_BYTES = 1 << 30
TAIL_BYTES = 64
_SUFFIX = ".jsonl"
ASIDE = ".damaged"
_DIGITS = 10
# ASCII only: an argument that is no UTF-8 is lone surrogates here, which JSON can only say as escapes.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class DamagedAct(StorageError):
    """A file of the journal does not add up: it was damaged after it had been committed."""


class NewerQueue(StorageError):
    """A newer holdfast uses this queue: this one changes nothing in it, and starts nothing of it."""


@record
class JournalAct:
    """One file of the journal: its number, its head and its jobs."""

    seq: int
    head: dict[str, Any]
    jobs: list[dict[str, Any]] = field(default_factory=list)


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

    def commit(self, act: JournalAct) -> None:
        """Commit an act; `hold` is held.

        Raises:
            StorageError: the disk took nothing; the journal is as before.
        """
        path = self.path(act.seq)
        body = "\n".join([_ENCODE(act.head), *map(_ENCODE, act.jobs), ""]).encode("ascii")
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

    def withdraw(self, act: JournalAct) -> None:
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

    def read(self, seq: int) -> JournalAct:
        """One act.

        Raises:
            DamagedAct: it does not add up.
            StorageError: it cannot be read, or a newer holdfast wrote it.
        """
        path = self.path(seq)
        try:
            head, jobs = _parse(files.read_bytes(path, limit=MAX_ACT_BYTES))
        except OSError as error:
            words, hint = _describe(path, error.strerror or str(error))
            raise StorageError(words, hint=hint) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            words, hint = _describe(path, str(error))
            raise DamagedAct(words, hint=hint) from error
        _refuse_newer(path, head)
        return JournalAct(seq, head, jobs)

    def refuse_newer(self) -> None:
        """Refuse a queue whose newest act is a newer holdfast's; one that is damaged is whoever reads it to tell.

        Raises:
            NewerQueue: it is.
        """
        path = self.path(self.newest())
        try:
            with open(path, "rb") as file:
                head = json.loads(file.readline(MAX_ACT_BYTES))
        except (OSError, ValueError, RecursionError):
            return
        _refuse_newer(path, head)

    def damaged(self) -> list[int]:
        """The numbers of the acts that were set aside, ascending."""
        names = os.listdir(self.directory)
        return sorted(
            int(name[:_DIGITS]) for name in names if _is_act(name.removesuffix(ASIDE)) and name.endswith(ASIDE)
        )

    def path_aside(self, seq: int) -> str:
        """Where a damaged act is set aside."""
        return self.path(seq) + ASIDE

    def set_aside(self, seq: int) -> None:
        """Take a damaged act out of the journal; it stays for a person to see.

        Raises:
            OSError: it cannot be renamed.
        """
        os.rename(self.path(seq), self.path_aside(seq))

    def read_kind(self, seq: int) -> str:
        """What kind of act one was that is set aside, as far as its first line tells; empty when it does not."""
        try:
            data = files.read_bytes(self.path_aside(seq), limit=MAX_ACT_BYTES)
            return str(json.loads(data.partition(b"\n")[0])["act"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def is_finished(self, seq: int) -> bool:
        """Whether an act's file ends as one that was written to its end."""
        last = files.read_tail(self.path(seq), TAIL_BYTES).removesuffix(b"\n").rpartition(b"\n")[2]
        return last.startswith(b'{"crc32":') and last.endswith(b"}")

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
    # One call for all lines: with ten thousand jobs that is a third of the time of as many calls.
    head, *jobs = json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    if not isinstance(head["schema"], int) or not isinstance(head["time"], (int, float)):
        raise TypeError("its first line is not that of an act")
    return head, jobs


def _refuse_newer(path: str, head: object) -> None:
    form = head.get("schema") if isinstance(head, dict) else None
    if isinstance(form, int) and form > SCHEMA:
        raise NewerQueue(
            f"{path} was written by a newer holdfast (form {form}; this one knows {SCHEMA})",
            hint="Use that newer holdfast for this queue.",
        )


def _describe(path: str, why: str) -> tuple[str, str]:
    words = f"{path}, which says what was handed in, cannot be used: {why}"
    return words, "Restore that file, or move it away and hand its jobs in again; their runs are not touched by this."


def list_ordered_trees(directory: str) -> frozenset[str]:
    """The code trees that jobs in the queue of `directory` may still need; nothing is opened for writing, nor made.

    A submission's file stays for as long as one of its jobs is in the queue.

    Raises:
        OSError, StorageError: a file of the journal cannot be read.
    """
    try:
        names = os.listdir(f"{directory}/journal")
    except FileNotFoundError:
        return frozenset()
    found = set()
    for name in filter(_is_act, names):
        path = f"{directory}/journal/{name}"
        try:
            with open(path, "rb") as file:
                head = json.loads(file.readline(MAX_ACT_BYTES))
            _refuse_newer(path, head)
            code = ((head.get("submission") or {}).get("ordered") or {}).get("code") or {}
        except FileNotFoundError:
            continue  # cleared just now
        except (ValueError, AttributeError) as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        if "tree" in code:
            found.add(str(code["tree"]))
    return frozenset(found)
