"""The queue's database file: opened, guarded, and made anew when it is damaged (docs/queue.md).

SQLite in WAL mode with ``synchronous = FULL``: what was committed outlives a power cut. On a network file system WAL
does not work, because its index is shared memory (sqlite.org/wal.html, "All processes using a database must be on the
same host computer"), so a rollback journal is used there.

A database that is rebuilt gets a new name, ``queue.<n>.db``; the highest number counts. It must not get an old one's:
a process that still has the old file open would remove ``-wal`` by that name when it closes it, and with it what was
committed to the new one (sqlite.org/howtocorrupt.html, "Unlinking or renaming a database file while in use").
For the same reason the file of a living database is opened by SQLite alone: closing any descriptor of it would drop
the process's POSIX locks on it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.files import files
from holdfast.host.files.filesystems import NETWORK_FILESYSTEMS, filesystem_of
from holdfast.model.errors import StorageError
from holdfast.model.pattern import compile_later

from . import schema
from .locks import LockFile, describe_holders

if TYPE_CHECKING:
    from .journal import Journal

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long another process's transaction is waited for; such a one takes milliseconds."""
_NAME = compile_later(r"queue\.([1-9]\d{0,17})\.db(\.damaged-.*)?", re.ASCII)
_PARTS = ("", "-wal", "-shm", "-journal")


class DamagedDatabase(Exception):
    """The database's content is wrong; the text says how."""


class Database:
    """The database of one queue. `notice` says for people what had to be done to open it.

    `after_rebuild` is called, outside any transaction, when it was made again while it was in use.
    `fill` makes an empty database say what the journal says; `replaced` is called, inside a transaction, when the file
    in use turned out to have been replaced by another process.
    """

    def __init__(
        self,
        directory: str,
        journal: Journal,
        *,
        fill: Callable[[sqlite3.Connection], None],
        replaced: Callable[[sqlite3.Connection], None],
    ) -> None:
        """Open it, or make it.

        Raises:
            StorageError: it can neither be opened nor made.
        """
        self.notice: str | None = None
        self.after_rebuild: Callable[[], object] | None = None
        self.path = ""
        self._directory, self._journal = directory, journal
        self._fill, self._replaced = fill, replaced
        self._lock = LockFile(f"{directory}/database.lock")
        self._db: sqlite3.Connection | None = None
        kind = filesystem_of(directory)[0]
        self._wal = kind not in NETWORK_FILESYSTEMS
        if not self._wal:
            self.notice = (
                f"the queue's directory {directory} is on a network file system ({kind}): it works there, more slowly, "
                "for one box; HOLDFAST_QUEUE names a local one"
            )
        try:
            self._translate(self._current)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it."""
        if self._db is not None:
            self._db.close()
            self._db = None
        self._lock.close()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` answers from one state of the database.

        Raises:
            StorageError: it cannot be read.
        """
        return self._translate(lambda: self._transact(work, "BEGIN"))

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` answers; all that it changes is committed, or nothing.

        `work` may be called again when the database had to be rebuilt in between.

        Raises:
            StorageError: it cannot be written; nothing was changed.
        """

        def guarded() -> T:
            with self._lock.hold(shared=True):
                return self._transact(work, "BEGIN IMMEDIATE")

        return self._translate(guarded)

    def _transact(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        db = self._current()
        db.execute(begin)
        try:
            answer = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return answer

    def _current(self) -> sqlite3.Connection:
        """The connection to the file that is in force now.

        Raises:
            Damage: there is none.
        """
        if self._db is not None and os.path.exists(self.path):
            return self._db
        self._disconnect()
        name = self._find_newest()
        if name is None:
            raise DamagedDatabase("it was not there")
        return self._adopt(f"{self._directory}/{name}")

    def _adopt(self, path: str) -> sqlite3.Connection:
        """Use the database at `path`; in the place of another one it is told what this process alone may know."""
        is_other, self.path = bool(self.path), path
        db = self._connect(path)
        try:
            if is_other:
                db.execute("BEGIN IMMEDIATE")
                self._replaced(db)
                db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _translate(self, act: Callable[[], T]) -> T:
        """Do it; once more after a rebuild when the database turns out to be damaged; errors are ours."""
        try:
            try:
                return act()
            except (DamagedDatabase, sqlite3.DatabaseError) as error:
                if not _is_damage(error):
                    raise
                self._rebuild(str(error))
                after, self.after_rebuild = self.after_rebuild, None
                try:
                    if after is not None:
                        # It asks this very database; should that be damaged again, once is enough.
                        after()
                finally:
                    self.after_rebuild = after
            return act()
        except (DamagedDatabase, sqlite3.Error, OSError) as error:
            raise self._describe(error) from error

    def _describe(self, error: Exception) -> StorageError:
        path = self.path or f"{self._directory}/queue.*.db"
        words = str(error)
        if "locked" in words or "busy" in words:
            holders = describe_holders(path, f"{path}-shm", f"{path}-wal")
            return StorageError(
                f"the queue's database {path} has been locked for {BUSY_TIMEOUT_S:g} s by {holders}",
                hint="Try again; a process that is stopped goes on after `kill -CONT PID`.",
            )
        return StorageError(
            f"the queue's database {path} cannot be used: {words}",
            hint="Look at the disk (df, dmesg). The journal beside it has what was handed in before; what this command "
            "was to hand in or change may be missing: look with `holdfast queue`, then say it again.",
        )

    # --- making it --------------------------------------------------------------------------------------------------

    def _connect(self, path: str) -> sqlite3.Connection:
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedDatabase(f"{path} is no regular file")
        # mode=rw: a file that has gone meanwhile must not be made anew, empty.
        db = _connect(path, "rw")
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > schema.VERSION:
                raise StorageError(
                    f"{path} was written by a newer holdfast (version {version}; this one knows {schema.VERSION})",
                    hint="Use that newer holdfast for this queue.",
                )
            if version < schema.VERSION:
                raise DamagedDatabase(f"version {version} is not this one's" if version else "it is empty")
            if not self._wal:
                db.execute("PRAGMA journal_mode = DELETE")
            schema.check_tables(db)
        except BaseException:
            db.close()
            raise
        return db

    def rebuild(self, why: str) -> None:
        """Make it again although it can be read, because what it says is not so.

        Raises:
            StorageError: the journal cannot be read, or somebody holds the queue.
        """
        self._rebuild(why)

    def _rebuild(self, why: str) -> None:
        """Make a new database from the journal and set the old one aside, unless somebody else just has.

        Raises:
            StorageError: the journal cannot be read, or somebody holds the queue.
        """
        before = self.path or self._newest_path()
        self._disconnect()
        with self._journal.hold(), self._lock.hold():
            now = self._newest_path()
            if now is not None and now != before:
                self._adopt(now)
                return
            is_first = now is None and self._journal.newest() == 0
            self._adopt(self._make())
        if not is_first:
            self.notice = (
                f"the queue's database had to be made again ({why}): from the journal, and from the run directories"
            )

    def _newest_path(self) -> str | None:
        name = self._find_newest()
        return None if name is None else f"{self._directory}/{name}"

    def _make(self) -> str:
        numbers = [int(match[1]) for name in os.listdir(self._directory) if (match := _NAME.fullmatch(name))]
        # The time, so that a name does not come back after somebody removed the file that had it.
        number = max(int(epoch_s() * 1000), max(numbers, default=0) + 1)
        path = f"{self._directory}/queue.{number}.db"
        temporary = f"{path}.new"
        for part in _PARTS:
            files.remove_quietly(temporary + part)
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        db = _connect(temporary, "rw")
        try:
            # Made without a journal of its own: until it is renamed nobody rests on it.
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("BEGIN IMMEDIATE")
            schema.create_tables(db)
            self._fill(db)
            db.execute("COMMIT")
            db.execute(f"PRAGMA journal_mode = {'WAL' if self._wal else 'DELETE'}")
        finally:
            db.close()
        with open(temporary, "rb") as made:
            os.fsync(made.fileno())
        self._set_aside()
        os.rename(temporary, path)
        files.sync_directory(self._directory)
        return path

    def _set_aside(self) -> None:
        """Keep the last damaged database for a look; while none is in force, whoever comes makes one."""
        stamp = utc_now().replace(":", "").replace("-", "")[:15]
        for name in sorted(os.listdir(self._directory)):
            match = _NAME.fullmatch(name.removesuffix("-wal"))
            if match is None:
                continue
            if match[2]:
                files.remove_quietly(f"{self._directory}/{name}")
            elif not name.endswith("-wal"):
                path = f"{self._directory}/{name}"
                aside = f"{path}.damaged-{stamp}Z"
                os.rename(path, aside)
                if os.path.exists(f"{path}-wal"):
                    os.rename(f"{path}-wal", f"{aside}-wal")
                files.remove_quietly(f"{path}-shm")

    def _find_newest(self) -> str | None:
        found = [match for name in os.listdir(self._directory) if (match := _NAME.fullmatch(name)) and not match[2]]
        newest = max(found, key=lambda match: int(match[1]), default=None)
        return None if newest is None else newest[0]


def _connect(path: str, mode: str) -> sqlite3.Connection:
    # sqlite.org/uri.html: what would end the path or begin an escape is written as one. urllib would cost 3 ms.
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    address = f"file:{quoted}?mode={mode}"
    db = sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA temp_store = MEMORY")
    return db


def _is_damage(error: Exception) -> bool:
    """Whether the file's content is wrong, rather than its place, its mode or the moment."""
    if isinstance(error, DamagedDatabase):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return str(error).startswith(("no such", "Could not decode"))
    return not isinstance(error, (sqlite3.ProgrammingError, sqlite3.NotSupportedError, sqlite3.DataError))
