"""The tables of the queue's database, and its few facts that are no rows of jobs.

Made from the journal at any time, so a change of the tables is a new `VERSION` and no migration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

VERSION = 2
"""In ``user_version``. An older database is made anew from the journal; a newer one is left alone and refused."""

_JOBS = """CREATE TABLE jobs (
 id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, group_id INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
 priority INTEGER NOT NULL, place REAL NOT NULL, cards INTEGER NOT NULL, not_before REAL, open_needs INTEGER NOT NULL,
 expected_s REAL, params TEXT NOT NULL, change TEXT NOT NULL, after TEXT NOT NULL, sha256 TEXT NOT NULL,
 accepts_changes INTEGER NOT NULL DEFAULT 0, guarded INTEGER NOT NULL DEFAULT 0,
 from_attempt INTEGER NOT NULL DEFAULT -1, run_id TEXT, attempts INTEGER NOT NULL DEFAULT 0,
 requeued INTEGER NOT NULL DEFAULT 0, outcome TEXT, exit_code INTEGER, failure TEXT NOT NULL DEFAULT '',
 note TEXT NOT NULL DEFAULT '', submitted_at REAL NOT NULL, started_at REAL, ended_at REAL)"""
_GROUPS = """CREATE TABLE groups (
 id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, max_parallel INTEGER, paused INTEGER NOT NULL,
 held TEXT NOT NULL, hold_after INTEGER NOT NULL, source TEXT, made_at REAL NOT NULL)"""
_SUBMISSIONS = """CREATE TABLE submissions (
 seq INTEGER PRIMARY KEY, base_hash TEXT NOT NULL, claims TEXT, runs_root TEXT NOT NULL, head TEXT NOT NULL)"""
_STATEMENTS = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    _GROUPS,
    _SUBMISSIONS,
    _JOBS,
    "CREATE TABLE needs (job INTEGER NOT NULL, need INTEGER NOT NULL, PRIMARY KEY (job, need)) WITHOUT ROWID",
    "CREATE UNIQUE INDEX jobs_by_name ON jobs (group_id, name)",
    # What may start is found by walking this one alone; the last columns spare a look at the rows that do not fit.
    "CREATE INDEX jobs_by_turn ON jobs (state, priority DESC, place, id, group_id, cards, not_before)",
    "CREATE INDEX jobs_by_group ON jobs (group_id, state, priority DESC, place, id)",
    "CREATE INDEX jobs_by_run ON jobs (run_id) WHERE run_id IS NOT NULL",
    "CREATE INDEX jobs_by_submission ON jobs (seq)",
    "CREATE INDEX jobs_by_time ON jobs (not_before) WHERE not_before IS NOT NULL AND state = 'queued'",
    "CREATE INDEX jobs_by_end ON jobs (group_id, ended_at DESC) WHERE state = 'done'",
    "CREATE INDEX needs_by_need ON needs (need)",
)


def create_tables(db: sqlite3.Connection) -> None:
    """Make the tables in an empty database."""
    for statement in _STATEMENTS:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")


def check_tables(db: sqlite3.Connection) -> None:
    """Look once at what every use needs: a damaged file shows here rather than in the middle of something."""
    db.execute("SELECT value FROM meta WHERE key = 'applied'").fetchone()
    db.execute("SELECT id FROM jobs ORDER BY id DESC LIMIT 1").fetchone()


def read_meta(db: sqlite3.Connection) -> dict[str, object]:
    """All facts by name."""
    return dict(db.execute("SELECT key, value FROM meta").fetchall())


def write_meta(db: sqlite3.Connection, **facts: object) -> None:
    """Set facts: numbers, text or None."""
    db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", list(facts.items()))


def read_number(db: sqlite3.Connection, key: str) -> int:
    """One fact that is a number; 0 when it is not there."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row is not None and row[0] is not None else 0
