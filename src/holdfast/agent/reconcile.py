"""Put records and watchers in line with what is so, and say what was done (MON-11, U16).

Runs whose supervisor died: one whose job lives gets a new supervisor, as `holdfast adopt` gives it; one of which nobody
is left has its end written by a new supervisor, as lost or as what its status proves. Nothing is ever launched again:
a job that had not begun is called off. Sentinels that wait for what cannot come are ended, each by its recorded
identity; records without a process are removed.

Bounded, and safe to repeat: what one call does not get done the next one finds again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..core.patrol_evidence import Standing
from ..host import clock
from ..host.offload import Offload, OffloadFailed
from ..model.errors import HoldfastError
from . import acting, observe, patrol, sentinel_records
from .observe import Presence, Reach
from .retrying import Following, awaits_decision, find_following

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .observe import RunView
    from .sentinel_records import Record

WHOLE_S = 60.0
"""Seconds for all of it."""
KEPT_S = 7 * 86400.0
"""How long the outcome of a detached sentinel is kept."""
LATE_S = 10.0
"""A sentinel ends by itself within moments of the end that it waits for; after so long it does not."""
ORPHANED = frozenset({"orphan", "rebooted", "unfinished", "gone"})
"""Rows of the patrol's completion test that say that a supervisor is gone."""


class Kind(str, Enum):
    """What was out of line."""

    RUN = "run"
    SENTINEL = "sentinel"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that was, or with a dry run would be, put in line: of what, why, and what was done.

    `problem` says why it could not be done; `done` is False then, and with a dry run.
    """

    kind: Kind
    subject: str
    why: str
    deed: str
    done: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """All deeds, how much was looked at, and what could not be."""

    deeds: tuple[Deed, ...]
    runs: int
    sentinels: int
    unread: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: everything is in line now. 1: something is not, or could not be looked at."""
        return 1 if self.unread or any(not deed.done for deed in self.deeds) else 0


def reconcile(roots: Iterable[str], *, dry_run: bool = False, whole_s: float = WHOLE_S) -> Reconciled:
    """Put in line what is not: this account's runs under `roots`, and every sentinel of this account.

    A patrol looks first, in a child: a run whose disk does not answer is named, not waited for.
    """
    deadline = clock.monotonic_s() + whole_s
    tick = patrol.tick(roots, whole_s=min(whole_s, patrol.WHOLE_S))
    unread = list(tick.blind)
    deeds: list[Deed] = []
    for seen in tick.seen:
        ending = seen.judgement.ending
        if seen.standing is Standing.UNKNOWN and ending.escalate:
            unread.append(f"{seen.run_id}: {ending.text}")
        elif ending.row in ORPHANED:
            deeds += _settle_run(seen.run_dir, dry_run=dry_run, late=clock.monotonic_s() >= deadline)
    records = sentinel_records.list_all()
    for path, record in records:
        deed = _clear_sentinel(path, record, dry_run=dry_run)
        deeds += [] if deed is None else [deed]
    return Reconciled(tuple(deeds), len(tick.seen), len(records), tuple(unread))


# ---------------------------------------------------------------------------------------------------------------- runs


def _describe_run(view: RunView) -> tuple[str, str] | None:
    """Why a run is out of line and what would be done; None when it is in line, or not ours to judge."""
    if view.over or view.reach is not Reach.HERE or view.state is None or view.supervisor is not Presence.GONE:
        return None
    if view.vanished:
        unstarted = acting.is_unstarted(view)
        return view.note, "called off: its job had not begun" if unstarted else "its end is written by a new supervisor"
    if view.job_lives:
        return view.note, "a new supervisor takes it up; the job is not touched"
    return None


def _settle_run(run_dir: str, *, dry_run: bool, late: bool) -> list[Deed]:
    view = observe.observe(run_dir)
    wrong = _describe_run(view)
    if wrong is None:
        # Somebody else was quicker.
        return []
    why, deed = wrong
    if dry_run:
        return [Deed(Kind.RUN, view.run_id, why, deed)]
    if late:
        return [Deed(Kind.RUN, view.run_id, why, deed, problem="the time was up; call it again")]
    try:
        if view.vanished:
            acting.settle(view)
            after = acting.wait_over(view.run_dir, view.attempt, wait_s=acting.ADOPT_WAIT_S)
            done, seen = after.over, after.condition
        else:
            after = acting.adopt(view.run_dir, environ=os.environ)
            done, seen = after.over or after.supervised, after.condition
    except (HoldfastError, OSError) as error:
        return [Deed(Kind.RUN, view.run_id, why, deed, problem=str(error))]
    return [Deed(Kind.RUN, view.run_id, why, f"{deed}: {seen}", done, "" if done else f"it is {seen} still")]


# ----------------------------------------------------------------------------------------------------------- sentinels


def _clear_sentinel(path: str, record: Record | None, *, dry_run: bool) -> Deed | None:
    """End an orphan, remove a record of nobody; None when the sentinel or its outcome is in order."""
    if record is None:
        return _remove(Kind.RECORD, os.path.basename(path), path, "it cannot be read", dry_run=dry_run)
    subject = f"{record.run_id} --for {record.condition}"
    if record.host != os.uname().nodename:
        # A shared home: its process cannot be seen from here.
        return None
    if record.outcome:
        ended = _age(record.ended_at)
        old = ended is None or ended > KEPT_S
        return _remove(Kind.RECORD, subject, path, "it ended long ago", dry_run=dry_run) if old else None
    if not sentinel_records.is_waiting(record):
        return _remove(Kind.RECORD, subject, path, "its process is gone", dry_run=dry_run)
    try:
        why = Offload(lambda: _describe_orphan(record)).wait(patrol.EACH_S)
    except (OffloadFailed, OSError) as error:
        return Deed(
            Kind.SENTINEL, subject, f"whether it is needed could not be told: {error}", "", problem="left alone"
        )
    if why is None:
        return None
    subject = f"{subject} (pid {record.process.pid})"
    if dry_run:
        return Deed(Kind.SENTINEL, subject, why, "ended")
    if not sentinel_records.end(record.process):
        return Deed(Kind.SENTINEL, subject, why, "ended", problem="it does not end")
    return _remove(Kind.SENTINEL, subject, path, why, deed="ended")


def _describe_orphan(record: Record) -> str | None:
    """Why a sentinel that is at work should not be any more; None when it should."""
    if clock.epoch_s() > record.until + LATE_S:
        return "its life was over"
    if not os.path.isdir(record.run_dir):
        return "its run's directory is gone"
    newest, attempt = max(observe.list_attempts(record.run_dir), default=0), record.attempt
    while attempt < newest and find_following(record.run_dir, attempt) is Following.BEGUN:
        # A sentinel goes along with the attempts that nobody asked for.
        attempt += 1
    if newest > attempt:
        return f"its attempt {attempt} was superseded by {newest}"
    view = observe.observe(record.run_dir, attempt=attempt)
    if view.over and awaits_decision(view):
        return None
    ended = _age(view.end.at if view.end is not None else view.exit.get("ended_at"))
    if view.over and (ended is None or ended > LATE_S):
        return f"its run has ended: {view.condition}"
    return None


def _age(text: object) -> float | None:
    try:
        return clock.epoch_s() - clock.parse_utc(text) if isinstance(text, str) and text else None
    except ValueError:
        return None


def _remove(
    kind: Kind, subject: str, path: str, why: str, *, dry_run: bool = False, deed: str = "record removed"
) -> Deed:
    if dry_run:
        return Deed(kind, subject, why, deed)
    try:
        sentinel_records.discard(path)
    except OSError as error:
        return Deed(kind, subject, why, deed, problem=f"{path}: {error.strerror}")
    return Deed(kind, subject, why, deed, done=True)
