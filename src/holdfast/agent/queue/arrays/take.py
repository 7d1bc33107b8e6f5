"""From the jobs that a desk ordered to arrays of Slurm: each job in exactly one, wherever whoever hands in is killed.

In this order, each step durable before the next: the sweep's record names every job, its run and its array; the runs
and the array's files are made from it; sbatch takes the array; its id is recorded, by us or by its first task. Whoever
comes again looks first for arrays that Slurm was given and nobody recorded, and plans only what is in none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.agent.control.create import take_back_run
from holdfast.agent.login_environment import choose_environ
from holdfast.agent.queue.start import invent_run_id
from holdfast.agent.view.runs.sweeps import ArraySweep, HandIn, SweepJob
from holdfast.core.queue.words import count_jobs
from holdfast.core.slurm.arrays import ArrayPlan, TaskPlan, plan_arrays
from holdfast.host.files import files
from holdfast.model.errors import HoldfastError, PreflightFailed, UsageError
from holdfast.model.record import record, replace

from .runs import ensure_run, job_in_force
from .sweep import open_arrays, write_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.model.queue import NewJob

MOST_NAMED = 5


@record
class ArrayJob:
    """An array that Slurm has taken: its number in the sweep, its id in Slurm, and its plan."""

    number: int
    job_id: str
    plan: ArrayPlan

    @property
    def words(self) -> str:
        """What it is, for people: ``array 17: 600 jobs, at most 16 at once``."""
        limit = "" if self.plan.limit is None else f", at most {self.plan.limit} at once"
        return f"array {self.job_id}: {count_jobs(len(self.plan.runs))}{limit}"


def release_untaken(directory: str, sweep: ArraySweep) -> ArraySweep:
    """The sweep with the jobs free to be handed in whose array Slurm does not have.

    Raises:
        PlaceError: Slurm does not answer.
    """
    numbers = sorted({job.array for job in sweep.jobs if job.array})
    arrays = open_arrays()
    free = frozenset(number for number in numbers if arrays.find_array(f"{directory}/{number}") is None)
    if not free:
        return sweep
    jobs = tuple(replace(job, array=0, task=0) if job.array in free else job for job in sweep.jobs)
    return replace(sweep, jobs=jobs)


@record
class AddedJobs:
    """A sweep with the jobs of an order. `known` of those it had already, `otherwise` of them with other options.

    Options of the scheduler are no part of a job's identity: the newest hold from its next attempt on.
    """

    sweep: ArraySweep
    known: int
    otherwise: int


def add_jobs(root: str, sweep: ArraySweep, hand_in: HandIn) -> AddedJobs:
    """Add the jobs of an order; one that was never handed in may come again with another configuration.

    Raises:
        UsageError: a job is there with another configuration.
    """
    submission = hand_in.submission
    known = {job.given.name: job for job in sweep.jobs}
    other = [
        job.name
        for job in submission.jobs
        if job.name in known and known[job.name].array and known[job.name].given.sha256 != job.sha256
    ]
    if other:
        shown = ", ".join(other[:MOST_NAMED]) + (f" and {len(other) - MOST_NAMED} more" if other[MOST_NAMED:] else "")
        raise UsageError(
            f"{sweep.name} has {shown} with another configuration",
            hint="nothing was handed in; another --name makes another sweep",
        )
    orders = (*sweep.orders, replace(hand_in, submission=replace(submission, jobs=())))
    taken = {job.run_id for job in sweep.jobs}
    new: dict[str, SweepJob] = {}
    count = otherwise = 0
    for job in submission.jobs:
        before = known.get(job.name)
        if before is not None and before.given.sha256 == job.sha256:
            count += 1
            options = _read_options(sweep.orders[before.order], before.given)
            otherwise += before.array != 0 and options != _read_options(hand_in, job)
            new[job.name] = replace(before, given=job, order=len(sweep.orders))
            continue
        if before is not None:
            take_back_run(f"{root}/{before.run_id}")
        run_id = invent_run_id(replace(submission, jobs=(job,)), taken)
        taken.add(run_id)
        new[job.name] = SweepJob(run_id, job, len(sweep.orders))
    jobs = [new.pop(job.given.name, job) for job in sweep.jobs]
    return AddedJobs(replace(sweep, orders=orders, jobs=(*jobs, *new.values())), count, otherwise)


def _read_options(hand_in: HandIn, job: NewJob) -> dict[str, object]:
    """The options of the scheduler for a job."""
    stated = job.change.get("slurm", hand_in.submission.base.get("slurm"))
    return {**hand_in.native, **(stated if isinstance(stated, dict) else {})}


def hand_over(root: str, directory: str, sweep: ArraySweep) -> tuple[ArraySweep, list[ArrayJob]]:
    """Have Slurm take every job that is in no array; the sweep then, and its new arrays.

    Raises:
        PreflightFailed: Slurm refuses an array. What it has taken before stays, and the message says so; where it has
            taken nothing of the sweep at all, nothing of it is left.
        PlaceError: no answer; the same call goes on.
        HoldfastError: nothing, or not everything, could be made; the same call goes on.
    """
    arrays = open_arrays()
    most = arrays.read_most_tasks()
    planned: list[tuple[int, HandIn, ArrayPlan]] = []
    free = [job for job in sweep.jobs if not job.array]
    for order in dict.fromkeys(job.order for job in free):
        whole = sweep.orders[order]
        tasks = [TaskPlan(j.run_id, job_in_force(root, sweep, j), j.given.expected_s) for j in free if j.order == order]
        for plan in plan_arrays(tasks, whole.native, most=most, limit=whole.submission.max_parallel):
            planned.append((sweep.arrays + len(planned) + 1, whole, plan))
    places = {run: (number, task) for number, _, plan in planned for task, run in enumerate(plan.runs)}
    sweep = replace(sweep, arrays=sweep.arrays + len(planned), jobs=tuple(_place(sweep.jobs, places)))
    write_sweep(directory, sweep)
    made: list[ArrayJob] = []
    environs = {name: choose_environ(name, os.environ) for name in {whole.env_from for _, whole, _ in planned}}
    for number, whole, plan in planned:
        for job in sweep.jobs:
            if job.array == number:
                ensure_run(root, directory, sweep, job, environs[whole.env_from])
        try:
            job_id = arrays.submit_array(f"{directory}/{number}", plan, whole.native, whole.env_from)
        except PreflightFailed as error:
            raise _take_back(root, directory, sweep, number, error) from error
        made.append(ArrayJob(number, job_id, plan))
    return sweep, made


def _place(jobs: Iterable[SweepJob], places: Mapping[str, tuple[int, int]]) -> Iterable[SweepJob]:
    for job in jobs:
        number, task = places.get(job.run_id, (job.array, job.task))
        yield replace(job, array=number, task=task)


def _take_back(root: str, directory: str, sweep: ArraySweep, number: int, refused: PreflightFailed) -> HoldfastError:
    """After a refusal: nothing is left of a sweep of which Slurm had nothing ever; else the rest is to be handed in."""
    there = [job for job in sweep.jobs if job.array and job.array < number]
    arrays = open_arrays()
    if not any(arrays.find_array(f"{directory}/{one}") for one in range(1, number)):
        for job in sweep.jobs:
            take_back_run(f"{root}/{job.run_id}")
        files.take_away(directory)
        return refused
    jobs = tuple(job if 0 < job.array < number else replace(job, array=0, task=0) for job in sweep.jobs)
    write_sweep(directory, replace(sweep, jobs=jobs))
    left = len(sweep.jobs) - len(there)
    return PreflightFailed(
        f"{refused}; Slurm was given {count_jobs(len(there))} of {sweep.name}, and {left} are still to be handed in",
        hint=f"{refused.hint}; then hand the same sweep in again, which adds what is missing",
        details=refused.details,
    )
