"""Repairs records and watchers that disagree with what is so, and says what was done (MON-11, U16).

Runs whose supervisor died: one whose job lives gets a new supervisor, as `holdfast adopt` gives it; one of which nobody
is left has its end written by a new supervisor, as lost or as what its status proves. Nothing is launched again that
would not have been by itself (docs/retries.md): a job that had not begun is called off. Sentinels that wait for what
cannot come are ended, each by its recorded identity; records without a process are removed. So is what killed commands
left: directories that were never finished, temporary files that nobody has touched for an hour, empty control groups
of runs that are over.

Bounded, and safe to repeat: what one call does not get done the next one finds again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from holdfast.agent.control.act import PUT_BACK, wait_over
from holdfast.agent.control.adopt import adopt
from holdfast.agent.control.remove import sweep
from holdfast.agent.control.run_lock import can_lock
from holdfast.agent.control.scheduled.stop import settle_over
from holdfast.agent.control.settle import SETTLE_WAIT_S, find_due, settle_run
from holdfast.agent.messages.tries import is_due
from holdfast.agent.view import observe
from holdfast.agent.view.retries import is_followed
from holdfast.agent.view.run_view import Presence, RunReach, RunView, is_unstarted
from holdfast.agent.view.runs.of_scheduler import names_scheduler
from holdfast.agent.view.runs.roots import list_roots
from holdfast.agent.view.scheduled import ask
from holdfast.core.job.redact import REDACTED
from holdfast.core.patrol.evidence import RunStatus
from holdfast.host import clock
from holdfast.host.contain.create import find_group, list_empty_groups
from holdfast.host.files import fallback
from holdfast.host.process.offload import Offload, OffloadFailed
from holdfast.host.process.processes import is_alive
from holdfast.model import wire
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.ids import is_run_id
from holdfast.model.record import record
from holdfast.model.scheduler import Phase
from holdfast.model.units import format_count

from . import patrol
from .containers import clear_containers
from .sentinel import records as sentinel_records
from .sentinel.arm import arm_detached, parse_condition
from .sentinel.records import SentinelRecord
from .tick import ObservedRun

WHOLE_S = 60.0
"""Seconds for all of it."""
KEPT_S = 7 * 86400.0
"""How long the outcome of a detached sentinel is kept."""
SWEEP_S = 20.0
"""The most for what killed commands left below one directory of runs; the next call goes on."""
CONTAINERS_S = 40.0
"""The most for containers that outlived their runs."""
LATE_S = 10.0
"""A sentinel ends by itself within moments of the end that it waits for; after so long it does not."""
ORPHANED = frozenset({"orphan", "rebooted", "unfinished", "untaken", "gone"})
"""Rows of the patrol's completion test that say that a supervisor is gone."""


class RepairKind(str, Enum):
    """What was out of line."""

    RUN = "run"
    SENTINEL = "sentinel"
    QUEUE = "queue"
    RECORD = "record"
    REST = "rest"


@record
class Repair:
    """One thing that was, or with a dry run would be, put in line: of what, why, and what was done.

    `problem` says why it could not be done; `done` is False then, and with a dry run.
    """

    kind: RepairKind
    subject: str
    why: str
    repair: str
    done: bool = False
    problem: str = ""


@record
class ReconcileReport:
    """All repairs, how much was looked at, and what could not be.

    `elsewhere` are runs whose place cannot be seen from here, with what to do if it is gone: no repair of ours.
    `exit_code` is 0 when everything is in line now, 1 when something is not, or could not be looked at.
    """

    repairs: tuple[Repair, ...]
    dry_run: bool
    runs: int
    sentinels: int
    unread: tuple[str, ...]
    exit_code: int
    elsewhere: tuple[str, ...] = ()


def reconcile_runs(runs: str | None, *, dry_run: bool) -> ReconcileReport:
    """As `reconcile`, below `runs`, else in all places that are known.

    Raises:
        StorageError: `runs` is no directory.
    """
    if runs is not None and not os.path.isdir(runs):
        raise StorageError(f"{runs} is no directory that can be looked at", hint="holdfast ls shows where runs are")
    return reconcile(list_roots(runs), dry_run=dry_run)


def reconcile(roots: Iterable[str], *, dry_run: bool = False, whole_s: float = WHOLE_S) -> ReconcileReport:
    """Put in line what is not: this account's runs under `roots`, and every sentinel of this account.

    A patrol looks first, in a child: a run whose disk does not answer is named, not waited for.
    """
    deadline = clock.monotonic_s() + whole_s
    tick = patrol.run_patrol(roots, whole_s=min(whole_s, patrol.WHOLE_S))
    unread = list(tick.blind)
    repairs: list[Repair] = []
    elsewhere: list[str] = []
    over = _list_over(tick.seen)
    for seen in tick.seen:
        ending = seen.judgement.ending
        if seen.run_dir in over:
            late = clock.monotonic_s() >= deadline
            repairs += _settle_scheduled(over[seen.run_dir], seen.run_dir, dry_run=dry_run, late=late)
        elif ending.row in ("elsewhere", "outside"):
            elsewhere.append(f"{seen.run_id} {ending.text}; {ending.action}")
        elif seen.standing is RunStatus.UNKNOWN and ending.escalate:
            unread.append(f"{seen.run_id}: {ending.text}")
        elif ending.row in ORPHANED:
            repairs += _settle_run(seen.run_dir, dry_run=dry_run, late=clock.monotonic_s() >= deadline)
        if seen.damaged and ending.row not in ("incomplete", "unreadable"):
            give_up = "" if seen.alive else f", or give the run up: rm -r {seen.run_dir}"
            unread.append(f"{seen.run_id}: {seen.damaged}; {PUT_BACK}{give_up}")
    records = sentinel_records.list_all()
    for path, kept in records:
        repair = _clear_sentinel(path, kept, dry_run=dry_run)
        repairs += [] if repair is None else [repair]
    for root in tick.roots:
        repairs += _bring_home(root, dry_run=dry_run, left_s=deadline - clock.monotonic_s())
        repairs += _sweep(root, dry_run=dry_run, left_s=deadline - clock.monotonic_s())
        repairs += _clear_containers(root, dry_run=dry_run, left_s=deadline - clock.monotonic_s())
    code = 1 if unread or any(not repair.done for repair in repairs) else 0
    return ReconcileReport(tuple(repairs), dry_run, len(tick.seen), len(records), tuple(unread), code, tuple(elsewhere))


# ---------------------------------------------------------------------------------------------------------------- runs


def _describe_run(view: RunView) -> tuple[str, str] | None:
    """Why a run is out of line and what would be done; None when it is in line, or not ours to judge.

    One of a scheduler is judged by that alone (`_list_over`): it may be begun again.
    """
    if (
        view.scheduler
        or view.over
        or view.reach is not RunReach.HERE
        or view.state is None
        or view.supervisor is not Presence.GONE
    ):
        return None
    if view.vanished:
        if find_due(view) is not None:
            return view.note, "the attempt that was to follow by itself is begun"
        unstarted = is_unstarted(view)
        return view.note, "called off: its job had not begun" if unstarted else "its end is written by a new supervisor"
    if view.job_lives:
        return view.note, "a new supervisor takes it up; the job is not touched"
    return None


def _settle_run(run_dir: str, *, dry_run: bool, late: bool) -> list[Repair]:
    view = observe.observe_run(run_dir)
    wrong = _describe_run(view)
    if wrong is None:
        # Somebody else was quicker.
        return []
    why, repair = wrong
    if dry_run:
        return [Repair(RepairKind.RUN, view.run_id, why, repair)]
    if late:
        return [Repair(RepairKind.RUN, view.run_id, why, repair, problem="the time was up; call it again")]
    try:
        if view.vanished:
            if not can_lock(view.run_dir):
                why_not = f"its directory takes no locks, so only a person settles it: holdfast adopt {view.run_id}"
                return [Repair(RepairKind.RUN, view.run_id, why, repair, problem=why_not)]
            settle_run(view, follow_on=True)
            after = wait_over(view.run_dir, view.attempt, wait_s=SETTLE_WAIT_S)
            # What follows by itself may take as long as it likes.
            follows = after.attempt > view.attempt or find_due(view) is not None
            done, seen = after.over or (follows and after.supervised), after.condition
        else:
            after = adopt(view.run_dir, environ=os.environ)
            done, seen = after.over or after.supervised, after.condition
    except (HoldfastError, OSError) as error:
        return [Repair(RepairKind.RUN, view.run_id, why, repair, problem=str(error))]
    return [Repair(RepairKind.RUN, view.run_id, why, f"{repair}: {seen}", done, "" if done else f"it is {seen} still")]


def _list_over(seen: Iterable[ObservedRun]) -> dict[str, str]:
    """The runs of schedulers without an end on record whose job is over, with the scheduler's words."""
    dirs = [one.run_dir for one in seen if one.standing is not RunStatus.FINISHED and names_scheduler(one.run_dir)]
    views = [view for view in map(observe.observe_run, dirs) if not view.over]
    words = ask(views)[0] if views else {}
    return {run_dir: word.evidence for run_dir, word in words.items() if word.phase is Phase.OVER}


def _settle_scheduled(why: str, run_dir: str, *, dry_run: bool, late: bool) -> list[Repair]:
    run_id, repair = os.path.basename(run_dir), "its end is written as its scheduler tells it"
    if dry_run:
        return [Repair(RepairKind.RUN, run_id, why, repair)]
    if late:
        return [Repair(RepairKind.RUN, run_id, why, repair, problem="the time was up; call it again")]
    try:
        after = settle_over(run_dir)
    except (HoldfastError, OSError) as error:
        return [Repair(RepairKind.RUN, run_id, why, repair, problem=str(error))]
    problem = "" if after.over else f"it is {after.condition} still"
    return [Repair(RepairKind.RUN, run_id, why, f"{repair}: {after.condition}", after.over, problem)]


# ---------------------------------------------------------------------------------------- what a disk had not taken


def _bring_home(root: str, *, dry_run: bool, left_s: float) -> list[Repair]:
    """Records of attempts that are over, which a full disk refused: in memory they would not outlive a boot."""
    why, repair = "the disk refused its last records, and they lie in memory", "brought to its directory"
    try:
        found = Offload(lambda: _take_all(root, dry_run)).wait(max(0.0, min(left_s, SWEEP_S)))
    except (OffloadFailed, OSError) as error:
        return [Repair(RepairKind.RUN, root, why, repair, problem=str(error))]
    return [
        Repair(RepairKind.RUN, run_id, why, repair, not problem and not dry_run, problem) for run_id, problem in found
    ]


def _take_all(root: str, dry_run: bool) -> list[tuple[str, str]]:  # noqa: FBT001 - passed on
    """The runs below a root of which something lay aside, and why it could not be brought home."""
    found = []
    for run_id, attempt in fallback.list_aside():
        run_dir = f"{root}/{run_id}"
        place = wire.attempt_dir(run_dir, attempt)
        view = observe.observe_run(run_dir, attempt=attempt) if os.path.isdir(place) else None
        state = None if view is None or not view.over else view.state
        # Where its supervisor lives, it does that itself.
        if state is not None and (state.supervisor is None or not is_alive(state.supervisor)):
            taken = dry_run or fallback.bring_home(run_id, attempt, place)
            found.append((run_id, "" if taken else f"{place} does not take them: see df"))
    return found


# ------------------------------------------------------------------------------------------- what killed commands left


def _sweep(root: str, *, dry_run: bool, left_s: float) -> list[Repair]:
    """Remove unfinished directories, temporary files and empty control groups below one directory of runs."""
    why, repair = "killed commands left unfinished files, or empty control groups", "removed"
    try:
        found = Offload(lambda: _sweep_here(root, dry_run)).wait(max(0.0, min(left_s, SWEEP_S)))
    except (OffloadFailed, OSError) as error:
        return [Repair(RepairKind.REST, root, why, repair, problem=str(error))]
    count = format_count(found, "thing")
    return [Repair(RepairKind.REST, root, why, f"{count} {repair}", done=not dry_run)] if found else []


def _clear_containers(root: str, *, dry_run: bool, left_s: float) -> list[Repair]:
    """Remove containers whose attempt is over, in a child: a daemon may hang."""
    why, repair = "its attempt is over, and its container is still there", "removed"
    try:
        found = Offload(lambda: clear_containers(root, dry_run=dry_run)).wait(max(0.0, min(left_s, CONTAINERS_S)))
    except (OffloadFailed, OSError) as error:
        return [Repair(RepairKind.REST, root, why, repair, problem=str(error))]
    return [
        Repair(RepairKind.REST, run_id or root, f"{why}: {what}", repair, not problem and not dry_run, problem)
        for run_id, what, problem in found
    ]


def _sweep_here(root: str, dry_run: bool) -> int:  # noqa: FBT001 - passed on
    count = sweep(root, dry_run=dry_run)
    for name in list_empty_groups():
        run_id, _, attempt = name.rpartition(".")
        if not is_run_id(run_id) or not attempt.isdigit() or not os.path.isdir(f"{root}/{run_id}"):
            continue
        group = find_group(name) if observe.observe_run(f"{root}/{run_id}", attempt=int(attempt)).over else None
        count += group is not None and (dry_run or group.remove())
    return count


# ----------------------------------------------------------------------------------------------------------- sentinels


def _clear_sentinel(path: str, record: SentinelRecord | None, *, dry_run: bool) -> Repair | None:
    """End an orphan, remove a record of nobody; None when the sentinel or its outcome is in order."""
    if record is None:
        return _remove(RepairKind.RECORD, os.path.basename(path), path, "it cannot be read", dry_run=dry_run)
    subject = f"{record.run_id} --for {record.condition}"
    if record.host != os.uname().nodename:
        # A shared home: its process cannot be seen from here.
        return None
    now = clock.epoch_s()
    age_s = clock.find_age(record.ended_at, now) if record.outcome else now - record.until
    old = age_s is None or age_s > KEPT_S
    if record.owes and not old and os.path.isdir(record.run_dir):
        return _begin_anew(subject, record, dry_run=dry_run)
    if record.outcome:
        return _remove(RepairKind.RECORD, subject, path, "it ended long ago", dry_run=dry_run) if old else None
    if not sentinel_records.is_waiting(record):
        return _remove(RepairKind.RECORD, subject, path, "its process is gone", dry_run=dry_run)
    try:
        why = Offload(lambda: _describe_orphan(record)).wait(patrol.EACH_S)
    except (OffloadFailed, OSError) as error:
        return Repair(
            RepairKind.SENTINEL, subject, f"whether it is needed could not be told: {error}", "", problem="left alone"
        )
    if why is None:
        return None
    subject = f"{subject} (pid {record.process.pid})"
    if dry_run:
        return Repair(RepairKind.SENTINEL, subject, why, "ended")
    if not sentinel_records.end(record.process):
        return Repair(RepairKind.SENTINEL, subject, why, "ended", problem="it does not end")
    return _remove(RepairKind.SENTINEL, subject, path, why, repair="ended")


def _begin_anew(subject: str, record: SentinelRecord, *, dry_run: bool) -> Repair | None:
    """Have another sentinel tell what this one has told nobody; None where that is to be tried later, or not again."""
    if record.untold is not None and not is_due(record.untold, record.condition, clock.epoch_s()):
        return None
    why, repair = f"nobody was told: {record.words or 'its process is gone'}", "another one takes its place"
    if dry_run:
        return Repair(RepairKind.SENTINEL, subject, why, repair)
    if REDACTED in record.notify_command:
        problem = "its command has a secret, which is not recorded: arm it again"
        return Repair(RepairKind.SENTINEL, subject, why, repair, problem=problem)
    try:
        left_s = max(record.until - clock.epoch_s(), 0.0)
        arm_detached(record.run_dir, parse_condition(record.condition), left_s, record.notify_command, record.attempt)
    except (HoldfastError, OSError) as error:
        return Repair(RepairKind.SENTINEL, subject, why, repair, problem=str(error))
    return Repair(RepairKind.SENTINEL, subject, why, repair, done=True)


def _describe_orphan(record: SentinelRecord) -> str | None:
    """Why a sentinel that is at work should not be any more; None when it should."""
    if clock.epoch_s() > record.until + LATE_S:
        return "its life was over"
    if not os.path.isdir(record.run_dir):
        return "its run's directory is gone"
    newest, attempt = max(observe.list_attempts(record.run_dir), default=0), record.attempt
    while attempt < newest and is_followed(record.run_dir, attempt):
        # A sentinel goes along with the attempts that nobody asked for.
        attempt += 1
    if newest > attempt:
        return f"its attempt {attempt} was superseded by {newest}"
    view = observe.observe_run(record.run_dir, attempt=attempt)
    ended = clock.find_age(view.end.at if view.end is not None else view.exit.get("ended_at"), clock.epoch_s())
    if view.over and (ended is None or ended > LATE_S):
        return f"its run has ended: {view.condition}"
    return None


def _remove(
    kind: RepairKind, subject: str, path: str, why: str, *, dry_run: bool = False, repair: str = "record removed"
) -> Repair:
    if dry_run:
        return Repair(kind, subject, why, repair)
    try:
        sentinel_records.discard(path)
    except OSError as error:
        return Repair(kind, subject, why, repair, problem=f"{path}: {error.strerror}")
    return Repair(kind, subject, why, repair, done=True)
