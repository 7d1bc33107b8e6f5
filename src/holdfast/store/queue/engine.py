"""Journal and database of one queue, kept in step: acts are committed and applied, a lost database is made again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.host.clock import epoch_s, utc_now
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError
from holdfast.model.queue import ACTIVE_STATES, QueuedJob

from . import acts, rows
from .damage import apply_from, describe_journal
from .database import Database
from .journal import Journal, JournalAct
from .moves import apply_runs, is_unknown
from .schema import read_meta, read_number, write_meta

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

QUEUE_FILE = "queue.json"
CLOCKS_S = 3600.0
"""How far a wall clock that was set may have put a run's id before the submission of its job, or a run before it."""


class FindRuns(Protocol):
    """What the run directories tell of a queue's jobs (`agent.view.runs.of_queue`)."""

    def __call__(self, roots: Iterable[str], queue_id: str, since: float = 0.0, /) -> Iterable[QueuedJob]:
        """The jobs that have a run under `roots`; only runs whose id is not older than `since` (epoch seconds)."""


class QueueEngine:
    """The files of one queue. `read` and `write` are those of its database."""

    def __init__(self, directory: str, find_runs: FindRuns | None) -> None:
        """Open them, and bring the database up to date with the journal and, after a rebuild, with the runs.

        Raises:
            StorageError: they cannot be used.
        """
        self._directory = directory
        self._find_runs = find_runs
        self._unread: str | None = None
        self._active: dict[int, QueuedJob] = {}
        self._journal = Journal(directory)
        try:
            self._database = Database(directory, self._journal, fill=self._fill, replaced=self._reapply)
        except BaseException:
            self._journal.close()
            raise
        self.read, self.write = self._database.read, self._database.write
        try:
            self.catch_up()
            is_new = self.read_runs()
            self._database.after_rebuild = self.read_runs
            flaw = None if is_new else self._find_flaw()
            if flaw is not None:
                self._database.rebuild(flaw)
                self.read_runs()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close them."""
        self._database.close()
        self._journal.close()

    @property
    def notice(self) -> str | None:
        """What had to be done, for people."""
        told = (self._unread or self._database.notice, self.read(lambda db: describe_journal(db, self._journal)))
        return "; ".join(filter(None, told)) or None

    @property
    def path(self) -> str:
        """The database file in use."""
        return self._database.path

    def catch_up(self) -> None:
        """Apply what the journal has and the database does not.

        Raises:
            StorageError: an act cannot be read, a newer holdfast wrote the newest, or the queue is locked.
        """
        self.refuse_newer()
        if self._journal.newest() > self.read(lambda db: read_number(db, "applied")):
            with self._journal.hold():
                self.write(self._apply_rest)

    def refuse_newer(self) -> None:
        """As of `Journal`: what was applied already was read by whoever wrote it."""
        self._journal.refuse_newer()

    def act(self, plan: Callable[[sqlite3.Connection, int, float, str], tuple[JournalAct | None, T]]) -> T:
        """Work out an act, commit it to the journal, apply it; all of it or nothing.

        `plan(db, seq, now, queue_id)` answers the act and what this is to answer; without an act nothing is changed.
        The transaction is open before the file is committed, so nobody can move a job between what was planned and
        what is applied.

        Raises:
            StorageError: it could not be written; the journal is as before.
        """
        committed: list[tuple[JournalAct, T]] = []

        def work(db: sqlite3.Connection) -> T:
            self._apply_rest(db)
            if committed:
                # A damaged database was made again in between, and the act is in the journal.
                return committed[0][1]
            meta = read_meta(db)
            seq = max(self._journal.newest(), int(str(meta["applied"]))) + 1
            act, answer = plan(db, seq, epoch_s(), str(meta["queue_id"]))
            if act is not None:
                self._journal.commit(act)
                committed.append((act, answer))
                acts.apply_act(db, act)
            return answer

        with self._journal.hold():
            path = self.path
            try:
                return self.write(work)
            except BaseException:
                # Not when the database was made again: the act is part of that one.
                if committed and self.path == path:
                    with contextlib.suppress(OSError):
                        self._journal.withdraw(committed[0][0])
                raise

    def read_lines(self, seq: int) -> dict[str, dict[str, Any]]:
        """The jobs of a submission as they were handed in, by name; none where its file cannot be read."""
        try:
            return {str(job["name"]): job for job in self._journal.read(seq).jobs}
        except (StorageError, KeyError):
            return {}

    def compact(self) -> None:
        """Remove submissions of which no job is left, and all orders before the newest act when no job is left.

        Raises:
            StorageError: the journal cannot be read.
        """
        with self._journal.hold():
            live, is_empty = self.read(
                lambda db: (
                    {row[0] for row in db.execute("SELECT seq FROM submissions")},
                    db.execute("SELECT 1 FROM jobs LIMIT 1").fetchone() is None,
                )
            )
            # The newest stays: it carries the settings, and the numbers that were given out.
            for seq in self._journal.numbers()[:-1]:
                if seq not in live and (is_empty or self._is_submission(seq)):
                    self._journal.remove([seq])

    def _is_submission(self, seq: int) -> bool:
        try:
            return bool(self._journal.read(seq).head["act"] == "submission")
        except StorageError:
            # It stays for a person to see.
            return False

    def remember(self, moved: Sequence[QueuedJob]) -> None:
        """Keep in mind what this process has started, should somebody rebuild the database meanwhile."""
        for job in moved:
            if job.state in ACTIVE_STATES:
                self._active[job.id] = job
            else:
                self._active.pop(job.id, None)

    def read_runs(self) -> bool:
        """After a rebuild: see which jobs have run, before any of them may start; whether that was done now.

        Raises:
            StorageError: the database cannot be used.
        """
        if not self.read(lambda db: read_number(db, "runs_unread")):
            self._unread = None
            return False
        if self._find_runs is None:
            self._unread = (
                f"{self._database.notice or 'the database was made again from the journal'}; what has run since is not "
                "known here yet, and nothing starts until the worker has looked"
            )
            return False
        roots, queue_id = self.read(_read_roots)
        found = list(self._find_runs(roots, queue_id))

        def note(db: sqlite3.Connection) -> None:
            if read_number(db, "runs_unread"):
                apply_runs(db, found)
                write_meta(db, runs_unread=0)

        self.write(note)
        return True

    def _apply_rest(self, db: sqlite3.Connection) -> None:
        apply_from(db, self._journal)

    def _find_flaw(self) -> str | None:
        """Why a database that is sound in itself cannot be trusted; None when it can.

        Runs are looked for before the database is asked, which knows of each run before that is made.
        """
        roots, queue_id, since = self.read(_read_doubts)
        if self._find_runs is None or since is None:
            return None
        found = [run for run in self._find_runs(roots, queue_id, since) if run.key]
        unknown = self.read(lambda db: [run.run_id for run in found if is_unknown(db, run)])
        return f"it is older than {unknown[0]}, a run of it: an old copy was put in its place" if unknown else None

    def _fill(self, db: sqlite3.Connection) -> None:
        """A new database, from the journal; the runs are read afterwards (`read_runs`)."""
        write_meta(db, queue_id=self._find_id(), applied=0, next_id=1, runs_unread=0)
        self._apply_rest(db)
        if read_number(db, "next_id") > 1:
            write_meta(db, runs_unread=1)

    def _find_id(self) -> str:
        """The queue's own id: from its file, else from the journal, else a new one."""
        path = f"{self._directory}/{QUEUE_FILE}"
        with contextlib.suppress(OSError, wire.WireError):
            found = wire.parse_object(files.read_bytes(path), path).get("queue_id")
            if isinstance(found, str) and found:
                return found
        newest = self._journal.newest()
        queue_id = str(self._journal.read(newest).head["queue"]) if newest else os.urandom(8).hex()
        facts: dict[str, Any] = {"queue_id": queue_id, "host": os.uname().nodename, "made_at": utc_now()}
        files.commit(path, wire.to_bytes(facts))
        return queue_id

    def _reapply(self, db: sqlite3.Connection) -> None:
        """Somebody rebuilt the database while we were at work: what we have started since is known to us alone."""
        for job in self._active.values():
            now = rows.get_job(db, job.id)
            if now is None or now.run_id is not None:
                continue
            facts = {name: getattr(job, name) for name in sorted(rows.FACTS)}
            names = ", ".join(f"{name} = ?" for name in facts)
            statement = f"UPDATE jobs SET state = ?, {names} WHERE id = ?"  # noqa: S608 - ours
            db.execute(statement, (job.state.value, *facts.values(), job.id))


def _read_doubts(db: sqlite3.Connection) -> tuple[list[str], str, float | None]:
    """Where runs of waiting jobs could be that are not known here, and since when.

    None: no job waits that may have run. A run is younger than its job's submission, and, but for clocks that were set,
    than the runs that were begun before it.
    """
    oldest = db.execute(
        "SELECT min(submitted_at) FROM jobs WHERE run_id IS NULL AND state IN ('queued', 'blocked', 'held')"
    ).fetchone()[0]
    newest = db.execute("SELECT max(started_at) FROM jobs WHERE run_id IS NOT NULL").fetchone()[0]
    since = None if oldest is None else max(oldest, newest or 0.0) - CLOCKS_S
    return *_read_roots(db), since


def _read_roots(db: sqlite3.Connection) -> tuple[list[str], str]:
    roots = [row[0] for row in db.execute("SELECT DISTINCT runs_root FROM submissions ORDER BY runs_root")]
    return roots, str(read_meta(db)["queue_id"])
