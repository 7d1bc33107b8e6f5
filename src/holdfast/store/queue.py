"""The queue of one account on one box: a database made from committed files (docs/queue.md).

Every submission and order is first committed as a file of the journal, then applied here in one transaction that also
notes how far the journal has been applied. So a database that is lost, damaged or behind is made again from the journal
and, for what has started since, from the run directories. Several processes use it at once: command lines write
submissions and orders, the worker alone moves cells on.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from typing import TYPE_CHECKING, Any

from ..host import files
from ..host.clock import epoch_s, utc_now
from ..host.processes import user_name
from ..model import wire
from ..model.errors import NotPermitted, StorageError, UsageError
from ..model.ids import is_run_id
from ..model.queue import ACTIVE_STATES, CellState, Order, OrderVerb, QueueSettings
from . import queue_acts as acts
from . import queue_rows as rows
from .places import queue_directory
from .queue_database import Database
from .queue_handing import check_name, find_ids, plan_submission, propose
from .queue_journal import Journal
from .queue_moves import CellMoved, apply_runs, move
from .queue_orders import plan_order
from .queue_schema import read_meta, read_number, write_meta

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from ..model.queue import Cell, Group, Submission
    from .queue_journal import Act

__all__ = ["CellMoved", "Queue", "queue_directory"]

QUEUE_FILE = "queue.json"
MOST_DURATIONS = 50
_ACTIVE = tuple(sorted(state.value for state in ACTIVE_STATES))


class Queue:
    """An open queue; use as a context manager. `notice` says, for people, when it had to be rebuilt, else None."""

    def __init__(
        self, directory: str | None = None, *, find_runs: Callable[[Iterable[str], str], Iterable[Cell]] | None = None
    ) -> None:
        """Open it; make it when there is none; bring it up to date with the journal.

        `find_runs(runs_roots, queue_id)` answers, for a rebuild, what the run directories say about their cells
        (`agent.queueing.recovery`). Without it a rebuilt queue starts nothing until somebody has opened it with it.

        Raises:
            NotPermitted: the directory belongs to somebody else or others may write it.
            StorageError: it cannot be read or written, or another process has had it locked for too long.
        """
        self.directory = directory or queue_directory()
        _open_directory(self.directory)
        self._find_runs = find_runs
        self._memory: dict[int, Cell] = {}
        self._journal = Journal(self.directory)
        try:
            self._database = Database(self.directory, self._journal, fill=self._fill, replaced=self._reapply)
            self._said: str | None = None
            self.catch_up()
            self._read_runs()
        except BaseException:
            self.close()
            raise

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
        if hasattr(self, "_database"):
            self._database.close()
        self._journal.close()

    @property
    def notice(self) -> str | None:
        """What had to be done to open it, for people; None usually."""
        return self._said or self._database.notice

    @property
    def path(self) -> str:
        """The database file in use; a rebuilt one has another name."""
        return self._database.path

    # --- the journal ------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply what the journal has and the database does not: somebody was killed between the two.

        The worker calls it when something appears in the journal's directory: the file is there a moment before the
        database knows it, and waiting for its writer is what this does first.

        Raises:
            StorageError: an act cannot be read, or the queue is locked.
        """
        if self._journal.newest() > self._database.read(lambda db: read_number(db, "applied")):
            with self._journal.hold():
                self._database.write(self._apply_rest)

    def _apply_rest(self, db: sqlite3.Connection) -> None:
        applied = read_number(db, "applied")
        for seq in self._journal.numbers():
            if seq > applied:
                acts.apply(db, self._journal.read(seq))

    def _fill(self, db: sqlite3.Connection) -> None:
        """A new database, from the journal; the runs are read afterwards (`_read_runs`)."""
        queue_id = self._find_id()
        write_meta(db, queue_id=queue_id, applied=0, next_id=1, runs_unread=0)
        self._apply_rest(db)
        if read_number(db, "next_id") > 1:
            write_meta(db, runs_unread=1)

    def _find_id(self) -> str:
        """The queue's own id: from its file, else from the journal, else a new one."""
        path = f"{self.directory}/{QUEUE_FILE}"
        with contextlib.suppress(OSError, wire.WireError):
            found = wire.parse_object(files.read_bytes(path), path).get("queue_id")
            if isinstance(found, str) and found:
                return found
        newest = self._journal.newest()
        queue_id = str(self._journal.read(newest).head["queue"]) if newest else os.urandom(8).hex()
        facts = {"queue_id": queue_id, "host": os.uname().nodename, "made_at": utc_now()}
        files.commit(path, wire.to_bytes(facts))
        return queue_id

    def _read_runs(self) -> None:
        """After a rebuild: see which cells have run, before any of them may start."""
        if not self._database.read(lambda db: read_number(db, "runs_unread")):
            return
        if self._find_runs is None:
            self._said = (
                f"{self._database.notice or 'the database was made again from the journal'}; what has run since is not "
                "known here yet, and nothing starts until the worker has looked"
            )
            return
        roots, queue_id = self._database.read(_read_roots)
        found = list(self._find_runs(roots, queue_id))

        def note(db: sqlite3.Connection) -> None:
            if read_number(db, "runs_unread"):
                apply_runs(db, found)
                write_meta(db, runs_unread=0)

        self._database.write(note)

    def _reapply(self, db: sqlite3.Connection) -> None:
        """Somebody rebuilt the database while we were at work: what we have started since is known to us alone."""
        for cell in self._memory.values():
            now = rows.get_cell(db, cell.id)
            if now is None or now.run_id is not None:
                continue
            facts = {name: getattr(cell, name) for name in sorted(rows.FACTS)}
            names = ", ".join(f"{name} = ?" for name in facts)
            statement = f"UPDATE cells SET state = ?, {names} WHERE id = ?"  # noqa: S608 - ours
            db.execute(statement, (cell.state.value, *facts.values(), cell.id))

    def _act(self, plan: Callable[[sqlite3.Connection, int, float, str], tuple[Act | None, Any]]) -> Any:  # noqa: ANN401 - what plan answers
        """Work out an act, commit it to the journal, apply it; all of it or nothing.

        A plan without an act answers at once. The transaction is open before the file is committed, so nobody can
        move a cell between what was planned and what is applied.
        """
        committed: list[Act] = []

        def work(db: sqlite3.Connection) -> Any:  # noqa: ANN401 - as above
            self._apply_rest(db)
            meta = read_meta(db)
            seq = max(self._journal.newest(), _number(meta["applied"])) + 1
            act, answer = plan(db, seq, epoch_s(), str(meta["queue_id"]))
            if act is not None:
                self._journal.commit(act)
                committed.append(act)
                acts.apply(db, act)
            return answer

        with self._journal.hold():
            try:
                return self._database.write(work)
            except BaseException:
                for act in committed:
                    with contextlib.suppress(OSError):
                        self._journal.withdraw(act)
                raise

    # --- command lines ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> tuple[int, ...]:
        """Commit a submission; the ids of its cells in order.

        Cells whose (group, name) is there already with the same `sha256` are left out (handing a file in again adds
        only what is new); the ids are then those of the known cells.

        Raises:
            UsageError: two cells have one name, a name is taken by another configuration, a dependency is not known,
                or they form a cycle; nothing was taken. All mistakes (up to ten) are in the message.
            StorageError: the disk took nothing; the journal is as before.
        """
        if problem := check_name(submission.group, "group"):
            raise UsageError(problem)
        for text in (submission.runs_root, submission.claims or ""):
            if rows.clean(text) != text:
                raise UsageError(f"the path {text!r} is no UTF-8", hint="Name a directory whose path is.")

        def plan(db: sqlite3.Connection, seq: int, now: float, queue_id: str) -> tuple[Act | None, tuple[int, ...]]:
            found = plan_submission(db, submission)
            first = read_number(db, "next_id")
            new = {position: first + offset for offset, position in enumerate(found.new)}
            ids = tuple(new.get(position, known) for position, known in enumerate(found.ids))
            if not new:
                return None, ids
            return acts.build_submission(submission, found, queue_id=queue_id, seq=seq, now=now, first_id=first), ids

        answer: tuple[int, ...] = self._act(plan)
        return answer

    def order(self, order: Order) -> tuple[Cell, ...]:
        """Commit an order; the cells that it changed, as they are now.

        CANCEL takes waiting cells out; active ones keep their state (the caller or the worker stops their runs and
        the worker notes the end). RETRY queues failed, cancelled and held cells again (a done one only when it is
        named, with ``{"done": true}``). RESUME of a group or of the queue lets its held cells go on, too; not those
        whose runs could not be read after a rebuild: these must be named. What of a group's or queue's cells does not
        fit is passed over; of cells that are named one must fit. CLEAR takes out wholly closed groups, and closed cells
        of the default group.

        Raises:
            UsageError: it names what is not there, or does not fit the cell's state.
            StorageError: the disk took nothing; the journal is as before.
        """

        def plan(db: sqlite3.Connection, seq: int, now: float, queue_id: str) -> tuple[Act | None, tuple[int, ...]]:
            effects = plan_order(db, order)
            next_id = read_number(db, "next_id")
            act = acts.build_order(order, effects, queue_id=queue_id, seq=seq, now=now, next_id=next_id)
            return act, effects.ids

        ids: tuple[int, ...] = self._act(plan)
        if order.verb is OrderVerb.CLEAR:
            self._compact()
            return ()
        return tuple(self._database.read(lambda db: rows.get_cells(db, ids)))

    def _compact(self) -> None:
        """Remove submissions of which no cell is left, and all orders before the newest act when no cell is left."""
        with self._journal.hold():
            live, empty = self._database.read(
                lambda db: (
                    {row[0] for row in db.execute("SELECT seq FROM submissions")},
                    db.execute("SELECT 1 FROM cells LIMIT 1").fetchone() is None,
                )
            )
            # The newest stays: it carries the settings, and the numbers that were given out.
            for seq in self._journal.numbers()[:-1]:
                if seq not in live and (empty or self._journal.read(seq).head["act"] == "submission"):
                    self._journal.remove([seq])

    def find(self, words: Sequence[str]) -> tuple[Cell, ...]:
        """The cells that people mean.

        A word is a name of the default group, ``group/name``, ``group/`` or a group's name, or a run id.

        Raises:
            UsageError: a word fits nothing; near names are proposed.
        """

        def look(db: sqlite3.Connection) -> tuple[Cell, ...]:
            ids: list[int] = []
            for word in words:
                found = _find_word(db, word)
                if not found:
                    near = propose(db, word)
                    raise UsageError(
                        f"there is no cell, group or run {word!r} in the queue{near}", hint="`holdfast queue ls`"
                    )
                ids += found
            return tuple(rows.get_cells(db, dict.fromkeys(ids)))

        return self._database.read(look)

    def cells(
        self, *, group: str | None = None, states: Iterable[CellState] = (), limit: int | None = None
    ) -> list[Cell]:
        """Cells in the order in which they would start; without `states` all."""
        wanted = [state.value for state in (dict.fromkeys(states) or CellState)]
        most = -1 if limit is None else limit

        def look(db: sqlite3.Connection) -> list[Cell]:
            where, values = "c.state = ?", []
            if group is not None:
                row = db.execute("SELECT id FROM groups WHERE name = ?", (group,)).fetchone()
                if row is None:
                    return []
                where, values = "c.group_id = ? AND c.state = ?", [row[0]]
            # One ordered walk of the index for each state: sorting all cells to show fifty would be what takes time.
            found = [
                db.execute(
                    f"{rows.SELECT_CELLS} WHERE {where}{rows.IN_ORDER} LIMIT ?", (*values, state, most)
                ).fetchall()
                for state in wanted
            ]
            merged = heapq.merge(*found, key=lambda row: (-row[4], row[5], row[0]))
            return [rows.read_cell(row) for row in (merged if limit is None else _take(merged, limit))]

        return self._database.read(look)

    def counts(self) -> dict[str, dict[CellState, int]]:
        """How many cells stand where, by group, in order of the groups' first submission."""

        def look(db: sqlite3.Connection) -> dict[str, dict[CellState, int]]:
            names = dict(db.execute("SELECT id, name FROM groups ORDER BY id").fetchall())
            answer: dict[str, dict[CellState, int]] = {name: {} for name in names.values()}
            query = "SELECT group_id, state, count(*) FROM cells GROUP BY group_id, state"
            for group_id, state, number in db.execute(query):
                answer[names[group_id]][rows.read_state(state)] = number
            return answer

        return self._database.read(look)

    def groups(self) -> dict[str, Group]:
        """Every group, in order of its first submission."""

        def look(db: sqlite3.Connection) -> dict[str, Group]:
            found = map(rows.read_group, db.execute("SELECT * FROM groups ORDER BY id").fetchall())
            return {group.name: group for group in found}

        return self._database.read(look)

    def settings(self) -> QueueSettings:
        """What holds for the whole queue."""
        meta = self._database.read(read_meta)
        slots = meta.get("cpu_slots")
        return QueueSettings(
            queue_id=str(meta["queue_id"]),
            paused=bool(meta.get("paused")),
            draining=bool(meta.get("draining")),
            cpu_slots=slots if isinstance(slots, int) else None,
        )

    def submission_of(self, cell_id: int) -> Submission:
        """The submission that a cell came with, its `cells` holding that one cell only.

        Raises:
            CellMoved: there is no such cell any more.
        """
        found = self._database.read(lambda db: rows.read_submission(db, cell_id))
        if found is None:
            raise CellMoved(f"cell {cell_id} is not in the queue any more", hint="It was cleared.")
        return found

    def needs_of(self, cell_id: int) -> tuple[Cell, ...]:
        """What a cell needs that is not proven done."""
        query = (
            f"{rows.SELECT_CELLS} JOIN needs n ON n.need = c.id WHERE n.cell = ? AND c.state <> 'done' ORDER BY c.id"
        )
        return tuple(
            rows.read_cell(row) for row in self._database.read(lambda db: db.execute(query, (cell_id,)).fetchall())
        )

    def durations(self, cell_id: int) -> tuple[float, ...]:
        """Seconds that done cells of the same group and base took, newest first, at most 50: for estimates."""
        query = (
            "SELECT d.ended_at - d.started_at FROM cells c JOIN submissions s ON s.seq = c.seq"
            " JOIN cells d ON d.group_id = c.group_id AND d.state = 'done' JOIN submissions t ON t.seq = d.seq"
            " WHERE c.id = ? AND t.base_hash = s.base_hash AND d.ended_at >= d.started_at"
            " ORDER BY d.ended_at DESC LIMIT ?"
        )
        found = self._database.read(lambda db: db.execute(query, (cell_id, MOST_DURATIONS)).fetchall())
        return tuple(row[0] for row in found)

    # --- the worker -------------------------------------------------------------------------------------------------

    def candidates(
        self, *, now: float, limit: int, without_groups: Iterable[str], cards: bool, slots: bool
    ) -> list[Cell]:
        """QUEUED cells whose time has come, best first; `cards`/`slots` say whether cells of that kind are of use."""
        self._read_runs()
        names = list(without_groups)
        kind = "" if cards and slots else " AND c.cards > 0" if cards else " AND c.cards = 0" if slots else " AND 0"

        def look(db: sqlite3.Connection) -> list[Cell]:
            if read_number(db, "runs_unread"):
                # What has run already is not known: nothing may start.
                return []
            marks = ", ".join("?" * len(names))
            closed = [row[0] for row in db.execute(f"SELECT id FROM groups WHERE name IN ({marks})", names)]  # noqa: S608 - ours
            without = f" AND c.group_id NOT IN ({', '.join('?' * len(closed))})" if closed else ""
            query = (
                f"{rows.SELECT_CELLS} WHERE c.state = 'queued'{kind}{without}"
                f" AND (c.not_before IS NULL OR c.not_before <= ?){rows.IN_ORDER} LIMIT ?"
            )
            return [rows.read_cell(row) for row in db.execute(query, (*closed, now, limit)).fetchall()]

        return self._database.read(look)

    def active(self) -> list[Cell]:
        """Cells that are CLAIMED, RUNNING or PRODUCED."""
        marks = ", ".join("?" * len(_ACTIVE))
        query = f"{rows.SELECT_CELLS} WHERE c.state IN ({marks}) ORDER BY c.id"
        return [rows.read_cell(row) for row in self._database.read(lambda db: db.execute(query, _ACTIVE).fetchall())]

    def next_time(self, now: float) -> float | None:
        """The next `not_before` that a queued cell waits for."""
        query = "SELECT min(not_before) FROM cells WHERE state = 'queued' AND not_before > ?"
        found = self._database.read(lambda db: db.execute(query, (now,)).fetchone())
        return None if found is None or found[0] is None else float(found[0])

    def move_on(self, cell_id: int, state: CellState, **facts: object) -> Cell:
        """Commit a cell's next state with fields of `Cell` (run_id, outcome, note, ...); answers it as it is now.

        In the same transaction: when it becomes DONE, what needed it needs one less (and becomes QUEUED at none);
        when it leaves CLOSED_STATES again, what needs it becomes BLOCKED. QUEUED is BLOCKED while it needs something.

        Raises:
            CellMoved: it is not in a state from which that one follows: somebody cancelled, held or cleared it
                meanwhile. Nothing was changed.
            StorageError: it could not be written; nothing was changed.
        """
        return self.move_many([(cell_id, state, facts)])[0]

    def move_many(self, moves: Sequence[tuple[int, CellState, dict[str, object]]]) -> list[Cell]:
        """As `move_on` for several cells, in one transaction: all of it or nothing; each cell as it is then.

        Raises:
            CellMoved, StorageError: as `move_on`.
        """
        moved = self._database.write(lambda db: [move(db, cell_id, state, facts) for cell_id, state, facts in moves])
        for cell in moved:
            if cell.state in ACTIVE_STATES:
                self._memory[cell.id] = cell
            else:
                self._memory.pop(cell.id, None)
        return moved

    def hold_group(self, name: str, why: str) -> None:
        """Stop a group by itself; `queue resume` lets it go on."""
        self.order(Order(OrderVerb.PAUSE, by="holdfast", at=utc_now(), group=name, values={"held": why}))


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _take(found: Iterable[Any], limit: int) -> Iterable[Any]:
    import itertools

    return itertools.islice(found, limit)


def _read_roots(db: sqlite3.Connection) -> tuple[list[str], str]:
    roots = [row[0] for row in db.execute("SELECT DISTINCT runs_root FROM submissions ORDER BY runs_root")]
    return roots, str(read_meta(db)["queue_id"])


def _find_word(db: sqlite3.Connection, word: str) -> list[int]:
    group, slash, name = word.partition("/")
    if slash:
        return find_ids(db, group, name or None)
    found = find_ids(db, "default", word) or find_ids(db, word)
    if not found and is_run_id(word):
        found = [row[0] for row in db.execute("SELECT id FROM cells WHERE run_id = ?", (word,))]
    return found


def _open_directory(path: str) -> None:
    """Make the directory when there is none, and see that nobody else can write in it.

    Raises:
        NotPermitted, StorageError: it cannot be used.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        facts = os.stat(path)
    except OSError as error:
        raise StorageError(
            f"the queue's directory {path} cannot be made: {error.strerror}",
            hint="Look at the disk and at who owns the directory above; HOLDFAST_QUEUE names another one.",
        ) from error
    if facts.st_uid != os.geteuid():
        raise NotPermitted(
            f"the queue's directory {path} belongs to {user_name(facts.st_uid)}",
            hint="HOLDFAST_QUEUE names one of your own.",
        )
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPermitted(
            f"the queue's directory {path} has mode {stat.S_IMODE(facts.st_mode):04o}: others could hand in jobs that "
            "run as you",
            hint=f"chmod 700 {path}",
        )
