"""Jobs added to a sweep while it runs: over the job, the settings and the layers that it was handed in with.

The sweep's recipe holds its text, so an edit of the file since then changes nothing here.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.agent.queue.open import open_queue
from holdfast.agent.queue.sweep.recipe import read_recipe, refuse_changes
from holdfast.agent.queue.sweep.take import refuse_collisions, refuse_scheduled
from holdfast.core.queue.submit_options import SubmitOptions
from holdfast.model import wire
from holdfast.model.errors import UsageError
from holdfast.model.job import JobSpec

from .plan import build_sweep, read_axes
from .sweep_file import SweepFile, parse_sweep
from .tables import load_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.queue.sweep.recipe import Recipe, SweepPlan
    from holdfast.store.queue.queue import Queue


def plan_more(name: str, *, axes: Sequence[str], table: str | None, accept_changes: bool) -> SweepPlan:
    """The further jobs of a sweep that is in the queue.

    Raises:
        UsageError: there is no such sweep, nothing to add, its files have changed, or two jobs would collide.
        JobFileError: the table has mistakes.
    """
    refuse_scheduled(name)
    with open_queue() as queue:
        _refuse_of_desk(queue, name)
        recipe = read_recipe(queue.directory, name)
        if not axes and table is None:
            raise UsageError("nothing to add", hint=f"holdfast sweep add {name} --grid lr=1e-2, or --jobs more.csv")
        if not accept_changes:
            refuse_changes(recipe.files)
        sweep = _restore(recipe)
        sweep.axes = read_axes(axes)
        sweep.jobs = load_jobs(table) if table is not None else []
        spec = wire.decode(JobSpec, recipe.base)
        wishes = SubmitOptions(
            group=name,
            priority=sweep.priority,
            needs=sweep.after,
            claims=recipe.claims,
            named=True,
            shared=sweep.shared,
        )
        made = build_sweep(sweep, spec, wishes, all_jobs=False)
        refuse_collisions(queue, made.group, made.built.base, made.built.jobs, sweep.shared)
        return made


def _refuse_of_desk(queue: Queue, name: str) -> None:
    """Refuse a sweep whose files and code are at a desk.

    Raises:
        UsageError: it is one; with the command that adds to it.
    """
    for job in queue.jobs(group=name, limit=1):
        came = queue.submission_of(job.id)
        if came.ordered is not None:
            again = shlex.join(["holdfast", *came.argv[1:]])
            raise UsageError(
                f"the sweep {name} came from {came.by}, where its files and its code are",
                hint=f"say it there again, with the new values beside the old ones: {again}",
            )


def _restore(recipe: Recipe) -> SweepFile:
    """The sweep as it was handed in."""
    path = recipe.path
    sweep = parse_sweep(recipe.text, path) if recipe.text else SweepFile(path, os.path.dirname(path))
    sweep.job_file = recipe.job_file
    sweep.settings = dict(recipe.settings)
    sweep.arguments, sweep.shared = recipe.arguments, recipe.shared
    sweep.after, sweep.priority = recipe.after, recipe.priority
    sweep.exclude = []
    return sweep
