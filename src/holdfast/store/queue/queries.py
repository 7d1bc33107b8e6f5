"""Questions to the queue's database, each answered from one transaction.

With ten thousand jobs the indexes decide what these cost: what may start and what is shown first are walked in order,
never sorted; numbers by group and state come from an index alone.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.model.errors import NoSuchName
from holdfast.model.ids import is_run_id
from holdfast.model.queue import ACTIVE_STATES, DEFAULT_GROUP, JobGroup, JobState, QueuedJob, QueueSettings

from . import rows
from .admission import find_ids, propose_names
from .schema import read_meta

if TYPE_CHECKING:
    import sqlite3

MOST_DURATIONS = 50
_ACTIVE = tuple(sorted(state.value for state in ACTIVE_STATES))


def find_jobs(db: sqlite3.Connection, words: Sequence[str]) -> tuple[QueuedJob, ...]:
    """As `Queue.find`.

    Raises:
        NoSuchName: a word fits nothing.
    """
    ids: list[int] = []
    for word in words:
        found = _find_word(db, word)
        if not found:
            near = propose_names(db, word)
            raise NoSuchName(
                f"there is no job, group or run {word!r} in the queue{near}", hint="`holdfast queue ls` lists the jobs."
            )
        ids += found
    return tuple(rows.get_jobs(db, dict.fromkeys(ids)))


def _find_word(db: sqlite3.Connection, word: str) -> list[int]:
    group, slash, name = word.partition("/")
    if slash:
        return find_ids(db, group, name or None)
    found = find_ids(db, DEFAULT_GROUP, word) or find_ids(db, word)
    if not found and is_run_id(word):
        found = [row[0] for row in db.execute("SELECT id FROM jobs WHERE run_id = ?", (word,))]
    return found


def find_ordered(db: sqlite3.Connection, order_id: str) -> tuple[str, tuple[QueuedJob, ...]] | None:
    """As `Queue.find_ordered`."""
    rows_found = db.execute("SELECT seq, head FROM submissions WHERE instr(head, ?) > 0", (f'"{order_id}"',)).fetchall()
    for seq, head in rows_found:
        ordered = json.loads(head).get("ordered") or {}
        if ordered.get("order_id") == order_id:
            return str(ordered.get("sha256")), tuple(
                rows.select_jobs(db, f"{rows.SELECT_JOBS} WHERE c.seq = ? ORDER BY c.id", (seq,))
            )
    return None


def list_ordered(db: sqlite3.Connection) -> dict[str, str]:
    """The orders of desks whose jobs are in the queue, by their id, with their hashes."""
    heads = db.execute("SELECT head FROM submissions WHERE instr(head, '\"order_id\"') > 0").fetchall()
    found = [json.loads(head).get("ordered") or {} for (head,) in heads]
    return {str(one["order_id"]): str(one.get("sha256")) for one in found if "order_id" in one}


def list_with_other_code(db: sqlite3.Connection, group: str, tree: str) -> set[str]:
    """As `Queue.list_with_other_code`."""
    sql = (
        "SELECT c.name FROM jobs c JOIN groups g ON g.id = c.group_id WHERE g.name = ? AND c.seq IN"
        " (SELECT seq FROM submissions WHERE instr(head, '\"order_id\"') > 0 AND instr(head, ?) = 0)"
    )
    return {name for (name,) in db.execute(sql, (group, f'"{tree}"'))}


def list_jobs(
    db: sqlite3.Connection, group: str | None, states: Iterable[JobState], limit: int | None
) -> list[QueuedJob]:
    """As `Queue.jobs`."""
    where, values = "c.state = ?", []
    if group is not None:
        row = db.execute("SELECT id FROM groups WHERE name = ?", (group,)).fetchone()
        if row is None:
            return []
        where, values = "c.group_id = ? AND c.state = ?", [row[0]]
    most = -1 if limit is None else limit
    query = f"{rows.SELECT_JOBS} WHERE {where}{rows.IN_ORDER} LIMIT ?"
    # One ordered walk of the index for each state: sorting all jobs to show fifty would be what takes time.
    found = [db.execute(query, (*values, state.value, most)).fetchall() for state in dict.fromkeys(states) or JobState]
    merged = heapq.merge(*found, key=lambda row: (-row[4], row[5], row[0]))
    return [rows.read_job(row) for row in itertools.islice(merged, limit)]


def count_jobs(db: sqlite3.Connection) -> dict[str, dict[JobState, int]]:
    """As `Queue.counts`."""
    names = dict(db.execute("SELECT id, name FROM groups ORDER BY id").fetchall())
    answer: dict[str, dict[JobState, int]] = {name: {} for name in names.values()}
    for group_id, state, number in db.execute("SELECT group_id, state, count(*) FROM jobs GROUP BY group_id, state"):
        answer[names[group_id]][rows.read_state(state)] = number
    return answer


def list_groups(db: sqlite3.Connection) -> dict[str, JobGroup]:
    """As `Queue.groups`."""
    found = map(rows.read_group, db.execute("SELECT * FROM groups ORDER BY id").fetchall())
    return {group.name: group for group in found}


def read_settings(db: sqlite3.Connection) -> QueueSettings:
    """As `Queue.settings`."""
    meta = read_meta(db)
    slots = meta.get("cpu_slots")
    return QueueSettings(
        queue_id=str(meta["queue_id"]),
        paused=bool(meta.get("paused")),
        draining=bool(meta.get("draining")),
        cpu_slots=slots if isinstance(slots, int) else None,
    )


def list_environments(db: sqlite3.Connection) -> frozenset[str]:
    """As `Queue.environments`."""
    heads = (json.loads(head) for (head,) in db.execute("SELECT head FROM submissions"))
    return frozenset(str(head.get("environment", "")) for head in heads)


def list_needs(db: sqlite3.Connection, job_id: int) -> tuple[QueuedJob, ...]:
    """As `Queue.needs_of`."""
    query = f"{rows.SELECT_JOBS} JOIN needs n ON n.need = c.id WHERE n.job = ? AND c.state <> 'done' ORDER BY c.id"
    return tuple(rows.select_jobs(db, query, (job_id,)))


def list_done_needs(db: sqlite3.Connection, job_ids: Sequence[int]) -> tuple[QueuedJob, ...]:
    """As `Queue.done_needs`."""
    needed = "SELECT need FROM needs WHERE job BETWEEN ? AND ?"
    query = f"{rows.SELECT_JOBS} WHERE c.state = 'done' AND c.id IN ({needed}) ORDER BY c.id"
    return tuple(rows.select_jobs(db, query, (min(job_ids), max(job_ids)))) if job_ids else ()


def list_waiting_for(db: sqlite3.Connection, job_ids: Sequence[int]) -> tuple[QueuedJob, ...]:
    """As `Queue.waiting_for`."""
    query = "SELECT c.id FROM needs n JOIN jobs c ON c.id = n.job WHERE n.need = ? AND c.state IN ('blocked', 'held')"
    found = {row[0] for job_id in job_ids for row in db.execute(query, (job_id,))}
    return tuple(rows.get_jobs(db, sorted(found - set(job_ids))))


def list_start_times(db: sqlite3.Connection, group: str | None) -> tuple[float, ...]:
    """As `Queue.start_times`."""
    query = (
        "SELECT c.not_before FROM jobs c JOIN groups g ON g.id = c.group_id WHERE c.not_before IS NOT NULL"
        " AND c.state IN ('queued', 'blocked') AND g.name = coalesce(?, g.name)"
    )
    return tuple(row[0] for row in db.execute(query, (group,)))


def find_last_end(db: sqlite3.Connection, group: str) -> QueuedJob | None:
    """As `Queue.last_end`."""
    query = (
        f"{rows.SELECT_JOBS} WHERE g.name = ? AND c.run_id IS NOT NULL AND c.ended_at IS NOT NULL"
        " ORDER BY c.ended_at DESC, c.id DESC LIMIT 1"
    )
    return next(iter(rows.select_jobs(db, query, (group,))), None)


def list_guarded(db: sqlite3.Connection) -> set[int]:
    """As `Queue.guarded`."""
    return {row[0] for row in db.execute("SELECT id FROM jobs WHERE guarded AND state = 'held'")}


def list_durations(db: sqlite3.Connection, job_id: int) -> tuple[float, ...]:
    """As `Queue.durations`."""
    query = (
        "SELECT d.ended_at - d.started_at FROM jobs c JOIN submissions s ON s.seq = c.seq"
        " JOIN jobs d ON d.group_id = c.group_id AND d.state = 'done' JOIN submissions t ON t.seq = d.seq"
        " WHERE c.id = ? AND t.base_hash = s.base_hash AND d.ended_at >= d.started_at"
        " ORDER BY d.ended_at DESC LIMIT ?"
    )
    return tuple(row[0] for row in db.execute(query, (job_id, MOST_DURATIONS)))


def list_candidates(
    db: sqlite3.Connection, *, now: float, limit: int, without_groups: Iterable[str], cards: bool, slots: bool
) -> list[QueuedJob]:
    """As `Queue.candidates`."""
    if not cards and not slots:
        return []
    names = list(without_groups)
    kind = "" if cards and slots else " AND c.cards > 0" if cards else " AND c.cards = 0"
    marks = ", ".join("?" * len(names))
    closed = [row[0] for row in db.execute(f"SELECT id FROM groups WHERE name IN ({marks})", names)]  # noqa: S608
    without = f" AND c.group_id NOT IN ({', '.join('?' * len(closed))})" if closed else ""
    query = (
        f"{rows.SELECT_JOBS} WHERE c.state = 'queued'{kind}{without}"
        f" AND (c.not_before IS NULL OR c.not_before <= ?){rows.IN_ORDER} LIMIT ?"
    )
    return rows.select_jobs(db, query, (*closed, now, limit))


def list_active(db: sqlite3.Connection) -> list[QueuedJob]:
    """As `Queue.active`."""
    marks = ", ".join("?" * len(_ACTIVE))
    return rows.select_jobs(db, f"{rows.SELECT_JOBS} WHERE c.state IN ({marks}) ORDER BY c.id", _ACTIVE)


def find_next_time(db: sqlite3.Connection, now: float) -> float | None:
    """As `Queue.next_time`."""
    query = "SELECT min(not_before) FROM jobs WHERE state = 'queued' AND not_before > ?"
    found = db.execute(query, (now,)).fetchone()
    return None if found is None or found[0] is None else float(found[0])
