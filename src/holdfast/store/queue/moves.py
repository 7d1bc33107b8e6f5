"""Moving a job on: which state may follow which, and what that does to the jobs that need it (QUEUE-16).

No level is skipped: a job that runs was claimed, one that is done has produced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import HoldfastError, InternalError
from holdfast.model.queue import WAITING_STATES, JobState, QueuedJob

from .acts import note_done, withdraw_done
from .rows import FACTS, clean_text, get_job

if TYPE_CHECKING:
    import sqlite3

_S = JobState
_WAITING_NEXT = frozenset({_S.BLOCKED, _S.QUEUED, _S.HELD, _S.CANCELLED, _S.ELSEWHERE})
NEXT: dict[JobState, frozenset[JobState]] = {
    _S.BLOCKED: _WAITING_NEXT,
    _S.QUEUED: _WAITING_NEXT | {_S.CLAIMED},
    _S.HELD: _WAITING_NEXT,
    _S.CLAIMED: _WAITING_NEXT | {_S.RUNNING, _S.FAILED},
    _S.RUNNING: _WAITING_NEXT | {_S.PRODUCED, _S.FAILED},
    _S.PRODUCED: frozenset({_S.DONE, _S.FAILED, _S.HELD, _S.QUEUED}),
    _S.DONE: frozenset({_S.FAILED, _S.HELD}),
    _S.FAILED: _WAITING_NEXT,
    _S.CANCELLED: _WAITING_NEXT,
    _S.ELSEWHERE: frozenset({_S.QUEUED, _S.BLOCKED, _S.DONE, _S.FAILED, _S.HELD, _S.CANCELLED}),
}
"""What may follow; a state may always follow itself, with new facts."""


class JobMoved(HoldfastError):
    """The job is not where the caller believed: somebody cancelled, held or cleared it meanwhile. Nothing changed."""

    code, exit_code, transient = "job_moved", 75, True


def move_job(db: sqlite3.Connection, job_id: int, state: JobState, facts: dict[str, Any]) -> QueuedJob:
    """Move one job on, inside a transaction; answers it as it is now.

    Raises:
        JobMoved: that state does not follow the one that it is in, or it is gone.
        InternalError: a fact is no fact of a job.
    """
    job = get_job(db, job_id)
    if job is None:
        raise JobMoved(f"job {job_id} is not in the queue any more", hint="Its run, if it has one, stays.")
    if state is _S.QUEUED and job.open_needs:
        state = _S.BLOCKED
    if state is not job.state and not _may_follow(job, state):
        raise JobMoved(
            f"{job.label} is {job.state.value} and cannot become {state.value}", details={"state": job.state.value}
        )
    values = _check(job, facts)
    if state is _S.HELD and facts.get("guarded"):
        values["guarded"] = 1
    names = ["state", *values]
    db.execute(
        f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?",  # noqa: S608 - ours
        (state.value, *values.values(), job_id),
    )
    if state is not job.state:
        if state is _S.DONE:
            note_done(db, job_id)
        elif job.state is _S.DONE:
            withdraw_done(db, job_id)
        if job.state not in WAITING_STATES and "guarded" not in values:
            # What a run's directory tells from here on is newer than any order.
            db.execute("UPDATE jobs SET guarded = 0 WHERE id = ? AND guarded", (job_id,))
    moved = get_job(db, job_id)
    assert moved is not None
    return moved


def _may_follow(job: QueuedJob, state: JobState) -> bool:
    if job.claims is not None and job.state is _S.CLAIMED and state is _S.DONE:
        # Another box had it done before this one asked.
        return True
    return state in NEXT[job.state]


def _check(job: QueuedJob, facts: dict[str, Any]) -> dict[str, Any]:
    values = {name: clean_text(value) if isinstance(value, str) else value for name, value in facts.items()}
    if values.pop("runs_root", job.runs_root) != job.runs_root:
        raise InternalError(f"{job.label}: its runs are kept where its submission says, {job.runs_root}")
    values.pop("guarded", None)
    if unknown := values.keys() - FACTS:
        raise InternalError(f"{', '.join(sorted(unknown))}: not for a worker to set")
    return values


def apply_runs(db: sqlite3.Connection, found: Iterable[QueuedJob]) -> None:
    """After a rebuild: what the run directories say of jobs of which only the journal was known.

    A job whose last order came after its run's last attempt stands where the order put it, with its run. An entry
    without a key is a run that could not be read: every waiting job that it may be of is held, because starting it
    could run it twice.
    """
    for run in found:
        if not run.key:
            _hold_suspects(db, run)
            continue
        if not is_unknown(db, run):
            continue
        number = int(run.key)
        job = get_job(db, number)
        assert job is not None
        facts = {name: getattr(run, name) for name in FACTS - {"not_before", "expected_s", "requeued"}}
        facts = {name: clean_text(value) if isinstance(value, str) else value for name, value in facts.items()}
        seen = db.execute("SELECT from_attempt FROM jobs WHERE id = ?", (number,)).fetchone()[0]
        state = run.state if run.attempts > seen or run.state is _S.RUNNING else job.state
        if state is job.state:
            facts["note"] = job.note
        db.execute(
            f"UPDATE jobs SET state = ?, guarded = ?, {', '.join(f'{name} = ?' for name in facts)} WHERE id = ?",  # noqa: S608 - ours
            (state.value, int(state is _S.HELD and run.state is _S.HELD), *facts.values(), number),
        )
        if state is _S.DONE:
            note_done(db, number)


def is_unknown(db: sqlite3.Connection, run: QueuedJob) -> bool:
    """Whether a run is one of a job that, as far as the database knows, has none."""
    number = int(run.key) if run.key.isascii() and run.key.isdigit() and len(run.key) < 19 else -1
    job = get_job(db, number)
    return job is not None and (job.group, job.name) == (run.group, run.name) and job.run_id is None


def _hold_suspects(db: sqlite3.Connection, run: QueuedJob) -> None:
    """Hold the waiting jobs whose spec has the name in the run's id, or all without one."""
    query = (
        "SELECT c.id, c.change, s.head FROM jobs c JOIN submissions s ON s.seq = c.seq"
        " WHERE c.state IN ('queued', 'blocked') AND c.run_id IS NULL AND s.runs_root = ?"
    )
    rows = db.execute(query, (run.runs_root,)).fetchall()
    suspects = [row[0] for row in rows if not run.name or _job_name(row[1], row[2]) == run.name]
    note = clean_text(run.note)
    db.executemany("UPDATE jobs SET state = 'held', guarded = 1, note = ? WHERE id = ?", [(note, i) for i in suspects])


def _job_name(change: str, head: str) -> object:
    name = json.loads(change).get("name") if change else None
    return name if name is not None else json.loads(head)["base"].get("name")
