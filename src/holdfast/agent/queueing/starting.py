"""From a queued cell to a run with a supervisor: claim, make, start. Each step is committed or can be told from files.

A cell is CLAIMED with its run id, and with how many attempts that run had, before anything of it is made. Whoever
comes after a crash takes up what is there: no directory, one that was never complete, an attempt that nobody has
taken up, or a run that lives. So no kill between two instructions makes a second run, or a second attempt.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...host import files
from ...host.clock import epoch_s, utc_now
from ...host.snapshot import hash_file
from ...model import wire
from ...model.errors import HoldfastError, ResourceBusy, StillAlive, StorageError
from ...model.ids import build_run_id
from ...model.job import JobSpec
from ...model.queue import CellRef, CellState, IfChanged
from .. import launch
from ..claim_watch import write_claim
from ..create import create_run
from . import environment
from .claiming import SharedCells
from .requeue import begin_again
from .watching import Phase, look_at

if TYPE_CHECKING:
    from ...model.queue import Cell, Submission
    from ...store.queue import Queue
    from .claiming import Answer

PASSING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
    | {errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.EINTR}
)
"""What is wrong with a disk or with the box, not with the cell: the cell keeps its place and is tried again."""
MOST_HASHED = 1000
BUSY_PAUSE_S = 5.0


class Made(Enum):
    """What became of the try to start a cell."""

    STARTED = "started"
    ELSEWHERE = "elsewhere"
    HELD = "held"
    LATER = "later"
    """This cell cannot be begun now (somebody is at its run); it is queued again with a pause."""
    BLOCKED = "blocked"
    """Nothing can be begun now: the disk is full, or no process can be had."""


@dataclass(frozen=True, slots=True)
class Start:
    """What was made of a cell: the cell as it is now, and why in words when it was not started."""

    made: Made
    cell: Cell
    why: str = ""


class Starter:
    """Starts cells of one queue."""

    def __init__(self, queue: Queue) -> None:
        """Nothing is started yet."""
        self._queue = queue
        self._queue_id = queue.settings().queue_id
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self.shared = SharedCells()

    def start(self, cell: Cell) -> Start:
        """Claim a queued cell and start its run, or the next attempt of the run that it has.

        Raises:
            StorageError: the queue itself cannot be written.
        """
        submission = self._queue.submission_of(cell.id)
        changed = self._find_changes(submission.files)
        note = f"changed since submit: {', '.join(changed)}" if changed else ""
        if changed and submission.if_changed is IfChanged.HOLD:
            return self._hold(cell, f"{note}; `holdfast queue resume {cell.label} --accept-changes` runs it as it is")
        try:
            run_id = cell.run_id or invent_run_id(submission)
        except ValueError as error:
            return self._hold(cell, f"its job cannot be read: {error}")
        # One that the queue has not counted (begun by hand meanwhile, or never settled) is watched, not repeated.
        before = min(count_taken(f"{submission.runs_root}/{run_id}"), cell.attempts) if cell.run_id else 0
        facts = {"run_id": run_id, "attempts": before, "note": note}
        return self.take_up(self._queue.move_on(cell.id, CellState.CLAIMED, **facts))

    def take_up(self, cell: Cell) -> Start:
        """Go on with a cell that is CLAIMED, by us or by a worker that is dead.

        Raises:
            StorageError: the queue itself cannot be written.
        """
        try:
            answer = self._claim(cell)
            if answer is not None and answer.claim is None:
                return self._leave_to_others(cell, answer)
            attempt = self._make(cell, answer)
        except (ResourceBusy, StillAlive) as error:
            return self._retreat(cell, Made.LATER, str(error))
        except HoldfastError as error:
            cause = error.__cause__
            if isinstance(error, StorageError) and isinstance(cause, OSError) and cause.errno in PASSING:
                return self._retreat(cell, Made.BLOCKED, str(error))
            return self._hold(cell, f"{error}; {error.hint}" if error.hint else str(error))
        except OSError as error:
            made = Made.BLOCKED if error.errno in PASSING else Made.LATER
            return self._retreat(cell, made, f"{error.filename or cell.run_dir}: {error.strerror}")
        except wire.WireError as error:
            return self._hold(cell, f"its job cannot be read: {error}")
        moved = self._queue.move_on(cell.id, CellState.RUNNING, attempts=attempt, started_at=epoch_s())
        return Start(Made.STARTED, moved)

    def supervise(self, cell: Cell, attempt: int, reason: str, *, without_secrets: bool = False) -> None:
        """Give an attempt of a cell's run a supervisor, in the cell's environment.

        `without_secrets`: also where those are gone, because nothing is begun in it any more.

        Raises:
            HoldfastError: its environment is gone, or no process can be had.
        """
        assert cell.run_dir is not None
        environ, umask = self.environ_of(cell, without_secrets=without_secrets)
        previous = os.umask(umask)
        try:
            launch.start_supervisor(cell.run_dir, attempt, environ=environ, reason=reason)
        finally:
            os.umask(previous)

    def environ_of(self, cell: Cell, *, without_secrets: bool = False) -> tuple[dict[str, str], int]:
        """The environment and umask of a cell's run.

        Raises:
            StorageError: it cannot be read, or its secrets are gone with the memory that they lay in.
        """
        name = self._queue.submission_of(cell.id).environment
        stored = environment.load(name, directory=self._queue.directory)
        if stored.missing and not without_secrets:
            raise StorageError(
                f"its environment lacks {', '.join(stored.missing)}: secrets are kept in memory only and went with it",
                hint=f"give them from a shell that has them: holdfast queue resume {cell.label} --with-environment",
            )
        ours = {"HOLDFAST_QUEUE": self._queue.directory, "HOLDFAST_CELL": cell.name, "HOLDFAST_GROUP": cell.group}
        return {**stored.environ, **ours}, stored.umask

    def _claim(self, cell: Cell) -> Answer | None:
        """Among several boxes: whether the cell is ours to run; None when only this box has it."""
        if cell.claims is None:
            return None
        assert cell.run_id is not None
        answer = self.shared.claim(cell, cell.run_id)
        if answer.claim is None and answer.state is None:
            raise ResourceBusy(answer.note)
        return answer

    def _leave_to_others(self, cell: Cell, answer: Answer) -> Start:
        """Another box has it. A run of ours that was begun for it stays on record, one that was not never was."""
        assert answer.state is not None
        forget = {} if cell.attempts else {"run_id": None}
        moved = self._queue.move_on(cell.id, answer.state, note=answer.note, **forget)
        return Start(Made.ELSEWHERE, moved, answer.note)

    def _make(self, cell: Cell, answer: Answer | None) -> int:
        """Make what is not there yet of a claimed cell's run, and start its supervisor; the attempt's number."""
        assert cell.run_dir is not None
        look = look_at(cell.run_dir, first_attempt=cell.attempts + 1)
        if look.phase is Phase.MISSING and not cell.attempts:
            self._create(cell)
            look = look_at(cell.run_dir)
        if answer is not None and answer.claim is not None:
            write_claim(cell.run_dir, answer.claim, answer.expiry_s)
        if look.phase is Phase.MISSING:
            return begin_again(cell.run_dir, environ=self.environ_of(cell)[0])
        if look.phase is Phase.UNTAKEN:
            self.supervise(cell, look.attempt, look.reason)
        # Anything else is a run that was taken up already: it is watched.
        return look.attempt

    def _create(self, cell: Cell) -> None:
        """Make the run's directory, instead of one that was never complete."""
        assert cell.run_dir is not None
        assert cell.run_id is not None
        # So that a cell whose environment is gone makes no run.
        environ, _ = self.environ_of(cell)
        submission = self._queue.submission_of(cell.id)
        if os.path.lexists(cell.run_dir):
            files.remove_tree(cell.run_dir)
        create_run(
            build_spec(submission),
            submission.runs_root,
            argv=submission.argv,
            cwd=submission.cwd,
            environ=environ,
            run_id=cell.run_id,
            cell=CellRef(self._queue_id, cell.key, cell.group, cell.name),
        )

    def _hold(self, cell: Cell, why: str) -> Start:
        return Start(Made.HELD, self._queue.move_on(cell.id, CellState.HELD, note=why), why)

    def _retreat(self, cell: Cell, made: Made, why: str) -> Start:
        """Back in the queue. What was made of its run is kept: the next try goes on with it."""
        pause = {"not_before": epoch_s() + BUSY_PAUSE_S} if made is Made.LATER else {}
        return Start(made, self._queue.move_on(cell.id, CellState.QUEUED, note=why, **pause), why)

    def _find_changes(self, known: dict[str, str]) -> list[str]:
        """Names of the files that are not what they were when the cell was handed in."""
        changed = []
        for path, sha256 in known.items():
            try:
                facts = os.stat(path)
                key = (path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
                if key not in self._hashes:
                    if len(self._hashes) > MOST_HASHED:
                        self._hashes.clear()
                    self._hashes[key] = hash_file(path)
                now = self._hashes[key]
            except OSError as error:
                changed.append(f"{os.path.basename(path)} ({error.strerror})")
                continue
            if now != sha256:
                changed.append(os.path.basename(path))
        return changed


def count_taken(run_dir: str) -> int:
    """How many attempts of a run a supervisor has taken up: the newest number, less one that was only made."""
    look = look_at(run_dir)
    return look.attempt - 1 if look.phase is Phase.UNTAKEN else look.attempt


def build_spec(submission: Submission) -> JobSpec:
    """The job of the one cell in `submission`: the base with the cell's own fields in the place of the base's.

    Raises:
        WireError: that is no job.
    """
    return wire.decode(JobSpec, {**submission.base, **submission.cells[0].change})


def invent_run_id(submission: Submission) -> str:
    """A run id for a cell, with its job's name.

    Raises:
        ValueError: the job has no valid name.
    """
    now = utc_now()
    stamp = f"{now[0:4]}{now[5:7]}{now[8:10]}-{now[11:13]}{now[14:16]}{now[17:19]}"
    name = {**submission.base, **submission.cells[0].change}.get("name")
    for _ in range(100):
        run_id = build_run_id(stamp, str(name), os.urandom(2).hex())
        if not os.path.lexists(f"{submission.runs_root}/{run_id}"):
            break
    return run_id
