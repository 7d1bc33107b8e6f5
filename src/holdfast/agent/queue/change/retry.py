"""Queueing again what has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.arrays.retry import retry_jobs
from holdfast.agent.queue.change.start_worker import start_worker
from holdfast.agent.queue.open import build_order, list_notices, open_queue
from holdfast.agent.queue.roster import look_at_job
from holdfast.agent.queue.view.reasons import explain_job, read_situation
from holdfast.agent.view.observe import list_attempts, observe_run
from holdfast.agent.view.source_change import find_file_changes_within
from holdfast.core.queue.words import SHOWN_LABELS, name_jobs
from holdfast.core.run.copied import is_copy_wanted
from holdfast.host.files import files
from holdfast.model import wire
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.queue import ACTIVE_STATES, JobState, OrderVerb
from holdfast.model.units import format_count
from holdfast.model.verdict import FailureClass

from .change import QueueChange, describe_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.model.queue import QueuedJob
    from holdfast.store.queue.queue import Queue

MOST_COMPARED = 20
"""Of so many jobs the files are compared before the answer; of the others the event of the attempt tells."""
COMPARED_WITHIN_S = 2.0
RETRIED = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.HELD})


def retry(words: Sequence[str], *, failed: bool, begin: str | None = None, dry_run: bool = False) -> QueueChange:
    """Queue failed, cancelled and held jobs again; each goes on with the next attempt of its run.

    What a person holds, or may be at work unseen, only where it is named itself, not with its group.
    A job that was done and is proven so no more (`queue check`) counts as failed when it is named. With `begin` those
    are the jobs of its group from that one on, in the order in which they were handed in, done ones too (QUEUE-22).
    With `dry_run` nothing is queued.
    """
    if not words and not failed and begin is None:
        raise UsageError("say which jobs: JOB, GROUP/, or --failed for every failed one", hint="holdfast queue ls")
    if begin is not None and (words or failed):
        raise UsageError("--from names its jobs itself", hint="leave out the names and --failed")
    with open_queue() as queue:
        found: Sequence[QueuedJob] = queue.find(words) if words else queue.jobs(states=(JobState.FAILED,))
        found = found if begin is None else _find_from(queue, begin)
        states = {JobState.FAILED} if failed else RETRIED
        unproven = [] if failed else _find_unproven(found, words)
        unproven += [] if begin is None else [job for job in found if job.state is JobState.DONE]
        guarded, named = queue.guarded(), (*words, begin or "")
        spared = {job.id for job in found if job.id in guarded and not _is_named(job, named)}
        ids = {job.id for job in found if job.state in states} - spared
        ids |= {job.id for job in unproven}
        chosen, left = [job for job in found if job.id in ids], [job for job in found if job.id not in ids]
        notes = list_notices(queue)
        notes += [f"left alone: {name_jobs(left)} ({_say_states(left)})"] if left else []
        if not chosen:
            active = [job for job in left if job.state in ACTIVE_STATES]
            if active:
                words = " ".join(job.label for job in active[:SHOWN_LABELS])
                notes.append(f"what is at work can be queued again once it has ended: holdfast wait {words}")
            blocked = next((job for job in left if job.state is JobState.BLOCKED), None)
            if blocked is not None:
                reason = explain_job(queue, blocked, read_situation(queue, queue.active()), deep=True)[0]
                notes.append(f"{blocked.label} {reason.words}{f'; go on: {reason.way}' if reason.way else ''}")
            return QueueChange("nothing to try again", notes=tuple(notes), exit_code=0 if not left else 1)
        chosen = [job for job in chosen if not _says_copy(job, notes)]
        if not chosen:
            return QueueChange("nothing to try again", notes=tuple(notes), exit_code=1)
        notes += list(_find_changed_files(chosen))
        if dry_run:
            return QueueChange("would be queued again", jobs=describe_jobs(chosen), notes=tuple(notes))
        for job in chosen:
            _withdraw_acceptance(job)
        again = queue.order(build_order(OrderVerb.RETRY, jobs=chosen, values={"done": True} if unproven else {}))
        if start_worker(queue, notes):
            notes.append("a worker was started")
        return QueueChange("queued again", jobs=describe_jobs(again), notes=tuple(notes))


def retry_sweep(name: str, *, everything: bool, dry_run: bool = False) -> QueueChange:
    """The failed jobs of a sweep again, with `everything` the cancelled and held ones, too; also where Slurm has them.

    With `dry_run` it is only said which those are.

    Raises:
        UsageError: there is no such sweep.
        HoldfastError: as of `retry_jobs`.
    """
    sweep = choose_sweep(name)
    if sweep is not None:
        return retry_jobs(sweep, everything=everything, dry_run=dry_run)
    return retry([f"{name.rstrip('/')}/"], failed=not everything, dry_run=dry_run)


def _says_copy(job: QueuedJob, notes: list[str]) -> bool:
    """Whether a job failed by the copy of its results alone; then it is said how that is repeated, and not the job."""
    if job.failure != FailureClass.SYNC_FAILED.value or job.run_dir is None:
        return False
    view = observe_run(job.run_dir)
    wanted = is_copy_wanted(view.exit, view.results)
    if wanted:
        notes.append(
            f"{job.label}: its training succeeded, its results were not copied: holdfast results copy {job.run_id}"
        )
    return wanted


def _find_from(queue: Queue, word: str) -> list[QueuedJob]:
    """A job and those of its group that were handed in after it."""
    named = queue.find([word])
    if len(named) != 1:
        count = format_count(len(named), "job")
        raise UsageError(f"--from {word} names {count}; one is wanted", hint="write it as GROUP/NAME")
    return [job for job in queue.jobs(group=named[0].group) if job.id >= named[0].id]


def _is_named(job: QueuedJob, words: Sequence[str]) -> bool:
    return any(word == job.run_id or word.rpartition("/")[2] == job.name for word in words)


def _withdraw_acceptance(job: QueuedJob) -> None:
    """What somebody took as done and now runs again is in doubt again."""
    if job.run_dir is not None and (attempts := list_attempts(job.run_dir)):
        files.remove_quietly(f"{wire.attempt_dir(job.run_dir, attempts[-1])}/{wire.ACCEPTED}")


def _find_unproven(jobs: Sequence[QueuedJob], words: Sequence[str]) -> list[QueuedJob]:
    """Of these jobs those that are named one by one, were done, and are not proven done any more."""
    named = [job for job in jobs if job.state is JobState.DONE and {job.label, job.run_id} & {*words}]
    return [job for job in named if not look_at_job(job).done]


def _find_changed_files(jobs: Sequence[QueuedJob]) -> Iterator[str]:
    """What will run otherwise than the last time: files that were changed since."""
    for job in jobs[:MOST_COMPARED]:
        if job.run_dir is None or not os.path.isdir(job.run_dir):
            continue
        try:
            changes = find_file_changes_within(job.run_dir, COMPARED_WITHIN_S)
        except StorageError as error:
            yield f"{job.label}: {error}"
            continue
        for change in changes:
            yield f"{job.label}: {change.words}; its next attempt uses it as it is now"


def _say_states(jobs: Sequence[QueuedJob]) -> str:
    return ", ".join(sorted({job.state.value for job in jobs}))
