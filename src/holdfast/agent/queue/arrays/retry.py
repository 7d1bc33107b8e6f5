"""Jobs of a sweep once more: a new array of just these, each with the next attempt of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.control.scheduled.stop import settle_scheduled
from holdfast.agent.queue.change.change import QueueChange, describe_jobs
from holdfast.agent.view.run_view import is_never_taken
from holdfast.agent.view.runs.sweeps import FoundSweep
from holdfast.model.queue import JobState
from holdfast.model.record import replace

from .look import JobLook, list_rerun, look_at_jobs, require_sweep
from .sweep import hold_sweep
from .take import hand_over, release_untaken

if TYPE_CHECKING:
    from collections.abc import Iterable


def retry_jobs(found: FoundSweep, *, everything: bool, dry_run: bool = False) -> QueueChange:
    """Hand the failed jobs in again, and those that Slurm never had; with `everything` the cancelled ones, too.

    A `dry_run` tells which those are, as far as that can be seen without a change of anything.

    Raises:
        PlaceError: Slurm does not answer; the same command goes on.
        HoldfastError: it refuses.
    """
    if dry_run:
        looks = look_at_jobs(found, require_sweep(found))
        again, notes = _choose(looks, everything=everything)
        return _tell("would be handed in again", looks, again, notes)
    with hold_sweep(found.directory):
        sweep = release_untaken(found.directory, require_sweep(found))
        looks = look_at_jobs(found, sweep)
        again, notes = _choose(looks, everything=everything)
        for look in looks:
            if look.job.run_id in again:
                _settle(look)
        if again:
            jobs = tuple(replace(job, array=0) if job.run_id in again else job for job in sweep.jobs)
            _, made = hand_over(found.root, found.directory, replace(sweep, jobs=jobs))
            notes += [f"Slurm has {array.words}" for array in made]
    return _tell("handed in again", looks, again, notes)


def _choose(looks: Iterable[JobLook], *, everything: bool) -> tuple[set[str], list[str]]:
    """The runs of the jobs that are tried again, and what is to be said of the others."""
    jobs = [look.job for look in looks]
    again = {str(job.run_id) for job in list_rerun(jobs, everything=everything)}
    left = sum(job.run_id not in again and job.state is not JobState.DONE for job in jobs)
    return again, [f"left alone: {left} that wait, run or were cancelled"] if left else []


def _tell(words: str, looks: Iterable[JobLook], again: set[str], notes: list[str]) -> QueueChange:
    if not again:
        return QueueChange("nothing to try again", notes=tuple(notes), exit_code=1 if notes else 0)
    jobs = [replace(look.job, state=JobState.QUEUED) for look in looks if look.job.run_id in again]
    return QueueChange(words, jobs=describe_jobs(jobs), notes=tuple(notes))


def _settle(look: JobLook) -> None:
    """Have the end written of an attempt that was begun and left none."""
    if look.word is not None and not look.view.over and not is_never_taken(look.view):
        settle_scheduled(look.view, look.word)
