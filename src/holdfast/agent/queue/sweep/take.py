"""A sweep handed in, or shown as it would be: checked, then its configurations, its jobs, its recipe committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent.queue.arrays.choose import choose_sweep
from holdfast.agent.queue.open import open_queue
from holdfast.agent.queue.submit.hand_in import build_submission, hand_in
from holdfast.agent.queue.submit.refuse import check_jobs, merge_job
from holdfast.core.job.redact import redact_argv
from holdfast.core.queue.contradictions import describe_contradictions
from holdfast.core.queue.identity import find_collisions
from holdfast.model.errors import UsageError
from holdfast.model.queue import GroupKind
from holdfast.model.record import record, replace

from .configs import store_configs
from .recipe import write_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.model.queue import JobState, NewJob
    from holdfast.store.queue.queue import Queue

    from .recipe import SweepPlan

MOST_COMPARED = 2000
"""Jobs that are there already and whose output paths are compared with those of the new ones."""


@record
class PlannedSweepJob:
    """A job as it would be handed in; secrets in its command are redacted."""

    job: str
    params: dict[str, str]
    sha256: str
    expected_s: float | None
    command: tuple[str, ...]
    config: str | None
    needs: tuple[str, ...]


@record
class SweepPreview:
    """A sweep as it would be handed in, with what was said twice and other sentences for people."""

    group: str
    jobs: tuple[PlannedSweepJob, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


@record
class TakenSweepJob:
    """A job of a sweep as it is in the queue."""

    id: int
    job: str
    state: JobState
    params: dict[str, str]
    sha256: str


@record
class TakenSweep:
    """A sweep that was handed in: `known` jobs were there before, the group has `total` now.

    `stopped` says why nothing of it starts, None when it does.
    """

    group: str
    jobs: tuple[TakenSweepJob, ...]
    known: int
    total: int
    stopped: str | None
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


def preview(made: SweepPlan, environ: Mapping[str, str]) -> SweepPreview:
    """Every job, checked as if it were handed in.

    Raises:
        UsageError: it cannot work.
    """
    notes = check_jobs(made.spec, made.built.jobs, environ, shared=made.wishes.shared)
    said = describe_contradictions(made.built.contradictions)
    jobs = tuple(map(_describe_job, made.built.jobs))
    return SweepPreview(made.group, jobs, tuple(said), (*made.built.notes, *notes))


def _describe_job(job: NewJob) -> PlannedSweepJob:
    command, config = job.change["command"], job.change.get("config")
    assert isinstance(command, list)
    return PlannedSweepJob(
        job=job.name,
        params=dict(job.params),
        sha256=job.sha256,
        expected_s=job.expected_s,
        command=tuple(redact_argv(tuple(str(word) for word in command))[0]),
        config=None if config is None else str(config),
        needs=job.needs,
    )


def submit_sweep(
    made: SweepPlan, *, runs_root: str, environ: Mapping[str, str], keep_recipe: bool = True
) -> TakenSweep:
    """Commit the configurations, then the jobs, then the recipe that `add` goes on from.

    Raises:
        UsageError: it cannot work; nothing was taken.
        StorageError: it could not be written; no job was taken.
    """
    with open_queue() as queue:
        return _take(queue, made, runs_root=runs_root, environ=environ, keep_recipe=keep_recipe)


def _take(
    queue: Queue, made: SweepPlan, *, runs_root: str, environ: Mapping[str, str], keep_recipe: bool
) -> TakenSweep:
    before = {job.name for job in queue.jobs(group=made.group)}
    store_configs(made.wishes.claims, made.built.configs.values())
    submission = build_submission(made.spec, made.built.jobs, made.wishes, runs_root=runs_root)
    submission = replace(submission, kind=GroupKind.SWEEP, source=made.source)
    taken, notes = hand_in(queue, made.spec, submission, environ=environ, wishes=made.wishes)
    if keep_recipe:
        write_recipe(queue.directory, made.recipe)
        notes += _name_dropped(before, made)
    group = queue.groups().get(taken.group)
    stopped = None if group is None else "is paused" if group.paused else group.held or None
    return TakenSweep(
        group=taken.group,
        jobs=tuple(TakenSweepJob(job.id, job.name, job.state, dict(job.params), job.sha256) for job in taken.jobs),
        known=taken.known,
        total=sum(queue.counts().get(taken.group, {}).values()),
        stopped=stopped,
        contradictions=tuple(describe_contradictions(made.built.contradictions)),
        notes=(*made.built.notes, *notes),
    )


def _name_dropped(before: set[str], made: SweepPlan) -> list[str]:
    """That jobs of an earlier hand-in are not in this one."""
    dropped = sorted(before - {job.name for job in made.built.jobs})
    if not dropped:
        return []
    shown = ", ".join(dropped[:5]) + (f" and {len(dropped) - 5} more" if len(dropped) > 5 else "")
    return [f"in the queue and not in this hand-in, left as they are: {shown}"]


def refuse_scheduled(name: str) -> None:
    """Refuse to add to a sweep that a scheduler runs: its files and its code are at a desk.

    Raises:
        UsageError: it is one.
    """
    if choose_sweep(name) is not None:
        raise UsageError(
            f"Slurm runs the jobs of {name}, whose files and code are at a desk",
            hint="`sweep submit` it there again, with the new values beside the old ones: that adds what is new",
        )


def refuse_collisions(
    queue: Queue, group: str, base: Mapping[str, object], jobs: Sequence[NewJob], shared: Sequence[str]
) -> None:
    """Compare the output paths of new jobs with those of the jobs of the group that are there.

    Raises:
        UsageError: two would write to one place.
    """
    names = [job.name for job in jobs]
    new = set(names)
    specs = [{**base, **job.change} for job in jobs]
    for job in queue.jobs(group=group)[:MOST_COMPARED]:
        if job.name not in new:
            known = queue.submission_of(job.id)
            specs.append(merge_job(known, known.jobs[0]))
            names.append(job.name)
    problems = find_collisions(specs, names, shared=shared)
    if problems:
        raise UsageError("\n".join(problems[:10]), hint="nothing was added; give each its own place with {job}")
