"""The index of runs: a cache which spares `holdfast ls` the reading of runs that cannot change any more.

The run directories are the truth; this is one SQLite file that only readers maintain
(``XDG_STATE_HOME/holdfast/index.db``, 0600). It holds a row for each *ended* run and the roots under which runs were
ever created. Invariants:

- A run that has not ended is never answered from here: its caller reads its files, each time.
- A row counts only while the modification time of the run's ``attempts`` directory is the one it was made from: a new
  attempt is a new entry there, so a restarted run is read again.
- Losing the file loses nothing but the list of roots other than the default one. A corrupt file is rebuilt, one that
  cannot be read or written is done without; either is one `notice`, never an error.
- Nothing is written when nothing changed, so the usual `ls` only reads.

Kept free of records and of JSON: with 1,000 runs this is on the path of a verb that has 60 ms.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from holdfast.host.files.ownership import make_own_directory
from holdfast.model.errors import HoldfastError
from holdfast.model.ids import is_run_id

from .paths import state_directory

__all__ = ["COLUMN_COUNT", "USER_VERSION", "Index", "IndexRow", "state_directory"]

USER_VERSION = 3
"""The schema's version in ``user_version``. An older file keeps its roots; a newer one is left alone and not used."""

BUSY_TIMEOUT_S = 0.25
"""How long another reader's short transaction is waited for; after that the index is done without."""

_RUNS = (
    "CREATE TABLE runs (root TEXT, run_id TEXT, stamp INTEGER, attempt INTEGER, condition TEXT, exit_code INTEGER,"
    " created_at TEXT, started_at TEXT, ended_at TEXT, cards TEXT, step INTEGER, loss TEXT, note TEXT, failure TEXT,"
    " planned_steps INTEGER, PRIMARY KEY (root, run_id)) WITHOUT ROWID"
)
_SCHEMA = (
    "DROP TABLE IF EXISTS runs",
    _RUNS,
    "CREATE TABLE IF NOT EXISTS roots (path TEXT PRIMARY KEY) WITHOUT ROWID",
)
_COLUMNS = (
    "root, run_id, stamp, attempt, condition, exit_code, created_at, started_at, ended_at, cards, step, loss, note,"
    " failure, planned_steps"
)
COLUMN_COUNT = 15
"""Of an `IndexRow` up to `ended`: only ended runs are stored."""


class IndexRow(NamedTuple):
    """One run as a list shows it.

    `root` is the runs root and `stamp` the modification time (ns) of the run's ``attempts`` directory that this was
    read at. Times are ISO 8601 UTC. `cards` are the cards' indexes as text (``0,1``). `step` and `loss` are the
    heartbeat's last (`loss` as text, so that ``nan`` survives). `note` is one phrase about how it stands or ended.
    `failure` is the class of an end without success. `planned_steps` are all that the job means to do; None where it
    does not say them. `ended` is True when no later reading of the same attempt can differ. `left_s` are the seconds
    for the steps that are left, at the pace that the job says, or until a time limit ends it sooner; None for an ended
    run, too. `standstill_s` is for how long it has told of no step, where that is longer than its stall clock allows.
    """

    root: str
    run_id: str
    stamp: int
    attempt: int
    condition: str
    exit_code: int | None = None
    created_at: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    cards: str = ""
    step: int | None = None
    loss: str | None = None
    note: str = ""
    failure: str = ""
    planned_steps: int | None = None
    ended: bool = True
    left_s: float | None = None
    standstill_s: float | None = None

    @property
    def run_dir(self) -> str:
        """The run's directory."""
        return f"{self.root}/{self.run_id}"


class Index:
    """An open index, or the lack of one; use as a context manager.

    `notice` is a sentence for people when the index was rebuilt or is being done without, else None.
    """

    def __init__(self, path: str | None = None) -> None:
        """Open, create or rebuild the index at `path` (default: in `state_directory`). Never raises."""
        self.path = path or f"{state_directory()}/index.db"
        self.notice: str | None = None
        self._db: sqlite3.Connection | None = None
        try:
            self._db = self._open()
        except (sqlite3.Error, OSError, HoldfastError) as error:
            self._do_without(error)

    def __enter__(self) -> Index:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the file; the object then works without an index."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def remember_root(self, path: str) -> None:
        """Remember that runs were created under `path`, so that later lists include it."""
        root = os.path.abspath(path)
        if root not in self.roots():
            self._write([("INSERT OR IGNORE INTO roots (path) VALUES (?)", [(root,)])])

    def roots(self) -> list[str]:
        """The remembered roots, sorted; none when there is no index."""
        return [str(path) for (path,) in self._select("SELECT path FROM roots ORDER BY path")]

    def _say(self, words: str) -> None:
        self.notice = words if self.notice is None else f"{self.notice}; {words}"

    def sync(self, roots: Iterable[str], read: Callable[[str, str], IndexRow]) -> list[IndexRow]:
        """Every run under `roots` and the remembered ones, newest first, and the index brought up to date.

        `read(root, run_id)` answers one run from its files and must not raise; it is called for runs that have not
        ended, and once for those that have. Directories whose name is not a run id are somebody else's.
        """
        stored = [IndexRow(*row) for row in self._select(f"SELECT {_COLUMNS} FROM runs")]  # noqa: S608 - ours
        known = {(row.root, row.run_id): row for row in stored}
        found: list[IndexRow] = []
        fresh: list[IndexRow] = []
        scanned: set[str] = set()
        for root in dict.fromkeys([*map(os.path.abspath, roots), *self.roots()]):
            try:
                names = list_run_ids(root)
            except FileNotFoundError:
                continue
            except OSError as error:
                # It proves nothing about the runs there.
                self._say(f"{root} cannot be read: {error.strerror}; its runs are not shown")
                continue
            scanned.add(root)
            for name in names:
                stamp = _stamp_of(root, name)
                row = known.pop((root, name), None)
                if row is None or row.stamp != stamp:
                    row = read(root, name)._replace(stamp=stamp)
                    if row.ended and stamp:
                        fresh.append(row)
                found.append(row)
        gone = [key for key in known if key[0] in scanned]
        self._save(fresh, gone)
        # By the second in the id; of one second by when they were made.
        found.sort(key=lambda row: (row.run_id[: len("yyyymmdd-hhmmss")], row.created_at, row.run_id), reverse=True)
        return found

    def _save(self, fresh: list[IndexRow], gone: list[tuple[str, str]]) -> None:
        marks = ", ".join("?" * COLUMN_COUNT)
        changes: list[tuple[str, list[tuple[object, ...]]]] = []
        if fresh:
            rows: list[tuple[object, ...]] = [tuple(row[:COLUMN_COUNT]) for row in fresh]
            changes.append((f"INSERT OR REPLACE INTO runs ({_COLUMNS}) VALUES ({marks})", rows))  # noqa: S608
        if gone:
            changes.append(("DELETE FROM runs WHERE root = ? AND run_id = ?", [tuple(key) for key in gone]))
        if changes:
            self._write(changes)

    def _open(self) -> sqlite3.Connection:
        directory = os.path.dirname(self.path)
        make_own_directory(directory, "the directory", "let XDG_STATE_HOME name a place of your own")
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self.notice = (
                f"the index of runs {self.path} was damaged ({error}) and has been rebuilt from the run directories"
            )
            return self._rebuild(_salvage_roots(self.path))

    def _connect(self) -> sqlite3.Connection:
        _create_private(self.path)
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > USER_VERSION:
                raise OSError(f"a newer holdfast wrote it (version {version}; this one knows {USER_VERSION})")
            if version < USER_VERSION:
                _create_tables(db)
            else:
                db.execute("SELECT root FROM runs LIMIT 1").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _rebuild(self, roots: list[str]) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(self.path + suffix)
            except FileNotFoundError:
                continue
        db = self._connect()
        db.executemany("INSERT OR IGNORE INTO roots (path) VALUES (?)", [(root,) for root in roots])
        return db

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        if self._db is None:
            return []
        try:
            return self._db.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            self._give_up_or_rebuild(error)
        return []

    def _write(self, changes: list[tuple[str, list[tuple[object, ...]]]]) -> None:
        if self._db is None:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for statement, values in changes:
                self._db.executemany(statement, values)
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._give_up_or_rebuild(error)
        except (UnicodeEncodeError, OverflowError):
            # A name that is no UTF-8, a number beyond 64 bits: not for the index. The run directory has it.
            self._db.execute("ROLLBACK")

    def _give_up_or_rebuild(self, error: sqlite3.DatabaseError) -> None:
        """Damage that shows only while reading: begin anew; this call's answer then comes from the directories."""
        if not _is_damage(error):
            self._do_without(error)
            return
        self.close()
        self.notice = (
            f"the index of runs {self.path} was damaged ({error}) and is being rebuilt from the run directories"
        )
        try:
            self._db = self._rebuild(_salvage_roots(self.path))
        except (sqlite3.Error, OSError) as again:
            self._do_without(again)

    def _do_without(self, error: Exception) -> None:
        self.close()
        if "locked" not in str(error):
            self.notice = (
                f"the index of runs {self.path} cannot be used ({error}); every run directory is being read instead"
            )


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file's content is wrong, rather than its place, its mode or the moment."""
    return not isinstance(error, sqlite3.OperationalError) or str(error).startswith("no such")


def _create_tables(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    if int(db.execute("PRAGMA user_version").fetchone()[0]) != USER_VERSION:
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {USER_VERSION}")
    db.execute("COMMIT")


def _create_private(path: str) -> None:
    """Make sure that the file is ours alone before SQLite opens it; its journals take over its mode."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _salvage_roots(path: str) -> list[str]:
    """The roots that a damaged file still gives up."""
    try:
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S)
        try:
            return [str(root) for (root,) in db.execute("SELECT path FROM roots")]
        finally:
            db.close()
    except sqlite3.Error:
        return []


def list_run_ids(root: str) -> list[str]:
    """The run ids under a root.

    Raises:
        OSError: it is not there, or cannot be read.
    """
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if is_run_id(entry.name)]


def _stamp_of(root: str, name: str) -> int:
    try:
        return os.stat(f"{root}/{name}/attempts").st_mtime_ns
    except OSError:
        return 0
