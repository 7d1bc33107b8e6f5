"""A file of the journal that cannot be read: it is named, what may hang on it is held, and all else goes on.

A submission that is lost costs its own jobs, and holds the jobs that need one of them. An order that is lost may have
cancelled or held any job that was handed in before it, so all of those that wait are held until a person says to go on;
jobs that were handed in later go on. The file is set aside under its name with ``.damaged`` and is named as long as it
lies there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .acts import apply_act
from .journal import DamagedAct
from .rows import clean_text
from .schema import read_number, write_meta

if TYPE_CHECKING:
    import sqlite3

    from .journal import Journal, JournalAct

SPARE_IDS = 1_000_000
"""So many job ids are left out after an act that cannot be read: its own may be among them, and none comes twice."""


def apply_from(db: sqlite3.Connection, journal: Journal) -> None:
    """Apply every act that was not applied yet; one that cannot be read is noted and passed over.

    Raises:
        StorageError: an act was written by a newer holdfast, or the journal cannot be looked at.
    """
    applied = read_number(db, "applied")
    lost = set(journal.damaged())
    for seq in sorted({*journal.numbers(), *lost}):
        if seq <= applied:
            continue
        act = None if seq in lost else _read(journal, seq)
        if act is None:
            lost.add(seq)
            _pass_over(db, journal, seq)
            continue
        apply_act(db, act)
        if seq > min(lost, default=seq):
            _hold_dependents(db, act)


def _read(journal: Journal, seq: int) -> JournalAct | None:
    """One act; None when it was damaged, and is set aside."""
    try:
        return journal.read(seq)
    except DamagedAct:
        journal.set_aside(seq)
        return None


def _pass_over(db: sqlite3.Connection, journal: Journal, seq: int) -> None:
    if journal.read_kind(seq) != "submission":
        note = clean_text(f"{journal.path_aside(seq)} cannot be read: it may have been an order about this job")
        held = "UPDATE jobs SET state = 'held', guarded = 1, note = ? WHERE state IN ('queued', 'blocked')"
        db.execute(held, (note,))
    write_meta(db, applied=seq, next_id=read_number(db, "next_id") + SPARE_IDS)


def _hold_dependents(db: sqlite3.Connection, act: JournalAct) -> None:
    """Hold the jobs of an act that need one that is not known: whether that is done cannot be told."""
    first = act.head.get("first_id", 0)
    for job_id, job in enumerate(act.jobs, first):
        for need in job.get("needs", ()):
            if db.execute("SELECT 1 FROM jobs WHERE id = ?", (need,)).fetchone() is None:
                note = "it needs a job that stood in a file of the queue's journal that cannot be read"
                db.execute("UPDATE jobs SET state = 'held', guarded = 1, note = ? WHERE id = ?", (note, job_id))


def describe_journal(db: sqlite3.Connection, journal: Journal) -> str | None:
    """What is wrong with the files of the journal that matter still, for people; None when nothing is.

    Looks at the end of each file only, so that it may be asked at each opening of the queue.
    """
    live = [row[0] for row in db.execute("SELECT seq FROM submissions ORDER BY seq")]
    there = set(journal.numbers())
    lost = journal.damaged()
    torn = [seq for seq in live if seq not in there or not journal.is_finished(seq)]
    words = []
    if lost:
        names = ", ".join(journal.path_aside(seq) for seq in lost)
        words.append(
            f"{names} cannot be read: what was handed in or ordered with it is not known here, all else goes on; "
            "hand its jobs in again, then remove the file"
        )
    if torn:
        names = ", ".join(journal.path(seq) for seq in torn)
        words.append(
            f"{names} is damaged or gone: the jobs that were handed in with it stand in the database alone; "
            "restore the file, or see these jobs through before the database is lost, too"
        )
    return "; ".join(words) or None
