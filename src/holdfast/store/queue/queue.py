"""The queue of one account on one box: a database made from committed files (docs/queue.md).

Every submission and order is first committed as a file of the journal, then applied here in one transaction that also
notes how far the journal has been applied. So a database that is lost, damaged or behind is made again from the journal
and, for what has started since, from the run directories. Several processes use it at once: command lines write
submissions and orders, the worker alone moves jobs on.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.host.clock import utc_now
from holdfast.host.files.ownership import describe_unmade, make_own_directory
from holdfast.host.process.processes import user_name
from holdfast.model.errors import NotPermitted, StorageError, UsageError
from holdfast.model.queue import JobGroup, JobState, OrderVerb, QueueAct, QueuedJob, QueueSettings, Submission
from holdfast.store.paths import queue_directory

from . import acts, rows
from . import queries as reading
from .admission import check_name, plan_submission
from .cleared import note_cleared, read_cleared
from .engine import FindRuns, QueueEngine
from .journal import JournalAct
from .moves import JobMoved, move_job
from .orders import plan_order
from .schema import read_number

if TYPE_CHECKING:
    import sqlite3

__all__ = ["JobMoved", "Queue", "queue_directory"]


class Queue:
    """An open queue; use as a context manager. `notice` says, for people, when it had to be rebuilt, else None."""

    def __init__(
        self,
        directory: str | None = None,
        *,
        find_runs: FindRuns | None = None,
    ) -> None:
        """Open it; make it when there is none; bring it up to date with the journal.

        `find_runs(runs_roots, queue_id)` answers, for a rebuild, what the run directories say about their jobs
        (`agent.view.runs.of_queue`). Without it a rebuilt queue starts nothing until somebody has opened it with it.

        Raises:
            NotPermitted: the directory belongs to somebody else or others may write it.
            StorageError: it cannot be read or written, or another process has had it locked for too long.
        """
        self.directory = directory or queue_directory()
        _open_directory(self.directory)
        try:
            self._engine = QueueEngine(self.directory, find_runs)
        except OSError as error:
            raise _unusable(self.directory, error) from error

    def __enter__(self) -> Queue:  # noqa: PYI034 - typing.Self is newer than Python 3.10
        """Answer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._engine.close()

    @property
    def notice(self) -> str | None:
        """What had to be done to open it, for people; None usually."""
        return self._engine.notice

    @property
    def path(self) -> str:
        """The database file in use; a rebuilt one has another name."""
        return self._engine.path

    def catch_up(self) -> None:
        """Apply what the journal has and the database does not: somebody was killed between the two.

        The worker calls it when something appears in the journal's directory: the file is there a moment before the
        database knows it, and waiting for its writer is what this does first.

        Raises:
            StorageError: an act cannot be read, or the queue is locked.
        """
        self._engine.catch_up()

    # --- command lines ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> tuple[int, ...]:
        """Commit a submission; the ids of its jobs in order.

        Jobs whose (group, name) is there already and that were handed in as now are left out (handing a file in again
        adds only what is new); the ids are then those of the known jobs. One with another `sha256`, or other needs,
        priority, times or claims, takes the place of a job that was cancelled and never started; what needs that one
        needs the new one from then on.

        Raises:
            UsageError: two jobs have one name, a name is taken by a job that differs, a dependency is not known,
                or they form a cycle; nothing was taken. All mistakes (up to ten) are in the message.
            StorageError: the disk took nothing; the journal is as before.
        """
        if problem := check_name(submission.group, "group"):
            raise UsageError(problem)
        for text in (submission.runs_root, submission.claims or ""):
            if rows.clean_text(text) != text:
                raise UsageError(f"the path {text!r} is no UTF-8", hint="Name a directory whose path is.")

        def plan(
            db: sqlite3.Connection, seq: int, now: float, queue_id: str
        ) -> tuple[JournalAct | None, tuple[int, ...]]:
            found = plan_submission(db, submission, self._engine.read_lines)
            first = read_number(db, "next_id")
            new = {position: first + offset for offset, position in enumerate(found.new)}
            ids = tuple(new.get(position, known) for position, known in enumerate(found.ids))
            if not new:
                return None, ids
            return acts.build_submission(submission, found, queue_id=queue_id, seq=seq, now=now, first_id=first), ids

        return self._engine.act(plan)

    def order(self, order: QueueAct) -> tuple[QueuedJob, ...]:
        """Commit an order; the jobs that it changed, as they are now.

        CANCEL takes waiting jobs out; active ones keep their state (the caller or the worker stops their runs and
        the worker notes the end). RETRY queues failed, cancelled and held jobs again (a done one only when it is
        named, with ``{"done": true}``). PAUSE of jobs holds them. RESUME of a group or of the queue lets its held jobs
        go on, too; not those that a person holds, nor those whose runs could not be read after a rebuild: these must
        be named. What of a group's or queue's jobs does not
        fit is passed over; of jobs that are named one must fit. CLEAR takes out wholly closed groups, and closed jobs
        of the default group.

        Raises:
            UsageError: it names what is not there, or does not fit the job's state.
            StorageError: the disk took nothing; the journal is as before.
        """

        def plan(
            db: sqlite3.Connection, seq: int, now: float, queue_id: str
        ) -> tuple[JournalAct | None, tuple[int, ...]]:
            effects = plan_order(db, order)
            next_id = read_number(db, "next_id")
            act = acts.build_order(order, effects, queue_id=queue_id, seq=seq, now=now, next_id=next_id)
            return act, effects.ids

        if order.verb is OrderVerb.CLEAR:
            # Before their jobs go: an order whose answer was lost may come again.
            note_cleared(self.directory, self._engine.read(reading.list_ordered))
        ids = self._engine.act(plan)
        if order.verb is OrderVerb.CLEAR:
            self._engine.compact()
            return ()
        return tuple(self._engine.read(lambda db: rows.get_jobs(db, ids)))

    def foresee(self, order: QueueAct) -> tuple[QueuedJob, ...]:
        """The jobs that an order would change now, as they are.

        Raises:
            UsageError: as `order`.
        """
        return self._engine.read(lambda db: tuple(rows.get_jobs(db, plan_order(db, order).ids)))

    def find(self, words: Sequence[str]) -> tuple[QueuedJob, ...]:
        """The jobs that people mean.

        A word is a name of the default group, ``group/name``, ``group/`` or a group's name, or a run id.

        Raises:
            UsageError: a word fits nothing; near names are proposed.
        """
        return self._engine.read(lambda db: reading.find_jobs(db, words))

    def jobs(
        self, *, group: str | None = None, states: Iterable[JobState] = (), limit: int | None = None
    ) -> list[QueuedJob]:
        """Jobs in the order in which they would start; without `states` all."""
        wanted = list(states)
        return self._engine.read(lambda db: reading.list_jobs(db, group, wanted, limit))

    def next_id(self) -> int:
        """The id of the next job that is new."""
        return self._engine.read(lambda db: read_number(db, "next_id"))

    def counts(self) -> dict[str, dict[JobState, int]]:
        """How many jobs stand where, by group, in order of the groups' first submission."""
        return self._engine.read(reading.count_jobs)

    def groups(self) -> dict[str, JobGroup]:
        """Every group, in order of its first submission."""
        return self._engine.read(reading.list_groups)

    def settings(self) -> QueueSettings:
        """What holds for the whole queue."""
        return self._engine.read(reading.read_settings)

    def submission_of(self, job_id: int) -> Submission:
        """The submission that a job came with, its `jobs` holding that one job only.

        Raises:
            JobMoved: there is no such job any more.
        """
        found = self._engine.read(lambda db: rows.read_submission(db, job_id))
        if found is None:
            raise JobMoved(f"job {job_id} is not in the queue any more", hint="It was cleared.")
        return found

    def find_ordered(self, order_id: str) -> tuple[str, tuple[QueuedJob, ...]] | None:
        """The hash of a desk's order, and the jobs that it brought, none once they were cleared; None: never taken."""
        found = self._engine.read(lambda db: reading.find_ordered(db, order_id))
        if found is None and (sha256 := read_cleared(self.directory).get(order_id)) is not None:
            return sha256, ()
        return found

    def list_with_other_code(self, group: str, tree: str) -> set[str]:
        """The names of the jobs of a group that desks handed in with another code tree, or with none."""
        return self._engine.read(lambda db: reading.list_with_other_code(db, group, tree))

    def environments(self) -> frozenset[str]:
        """The ids of the environments that jobs of this queue were handed in with."""
        return self._engine.read(reading.list_environments)

    def needs_of(self, job_id: int) -> tuple[QueuedJob, ...]:
        """What a job needs that is not proven done."""
        return self._engine.read(lambda db: reading.list_needs(db, job_id))

    def done_needs(self, job_ids: Sequence[int]) -> tuple[QueuedJob, ...]:
        """What these jobs, whose ids are in a row, need and is done."""
        return self._engine.read(lambda db: reading.list_done_needs(db, job_ids))

    def waiting_for(self, job_ids: Sequence[int]) -> tuple[QueuedJob, ...]:
        """The waiting jobs, besides these themselves, that need one of these."""
        return self._engine.read(lambda db: reading.list_waiting_for(db, job_ids))

    def start_times(self, group: str | None = None) -> tuple[float, ...]:
        """The times (`not_before`) that waiting jobs of a group, or of all, have."""
        return self._engine.read(lambda db: reading.list_start_times(db, group))

    def last_end(self, group: str) -> QueuedJob | None:
        """The job of a group whose run ended last; None where none has."""
        return self._engine.read(lambda db: reading.find_last_end(db, group))

    def guarded(self) -> set[int]:
        """The ids of held jobs that go on only where they are named themselves."""
        return self._engine.read(reading.list_guarded)

    def durations(self, job_id: int) -> tuple[float, ...]:
        """Seconds that done jobs of the same group and base took, newest first, at most 50: for estimates."""
        return self._engine.read(lambda db: reading.list_durations(db, job_id))

    # --- the worker -------------------------------------------------------------------------------------------------

    def candidates(
        self, *, now: float, limit: int, without_groups: Iterable[str], cards: bool, slots: bool
    ) -> list[QueuedJob]:
        """QUEUED jobs whose time has come, best first; `cards`/`slots` say whether jobs of that kind are of use.

        Raises:
            NewerQueue: a newer holdfast uses the queue.
        """
        names = list(without_groups)

        def look(db: sqlite3.Connection) -> list[QueuedJob]:
            if read_number(db, "runs_unread"):
                # What has run already is not known: nothing may start.
                return []
            return reading.list_candidates(db, now=now, limit=limit, without_groups=names, cards=cards, slots=slots)

        self._engine.refuse_newer()
        self._engine.read_runs()
        return self._engine.read(look)

    def active(self) -> list[QueuedJob]:
        """Jobs that are CLAIMED, RUNNING or PRODUCED."""
        return self._engine.read(reading.list_active)

    def next_time(self, now: float) -> float | None:
        """The next `not_before` that a queued job waits for."""
        return self._engine.read(lambda db: reading.find_next_time(db, now))

    def move_on(self, job_id: int, state: JobState, **facts: object) -> QueuedJob:
        """Commit a job's next state with fields of `QueuedJob` (run_id, outcome, note, ...); answers it as it is now.

        In the same transaction: when it becomes DONE, what needed it needs one less (and becomes QUEUED at none);
        when it leaves CLOSED_STATES again, what needs it becomes BLOCKED. QUEUED is BLOCKED while it needs something.
        HELD with ``guarded=True`` is let go only by an order that names the job.

        Raises:
            JobMoved: it is not in a state from which that one follows: somebody cancelled, held or cleared it
                meanwhile. Nothing was changed.
            StorageError: it could not be written; nothing was changed.
        """
        return self.move_many([(job_id, state, facts)])[0]

    def move_many(self, moves: Sequence[tuple[int, JobState, dict[str, object]]]) -> list[QueuedJob]:
        """As `move_on` for several jobs, in one transaction: all of it or nothing; each job as it is then.

        Raises:
            JobMoved, StorageError: as `move_on`.
        """
        moved = self._engine.write(lambda db: [move_job(db, job_id, state, facts) for job_id, state, facts in moves])
        self._engine.remember(moved)
        return moved

    def hold_group(self, name: str, why: str) -> None:
        """Stop a group by itself; `queue resume` lets it go on."""
        self.order(QueueAct(OrderVerb.PAUSE, by="holdfast", at=utc_now(), group=name, values={"held": why}))


def _open_directory(path: str) -> None:
    """Make the directory when there is none, and see that nobody else can write in it.

    Raises:
        NotPermitted, StorageError: it cannot be used.
    """
    make_own_directory(os.path.dirname(path), "the directory above the queue", "HOLDFAST_QUEUE names one of your own.")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        facts = os.stat(path)
    except OSError as error:
        raise _unusable(path, error) from error
    if facts.st_uid != os.geteuid():
        raise NotPermitted(
            f"the queue's directory {path} belongs to {user_name(facts.st_uid)}",
            hint="HOLDFAST_QUEUE names one of your own.",
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPermitted(
            f"the queue's directory {path} has mode {stat.S_IMODE(facts.st_mode):04o}: others could hand in jobs that "
            "run as you",
            # Closing a directory that is everybody's, such as /tmp, would break the box.
            hint="HOLDFAST_QUEUE names one of your own." if facts.st_mode & stat.S_ISVTX else f"chmod 700 {path}",
        )


def _unusable(path: str, error: OSError) -> StorageError:
    return StorageError(
        f"the queue's directory {path} cannot be used: {describe_unmade(path, error)}",
        hint="Look at the disk and at who owns that directory and those above; HOLDFAST_QUEUE names another one.",
    )
