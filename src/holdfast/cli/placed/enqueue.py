"""``submit --on PLACE`` and ``sweep submit --on PLACE``: read here, handed in to the queue there, run by its worker."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.cli.render import keep_done, note, print_record
from holdfast.cli.render.enqueue import print_jobs_plan, print_taken
from holdfast.cli.render.submit import describe_taken
from holdfast.cli.render.sweep import print_contradictions
from holdfast.cli.sweep.elsewhere import Elsewhere
from holdfast.cli.sweep.plan import plan_sweep
from holdfast.core.queue.contradictions import refuse_contradictions
from holdfast.core.queue.grid import MAX_JOBS
from holdfast.core.slurm import contradictions
from holdfast.core.slurm.arrays import refuse_queue_words
from holdfast.desk.connect import find_place, open_box
from holdfast.desk.cost.cap import refuse_over_cap
from holdfast.desk.orders.build import draft_job
from holdfast.desk.orders.enqueue import draft_jobs, enqueue_draft, plan_jobs
from holdfast.model.errors import UsageError
from holdfast.model.queue import GroupKind
from holdfast.model.slurm import SLURM

from .wait import wait_placed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.cli.sweep.plan import SweepOptions
    from holdfast.core.queue.submit_options import SubmitOptions
    from holdfast.desk.orders.build import Draft
    from holdfast.model.job import JobSpec
    from holdfast.model.place import Place
    from holdfast.model.queue import NewJob

    from .wish import JobsWish


def find_place_for_jobs(wish: JobsWish, claims: str | None) -> Place:
    """The place that jobs go to.

    Raises:
        UsageError: there is none, or an option does not go together with one.
        PreflightFailed: it has cost what was to be spent there.
    """
    if wish.runs is not None:
        raise UsageError("--runs and --on do not go together", hint=f"the root of a place is `root` of [{wish.place}]")
    if claims is not None and not claims.startswith("/"):
        raise UsageError(
            f"--claims {claims}: it is a directory of the boxes that share jobs",
            hint="name it by its absolute path",
        )
    place = find_place(wish.place)
    refuse_over_cap(place)
    return place


def draft_base(spec: JobSpec, wish: JobsWish) -> Draft:
    """The job below all jobs, with the code that goes along; what is to be known of that is said.

    Raises:
        JobFileError, UsageError: as of `draft_job`.
    """
    draft = draft_job(spec, os.environ, send_code=wish.send_code)
    for warning in () if draft.tree is None else draft.tree.warnings:
        note(warning)
    return draft


def hand_in(
    draft: Draft,
    jobs: Sequence[NewJob],
    wishes: SubmitOptions,
    place: Place,
    wish: JobsWish,
    *,
    kind: GroupKind,
    source: str | None = None,
    configs: Mapping[str, str] | None = None,
) -> int:
    """Hand jobs over a draft's job in at `place`, or show what that would be; the exit code.

    Where a scheduler has the queue they are one of its sweeps, whatever they were made from.

    Raises:
        UsageError: something is asked for that the place's scheduler has not.
        HoldfastError: they were not taken.
    """
    if place.kind == SLURM:
        kind = GroupKind.SWEEP
        refuse_queue_words(wishes, draft.job)
        contradictions.refuse_contradictions(draft.job, {**place.slurm, **draft.job.slurm})
        if len(jobs) > MAX_JOBS:
            raise UsageError(
                f"{len(jobs)} jobs, and a sweep of Slurm has {MAX_JOBS} at most", hint="hand in fewer at once"
            )
    ordered = draft_jobs(
        draft, jobs, wishes, place, argv=sys.argv, kind=kind, moment=wish.moment, source=source, configs=configs
    )
    if wish.dry_run:
        plan = plan_jobs(ordered, draft.job, place)
        print_record(plan) if wish.as_json else print_jobs_plan(plan)
        return 0
    taken = enqueue_draft(ordered, open_box(place), tell=note)
    keep_done(describe_taken(taken.group, taken.jobs, f"{place.name}:"))
    if not wish.as_json:
        print_taken(taken, kind)
    elif not wish.wait:
        print_record(taken)
    if not wish.wait or not taken.jobs:
        return 0
    names = [taken.jobs[0].job] if len(taken.jobs) == 1 else [f"{taken.group}/"]
    return wait_placed({place.name: names}, deadline=None, quiet=False, as_json=wish.as_json)


def hand_in_sweep(asked: SweepOptions, wish: JobsWish, *, strict: bool) -> int:
    """Read a sweep here and hand it in at its place; the exit code."""
    place = find_place_for_jobs(wish, asked.claims)
    elsewhere = Elsewhere(lambda spec: draft_base(spec, wish))
    made = plan_sweep(asked, elsewhere)
    if strict:
        refuse_contradictions(made.built)
    print_contradictions(made.built)
    configs = {config.file_name: config.data.decode() for config in made.built.configs.values()}
    source = None if made.source is None else os.path.basename(made.source)
    jobs, wishes = made.built.jobs, made.wishes
    return hand_in(elsewhere.draft, jobs, wishes, place, wish, kind=GroupKind.SWEEP, source=source, configs=configs)
