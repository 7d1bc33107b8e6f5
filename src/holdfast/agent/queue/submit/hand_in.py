"""Handing in: from a resolved job and what is wanted of it to jobs that are committed, and a worker that starts them.

`submit` is what a command calls; `hand_in` is its half for whoever holds the queue open (a sweep).
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.agent.caller import describe_caller
from holdfast.agent.queue import environment
from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import describe_removed_needs, list_notices, look_for_worker, open_queue
from holdfast.agent.queue.view.reasons import explain_briefly
from holdfast.core.job.redact import redact_argv
from holdfast.core.queue.words import name_jobs, name_labels
from holdfast.host.clock import utc_now
from holdfast.host.files.claims import open_directory
from holdfast.model import wire
from holdfast.model.errors import Taken
from holdfast.model.queue import WAITING_STATES, GroupKind, JobState, Submission
from holdfast.model.queue_order import Submitted, TakenJob
from holdfast.model.record import record, replace
from holdfast.store.queue.locks import LockFile

from .refuse import check_jobs, check_neighbours, hash_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.model.job import JobSpec
    from holdfast.model.queue import NewJob, QueuedJob
    from holdfast.store.queue.queue import Queue

LOCK = "submit.lock"
SUBMIT_WAIT_S = 60.0
"""How long another one is waited for: ten thousand jobs take seconds; one that was stopped (Ctrl-Z) takes for ever."""
MOST_NAMES = 100_000


@record
class SubmitResult:
    """What was taken: the jobs as they are now, how many of them were known before, whether a worker was started."""

    group: str
    jobs: tuple[QueuedJob, ...]
    known: int
    started: bool


def submit(spec: JobSpec, submission: Submission, wishes: SubmitOptions, environ: Mapping[str, str]) -> Submitted:
    """Hand a submission to this account's queue.

    Raises:
        UsageError: something in it cannot work; nothing was taken.
        NotPermitted: the directory of claims could be written by others.
        StorageError: it could not be written; nothing was taken.
    """
    with open_queue() as queue:
        taken, notes = hand_in(queue, spec, submission, environ=environ, wishes=wishes)
        return describe_taken(queue, taken, notes)


def describe_taken(queue: Queue, taken: SubmitResult, notes: Sequence[str]) -> Submitted:
    """What was taken, with why it waits, and whether anybody is there to start it."""
    worker, problem = look_for_worker(queue)
    is_alone = len(taken.jobs) == 1
    waits = not is_alone or (not taken.known and taken.jobs[0].state in WAITING_STATES)
    return Submitted(
        group=taken.group,
        jobs=tuple(_describe(queue, job, explain=is_alone and waits) for job in taken.jobs),
        known=taken.known,
        worker=taken.started or worker is not None,
        notes=(*list_notices(queue), *notes, *([problem] if problem else [])),
        stops=_list_stops(queue, taken.group) if waits else (),
    )


def _describe(queue: Queue, job: QueuedJob, *, explain: bool) -> TakenJob:
    why = explain_briefly(queue, job) if explain else ""
    if explain and not why:
        # The worker has taken it since it was read.
        (job,) = queue.find([f"{job.group}/{job.name}"])
    return TakenJob(job.id, job.label, job.state, job.sha256, job.note, why)


def _list_stops(queue: Queue, group: str) -> tuple[str, ...]:
    """A pause that was forgotten must not look like a queue that works."""
    settings, known = queue.settings(), queue.groups().get(group)
    found = []
    if settings.paused or settings.draining:
        word = "paused" if settings.paused else "being drained"
        found.append(f"nothing starts: the queue is {word}; holdfast queue resume")
    if known is not None and (known.paused or known.held):
        why = "is paused" if known.paused else f"stopped by itself: {known.held}"
        found.append(f"nothing of it starts: group {group} {why}; holdfast queue resume {group}")
    return tuple(found)


def build_submission(
    spec: JobSpec, jobs: Sequence[NewJob], wishes: SubmitOptions, *, runs_root: str, source: str | None = None
) -> Submission:
    """Everything that is committed, but for the environment, which lies with the queue."""
    return Submission(
        group=wishes.group,
        base=wire.encode(spec),
        jobs=tuple(jobs),
        runs_root=runs_root,
        cwd=os.getcwd(),
        argv=redact_argv(sys.argv)[0],
        by=describe_caller(),
        at=utc_now(),
        kind=GroupKind.LINES if source is not None else GroupKind.PLAIN,
        files=hash_files(spec, jobs),
        max_parallel=wishes.max_parallel,
        if_changed=wishes.if_changed,
        claims=wishes.claims,
        source=source,
        hold_after=wishes.hold_after,
        paused=wishes.paused,
    )


def hand_in(
    queue: Queue, spec: JobSpec, submission: Submission, *, environ: Mapping[str, str], wishes: SubmitOptions
) -> tuple[SubmitResult, list[str]]:
    """Refuse what cannot work, commit the rest, and see that a worker is there; also sentences for people.

    Raises:
        UsageError: something in it cannot work; nothing was taken.
        NotPermitted: the directory of claims could be written by others.
        StorageError: it could not be written; nothing was taken.
    """
    notes = check_jobs(spec, submission.jobs, environ, shared=wishes.shared)
    return commit_jobs(queue, submission, environ=environ, wishes=wishes, notes=notes), notes


def commit_jobs(
    queue: Queue,
    submission: Submission,
    *,
    environ: Mapping[str, str],
    wishes: SubmitOptions,
    notes: list[str],
) -> SubmitResult:
    """Commit what was checked, and see that a worker is there; what is to be said of that is added to `notes`.

    Raises:
        Taken: the id of a desk's order is that of another one.
        UsageError, NotPermitted, StorageError: as of `hand_in`.
    """
    if submission.claims is not None:
        open_directory(submission.claims)
    with one_at_a_time(queue.directory):
        there = find_taken(queue, submission, wishes)
        if there is not None:
            return replace(there, started=start_worker(queue, notes))
        name = environment.store_environment(environ, directory=queue.directory)
        submission = replace(submission, environment=name)
        if not wishes.named and submission.kind is GroupKind.PLAIN:
            submission = _make_unique(queue, submission)
        check_neighbours(queue, submission, shared=wishes.shared)
        cancelled = {job.name for job in queue.jobs(group=submission.group, states=(JobState.CANCELLED,))}
        first_new = queue.next_id()
        ids = queue.submit(submission)
    pairs = zip(submission.jobs, ids, strict=True)
    replaced = [job.name for job, job_id in pairs if job_id >= first_new and job.name in cancelled]
    if replaced:
        notes.append(
            f"in place of what was cancelled and never started, also for what waits for it: {name_labels(replaced)}"
        )
    notes += _list_kept(queue, submission, ids, first_new)
    if removed := describe_removed_needs(queue, [job_id for job_id in ids if job_id >= first_new]):
        notes.append(removed)
    started = start_worker(queue, notes)
    jobs = _look_up(queue, submission, ids)
    return SubmitResult(submission.group, jobs, sum(job_id < first_new for job_id in ids), started)


def _list_kept(queue: Queue, submission: Submission, ids: Sequence[int], first_new: int) -> list[str]:
    """What was said here and stays as it was: the time of jobs that are there, and what holds for a group."""
    found = []
    times = {job_id: job.not_before for job_id, job in zip(ids, submission.jobs, strict=True) if job_id < first_new}
    if any(time is not None for time in times.values()):
        states = (*WAITING_STATES, JobState.CANCELLED)
        kept = [
            job
            for job in queue.jobs(group=submission.group, states=states)
            if job.run_id is None and times.get(job.id) not in (None, job.not_before)
        ]
        if kept:
            # One that was cancelled is to wait again before it can have another time.
            retry = f"holdfast queue retry {kept[0].label}, then " if kept[0].state is JobState.CANCELLED else ""
            edit = f"{retry}holdfast queue edit {kept[0].label} --not-before TIME"
            found.append(f"handed in before, with a start that stays as it is: {name_jobs(kept)}; another one: {edit}")
    group = queue.groups().get(submission.group)
    if group is None or len(times) < len(ids):
        return found
    options = []
    if submission.max_parallel not in (None, group.max_parallel):
        options.append(f"--max-parallel {submission.max_parallel}")
    if submission.hold_after not in (0, group.hold_after):
        options.append(f"--hold-after {submission.hold_after}")
    if options:
        edit = f"holdfast queue edit {group.name}/ {' '.join(options)}"
        found.append(f"nothing of it is new, so that what holds for the group stays: {edit}")
    if submission.paused and not group.paused:
        found.append(f"nothing of it is new, so that the group is not paused: holdfast queue pause {group.name}")
    return found


def find_taken(queue: Queue, submission: Submission, wishes: SubmitOptions) -> SubmitResult | None:
    """What became of a desk's order that was taken before; None when it was not. `started` is left to the caller.

    Raises:
        Taken: the id of the order is that of another one.
    """
    ordered = submission.ordered
    found = None if ordered is None else queue.find_ordered(ordered.order_id)
    if ordered is None or found is None:
        return None
    sha256, jobs = found
    if sha256 != ordered.sha256:
        raise Taken(
            f"the order {ordered.order_id} was taken already, with other jobs or another code",
            hint="hand it in under another id",
            details={"order_id": ordered.order_id},
        )
    if wishes.named or submission.kind is not GroupKind.PLAIN:
        brought, names = {job.id for job in jobs}, {job.name for job in submission.jobs}
        jobs = tuple(job for job in queue.jobs(group=submission.group) if job.id in brought or job.name in names)
        return SubmitResult(submission.group, jobs, len(jobs) - len(brought), started=False)
    return SubmitResult(submission.group, jobs, 0, started=False)


def _look_up(queue: Queue, submission: Submission, ids: Sequence[int]) -> tuple[QueuedJob, ...]:
    if len(ids) == 1:
        job = submission.jobs[0]
        return queue.find([f"{submission.group}/{job.name}"])
    wanted = set(ids)
    return tuple(job for job in queue.jobs(group=submission.group) if job.id in wanted)


@contextmanager
def one_at_a_time(directory: str) -> Iterator[None]:
    """Keep two submitters from finding the same name free, and an environment from being forgotten before its use.

    Raises:
        StorageError: somebody else is at it all the time, or the file cannot be opened.
    """
    lock = LockFile(f"{directory}/{LOCK}")
    try:
        with lock.hold(wait_s=SUBMIT_WAIT_S):
            yield
    finally:
        lock.close()


def _make_unique(queue: Queue, submission: Submission) -> Submission:
    """The same with a name that is free in the group: ``train``, ``train-2``, ``train-3``."""
    (job,) = submission.jobs
    taken = {known.name for known in queue.jobs(group=submission.group)}
    name = job.name
    for number in range(2, MOST_NAMES):
        if name not in taken:
            break
        name = f"{job.name}-{number}"
    return replace(submission, jobs=(replace(job, name=name),))
