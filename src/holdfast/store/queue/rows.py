"""Rows of the queue's database as the types of `model.queue`, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.queue import GroupKind, IfChanged, JobGroup, JobState, NewJob, QueuedJob, Submission
from holdfast.model.record import replace

from .database import DamagedDatabase

if TYPE_CHECKING:
    import sqlite3

SELECT_JOBS = (
    "SELECT c.id, g.name, c.name, c.state, c.priority, c.place, c.cards, c.not_before, c.open_needs, c.expected_s,"
    " c.params, c.sha256, s.claims, c.run_id, s.runs_root, c.attempts, c.requeued, c.outcome, c.exit_code,"
    " c.failure, c.note, c.submitted_at, c.started_at, c.ended_at, c.accepts_changes"
    " FROM jobs c JOIN groups g ON g.id = c.group_id JOIN submissions s ON s.seq = c.seq"
)
IN_ORDER = " ORDER BY c.priority DESC, c.place, c.id"
FACTS = frozenset(
    {"run_id", "attempts", "requeued", "outcome", "exit_code", "failure", "note", "started_at", "ended_at"}
    | {"not_before", "expected_s"}
)
"""The fields of a job that its worker may set."""
_STATES = {state.value: state for state in JobState}


def read_job(row: Sequence[Any]) -> QueuedJob:
    """A job of a row of `SELECT_JOBS`.

    Raises:
        Damage: it holds what was never written there.
    """
    try:
        return QueuedJob(
            id=row[0],
            key=str(row[0]),
            group=row[1],
            name=row[2],
            state=_STATES[row[3]],
            priority=row[4],
            place=row[5],
            cards=row[6],
            slots=0 if row[6] else 1,
            not_before=row[7],
            open_needs=row[8],
            expected_s=row[9],
            params=json.loads(row[10]) if row[10] else {},
            sha256=row[11],
            claims=row[12],
            run_id=row[13],
            runs_root=row[14],
            attempts=row[15],
            requeued=row[16],
            outcome=row[17],
            exit_code=row[18],
            failure=row[19],
            note=row[20],
            submitted_at=row[21],
            started_at=row[22],
            ended_at=row[23],
            accepts_changes=bool(row[24]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedDatabase(f"the row of job {row[0]} is damaged: {error}") from error


def read_state(word: str) -> JobState:
    """A state of a row.

    Raises:
        Damage: there is none of that name.
    """
    try:
        return _STATES[word]
    except KeyError as error:
        raise DamagedDatabase(f"{word!r} is no state of a job") from error


def select_jobs(db: sqlite3.Connection, query: str, values: Sequence[object] = ()) -> list[QueuedJob]:
    """The jobs of a query that begins with `SELECT_JOBS`."""
    return [read_job(row) for row in db.execute(query, values).fetchall()]


def get_job(db: sqlite3.Connection, job_id: int) -> QueuedJob | None:
    """One job; None when there is none of that id."""
    row = db.execute(f"{SELECT_JOBS} WHERE c.id = ?", (job_id,)).fetchone()
    return None if row is None else read_job(row)


def get_jobs(db: sqlite3.Connection, ids: Iterable[int]) -> list[QueuedJob]:
    """These jobs, in this order; those that are not there are left out."""
    return [job for job_id in ids if (job := get_job(db, job_id)) is not None]


def read_group(row: Sequence[Any]) -> JobGroup:
    """A group of a row of its table.

    Raises:
        Damage: it holds what was never written there.
    """
    _, name, kind, max_parallel, paused, held, hold_after, source, made_at = row
    try:
        return JobGroup(name, GroupKind(kind), max_parallel, bool(paused), held, hold_after, source, made_at)
    except ValueError as error:
        raise DamagedDatabase(f"the row of group {name} is damaged: {error}") from error


def read_submission(db: sqlite3.Connection, job_id: int) -> Submission | None:
    """The submission of a job with that one job; None when there is no such job."""
    row = db.execute(
        "SELECT s.head, c.name, c.change, c.params, c.after, c.priority, c.not_before, c.expected_s, c.sha256,"
        " c.accepts_changes FROM jobs c JOIN submissions s ON s.seq = c.seq WHERE c.id = ?",
        (job_id,),
    ).fetchone()
    if row is None:
        return None
    head, name, change, params, after, priority, not_before, expected_s, sha256, accepts_changes = row
    try:
        job = NewJob(
            name, _object(change), _object(params), tuple(after.split()), priority, not_before, expected_s, sha256
        )
        found = wire.decode(Submission, {**json.loads(head), "jobs": []})
    except (ValueError, wire.WireError) as error:
        raise DamagedDatabase(f"the submission of job {job_id} is damaged: {error}") from error
    if accepts_changes:
        # Somebody has looked at what changed and wants it so.
        found = replace(found, if_changed=IfChanged.RUN)
    return replace(found, jobs=(job,))


def _object(text: str) -> dict[str, Any]:
    return json.loads(text) if text else {}


def clean_text(text: str) -> str:
    """Text as SQLite can store it: lone surrogates (bytes that are no UTF-8) are written out."""
    return text.encode("utf-8", "backslashreplace").decode()
