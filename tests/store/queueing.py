"""Submissions and orders for tests of the queue's store."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from holdfast.model import wire
from holdfast.model.job import JobSpec
from holdfast.model.queue import JobState, NewJob, OrderVerb, QueueAct, Submission
from holdfast.store.queue.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

BASE: dict[str, object] = wire.encode(JobSpec("digits", ("true",), "/"))
AT = "2026-11-20T10:00:00.000Z"
S = JobState


def job(name: str, *needs: str, sha256: str | None = None, **fields: Any) -> NewJob:
    """A job with a hash of its own."""
    return NewJob(name, needs=needs, sha256=sha256 if sha256 is not None else f"hash-of-{name}", **fields)


def submission(
    *jobs: NewJob | str,
    group: str = "g",
    runs: str = "/runs",
    **fields: Any,
) -> Submission:
    """A submission of these jobs; a word is a job of that name."""
    made = tuple(job(item) if isinstance(item, str) else item for item in jobs)
    return Submission(group, BASE, made, runs, "/", ("holdfast", "submit"), "anna", AT, **fields)


def order(verb: OrderVerb, *jobs: int, group: str | None = None, **values: object) -> QueueAct:
    """An order about these jobs, a group, or all."""
    return QueueAct(verb, "anna", AT, group, tuple(map(str, jobs)), values)


def states(queue: Queue, group: str | None = None) -> dict[str, JobState]:
    """Where each job stands, by name."""
    return {found.name: found.state for found in queue.jobs(group=group)}


def names(queue: Queue) -> list[str]:
    """Names in the order in which they would start."""
    return [found.name for found in queue.jobs()]


def finish(queue: Queue, job_id: int, last: JobState = S.DONE, **facts: object) -> None:
    """Take a queued job through its life to `last`."""
    queue.move_on(job_id, S.CLAIMED, run_id=f"20261120-100000-digits-{job_id:04x}", attempts=1)
    queue.move_on(job_id, S.RUNNING, started_at=1.0)
    if last is S.DONE:
        queue.move_on(job_id, S.PRODUCED, ended_at=2.0)
    if last is not S.RUNNING:
        queue.move_on(job_id, last, **facts)


PLAIN = ("plain", None, 0, "", 0, None)
"""The columns of a group of which nothing was set."""


def dump(queue: Queue) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the database, but whether the runs were looked at, and groups of which nothing is left to know.

    A group without jobs and without anything set comes back with its next job: a rebuild has it not.
    """
    db = sqlite3.connect(f"file:{queue.path}?mode=ro", uri=True)
    try:
        tables = ("groups", "submissions", "jobs", "needs")
        found = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        meta = db.execute("SELECT key, value FROM meta WHERE key <> 'runs_unread' ORDER BY key").fetchall()
        used = {row[2] for row in found["jobs"]}
        found["groups"] = [row[1:] for row in found["groups"] if row[0] in used or row[2:8] != PLAIN]
        ids = [row[:2] for row in db.execute("SELECT id, name FROM groups")]
        by_id = dict(ids)
        found["jobs"] = [(*row[:2], by_id[row[2]], *row[3:]) for row in found["jobs"]]
        return {**found, "meta": [row for row in meta if row[1] not in (None, 0)]}
    finally:
        db.close()


def no_runs(_: Iterable[str], __: str, ___: float = 0.0) -> list[Any]:
    """No run directory has anything."""
    return []
